"""An OpenAI-compatible proxy that knows programs (docs/gateway.md).

identity, conversations   which program a request belongs to
programs                  its turns so far: numbers, tool gaps, what a prompt keeps
answers                   what is read off an answer as it passes
proxy                     requests in, requests to a server, answers through
"""

from harness.gateway.proxy import Backend, Gateway
from harness.gateway.serving import serve_gateway

__all__ = ["Backend", "Gateway", "serve_gateway"]
