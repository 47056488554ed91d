"""An OpenAI-compatible proxy that records the turns of programs (docs/howto/gateway.md).

In: completion requests of agents. Out: the servers' answers, and a `TurnRecord` per turn. `proxy`
handles requests; `forwarding` or `guided` answers them; `turns` and `programs` keep the state.
"""

from harness.gateway.guided import Guide
from harness.gateway.proxy import Gateway
from harness.gateway.serving import serve_gateway

__all__ = ["Gateway", "Guide", "serve_gateway"]
