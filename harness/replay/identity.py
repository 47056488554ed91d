"""How requests say to which program they belong, for the routers and servers that ask.

Headers are sent to every server, because those that do not know one ignore it. Fields of the body
and requests that end a session go only to servers that know them (`session_ends`), because vLLM
logs a warning for each unknown field, and others reject it. docs/howto/gateway.md has the
list by system.
"""

from __future__ import annotations

import json
from typing import NamedTuple
from urllib.parse import quote

from harness.replay.http import RequestFailed
from servers.identity import AGENT_HEADERS, FINAL_HEADER, JOB_HEADERS, PROGRAM_HEADERS

IDENTITY_HEADERS = frozenset(
    name.lower()
    for name in (*PROGRAM_HEADERS, *JOB_HEADERS, *(a for _, a in AGENT_HEADERS), FINAL_HEADER)
)
PRINTABLE = "".join(map(chr, range(0x20, 0x7F)))
PROBE_ID = "turnstile-probe"
PROBE_TIMEOUT_S = 10.0


class SessionEnd(NamedTuple):
    """A request by which a client ends a session, and the field of that name in completions."""

    path: str
    field: str


RELEASE_PROGRAM = SessionEnd("/programs/release", "program_id")
"""Of ThunderAgent, and our gateway."""
CLOSE_SESSION = SessionEnd("/close_session", "session_id")
"""Of SGLang."""
SESSION_ENDS = (RELEASE_PROGRAM, CLOSE_SESSION)


def identity_headers(program_id: str, job_id: str, *, is_final: bool = False) -> dict[str, str]:
    """Return the headers of a turn. Characters outside printable ASCII are percent-encoded."""
    id = _header_value(program_id)
    headers = dict.fromkeys(PROGRAM_HEADERS, id)
    if job_id != program_id:
        headers |= dict.fromkeys(JOB_HEADERS, _header_value(job_id))
    if is_final:
        headers[FINAL_HEADER] = "true"
    return headers


def _header_value(id: str) -> str:
    plain = id.isascii() and id.isprintable()
    return id.strip() if plain else quote(id, safe=PRINTABLE).strip()


def session_ends(base_url: str) -> tuple[SessionEnd, ...]:
    """Return how sessions end at this server, by asking it to end one that does not exist."""
    return tuple(end for end in SESSION_ENDS if _is_known(base_url, end))


def _is_known(base_url: str, end: SessionEnd) -> bool:
    from harness.replay.openai_client import fetch

    try:
        fetch(
            f"{base_url}{end.path}", PROBE_TIMEOUT_S, 1, json.dumps({end.field: PROBE_ID}).encode()
        )
    except RequestFailed:
        return False
    return True
