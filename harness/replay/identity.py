"""How requests say to which program they belong, for the routers and servers that ask.

Headers are sent to every server, because those that do not know one ignore it. Fields of the body
and requests that end a session go only to servers that know them (`session_ends`), because vLLM
logs a warning for each unknown field, and others reject it. docs/howto/gateway.md has the
list by system.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple
from urllib.parse import quote

import aiohttp

from harness.replay.http import RequestFailed, authorization
from servers.basics.json_object import JsonObject
from servers.identity import AGENT_HEADERS, FINAL_HEADER, JOB_HEADERS, PROGRAM_HEADERS

IDENTITY_HEADERS = frozenset(
    name.lower()
    for name in (*PROGRAM_HEADERS, *JOB_HEADERS, *(a for _, a in AGENT_HEADERS), FINAL_HEADER)
)
PRINTABLE = "".join(map(chr, range(0x20, 0x7F)))
END_TIMEOUT_S = 5.0
PROBE_ID = "turnstile-probe"
PROBE_TIMEOUT_S = 10.0
JSON = {"Content-Type": "application/json"}


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


async def report_end(
    session: aiohttp.ClientSession,
    base_url: str,
    program_id: str,
    *,
    model: object = None,
    ends: Sequence[SessionEnd] = (),
    api_key: str | None = None,
    is_dynamo: bool = False,
) -> None:
    """Tell a server that a program has ended. A failure is ignored.

    `model`: of a vLLM, in which our plug-in releases the program's pin, or of Dynamo; None for
    other servers. A router that knows `ends` may pass that request on to any of its servers, so it
    does not get it.
    """
    requests: list[tuple[str, JsonObject]] = [(end.path, {end.field: program_id}) for end in ends]
    headers = {**JSON, **authorization(api_key)}
    shortest = {"model": model, "prompt": [0], "max_tokens": 1}
    if is_dynamo:
        requests.append(("/v1/completions", shortest))
        headers |= identity_headers(program_id, program_id, is_final=True)
    elif model is not None and not ends:
        requests.append(("/v1/completions", {**shortest, "vllm_xargs": {"ended": program_id}}))
    with suppress(aiohttp.ClientError, OSError, TimeoutError):
        async with asyncio.timeout(END_TIMEOUT_S):
            for path, body in requests:
                async with session.post(
                    f"{base_url}{path}", json=body, headers=headers, allow_redirects=False
                ) as answer:
                    await answer.content.readany()
