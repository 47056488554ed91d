"""An OpenAI-compatible proxy that records the turns of programs (docs/howto/gateway.md).

In: completion requests of agents. Out: the servers' answers, and a `TurnRecord` per turn.

proxy            the gateway: handles requests, starts and ends programs
access           which clients may send requests, and as which program
client_request   the program that a request names, and the body sent to the server
conversations    matches requests that name no program to programs by their prompts
programs         turn numbers, tool gaps and kept tokens of each program
turns, servers   the active turns and their records; the server of each job
forwarding       forwards a completion to a server; `answers` parses its answer
guided           answers with a recorded program's answer, which `recorded` formats
messages         the messages of a turn, for recordings that include them
serving          listens on a port or a Unix socket
recording        writes the run folder of `bench record` and `bench gateway`
"""

from harness.gateway.guided import Guide
from harness.gateway.proxy import Gateway
from harness.gateway.servers import Backend
from harness.gateway.serving import serve_gateway

__all__ = ["Backend", "Gateway", "Guide", "serve_gateway"]
