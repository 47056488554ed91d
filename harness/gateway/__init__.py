"""An OpenAI-compatible proxy that knows programs (docs/howto/gateway.md).

identity, conversations   which program a request belongs to
programs                  its turns so far: numbers, tool gaps, what a prompt keeps
turns                     turns under way, and the line that each leaves
servers                   which server a job is on
answers                   what is read off an answer as it passes
passing                   a completion passed through
guided, recorded          a completion as a recorded program had it
proxy                     the gateway: requests in, programs ended
"""

from harness.gateway.guided import Guide
from harness.gateway.proxy import Gateway
from harness.gateway.servers import Backend
from harness.gateway.serving import serve_gateway

__all__ = ["Backend", "Gateway", "Guide", "serve_gateway"]
