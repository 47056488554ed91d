"""How a request says to which program it belongs, for the gateway, live replays and the plug-in.

In: headers of an HTTP request. Out: the id of its program. docs/howto/gateway.md has the list by
system. Standard library only, since vLLM loads this module.
"""

from __future__ import annotations

from collections.abc import Mapping

PROGRAM_HEADERS = (
    "X-Program-Id",
    "X-Session-Id",
    "X-Dynamo-Session-Id",
    "X-Claude-Code-Session-Id",
    "Session-Id",
    "Session_Id",
    "X-Session-Affinity",
    "X-SMG-Routing-Key",
    "X-LLM-D-Inference-Fairness-Id",
)
"""Headers with the program's id; the first of a request decides. The last two may name a tenant."""
JOB_HEADERS = ("X-Job-Id", "X-Dynamo-Parent-Session-Id")
"""Headers with the job's id, or the parent's, of a sub-agent."""
AGENT_HEADERS = (
    ("X-Claude-Code-Session-Id", "X-Claude-Code-Agent-Id"),
    ("Session-Id", "Thread-Id"),
)
"""Headers of Claude Code and Codex: a session, and the sub-agent in it that sends the request. The
main agent of Claude Code sends no agent, and Codex's a thread with the session's id."""
FINAL_HEADER = "X-Dynamo-Session-Final"
"""`true` in the program's last request. Dynamo's ThunderAgent router answers that request without
generating anything, so turns of live replays do not have it, and the end is reported by a request
of its own."""
MAX_ID_CHARS = 200
LAST = "\x1f"
"""Follows the session id of a program's last request on its way from vLLM's API server to the
scheduler. No HTTP header can contain it."""


def is_valid_id(text: str) -> bool:
    return 0 < len(text) <= MAX_ID_CHARS and text.isprintable()


def program_in(headers: Mapping[str, str]) -> str | None:
    """Return the first valid id in headers with lower-case names, followed by a sub-agent's;
    None if there is none."""
    ids = (headers.get(name.lower(), "") for name in PROGRAM_HEADERS)
    program = next(filter(is_valid_id, ids), None)
    agent = "" if program is None else sub_agent_in(headers)
    return f"{program}:{agent}" if agent and is_valid_id(f"{program}:{agent}") else program


def sub_agent_in(headers: Mapping[str, str]) -> str:
    """Return the sub-agent that sends a request with these headers, whose names are in lower case;
    "" for a main agent."""
    for session, agent in AGENT_HEADERS:
        id = headers.get(agent.lower(), "")
        if id and id != headers.get(session.lower(), id):
            return id
    return ""


def is_final(headers: Mapping[str, str]) -> bool:
    """Return whether headers with lower-case names mark the program's last request."""
    return headers.get(FINAL_HEADER.lower(), "").lower() in ("true", "1")
