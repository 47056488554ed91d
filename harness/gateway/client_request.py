"""Finds the program that sent a completion request, and rewrites the body for the server.

In: the request's path, headers and body. Out: the ids of the program and its job, if the request
has them, and the body with the gateway's own fields. Ids are looked up in this order:
`/programs/<id>/v1/…`, a header, a field of the body, a field of its `vllm_xargs`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, NamedTuple

import orjson
from aiohttp import web

from servers.basics.errors import InvalidProgramId
from servers.basics.json_object import JsonObject
from servers.identity import (
    JOB_HEADERS,
    MAX_ID_CHARS,
    PROGRAM_HEADERS,
    is_final,
    is_valid_id,
    sub_agent_in,
)
from traces.lenient import mapping

FIELDS = ("program_id", "job_id", "session_id", "prompt_cache_key")
CONTEXT_FIELDS = ("program_id", "parent_program_id")
"""Fields of `vllm_xargs.agentic_context`, which vllm-router reads."""
JOB_FIELDS = frozenset((*JOB_HEADERS, "job_id", "parent_program_id"))
GATEWAY_FIELDS = ("program_id", "job_id", "session_id")
"""Removed from the body, because servers may reject unknown fields."""
RESERVED_XARGS = ("ended", "warm_up", "agentic_context")
"""Removed from the client's `vllm_xargs` for vLLM: `ended` would end another program, a turn with
`warm_up` belongs to no program, and vLLM rejects objects, such as `agentic_context`."""
BODY_TIMEOUT_S = 60.0
"""Time for a body of up to 32 MiB to arrive."""


class Caller(NamedTuple):
    program_id: str | None
    job_id: str | None
    """The job or the parent; None if the request names none, and the job is the program's own."""
    is_final: bool = False
    """Whether this is the program's last request."""
    is_agent: bool = False
    """Whether the sender is an agent of a run, all of whose requests are its program."""


async def read_body(request: web.Request) -> bytes:
    """Raises a `web.HTTPException` for a body that is compressed, malformed, too long or too slow.

    Compressed bodies are refused, because a megabyte can expand to a gigabyte, and vLLM does not
    accept them either.
    """
    for coding in request.headers.getall("Content-Encoding", ()):
        if coding.strip().lower() not in ("", "identity"):
            raise web.HTTPUnsupportedMediaType(
                reason=f"Content-Encoding {coding[:MAX_ID_CHARS]} is not supported: send the body "
                "uncompressed"
            )
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            return await request.read()
    except TimeoutError:
        raise web.HTTPRequestTimeout(
            reason=f"The body of your request did not arrive within {BODY_TIMEOUT_S:g} s."
        ) from None
    except web.RequestPayloadError:
        raise web.HTTPBadRequest(reason="The body of your request is malformed HTTP.") from None


def identify_caller(in_path: str | None, headers: Mapping[str, str], body: JsonObject) -> Caller:
    """Raises InvalidProgramId."""
    xargs = mapping(body.get("vllm_xargs"))
    context = mapping(xargs.get("agentic_context"))
    fields: list[tuple[str, str, Any]] = [("the path", "", in_path)]
    fields += [(name, name, headers.get(name)) for name in (*PROGRAM_HEADERS, *JOB_HEADERS)]
    fields += [(name, name, body.get(name)) for name in FIELDS]
    fields += [(f"vllm_xargs.{name}", name, xargs.get(name)) for name in FIELDS]
    fields += [(f"agentic_context.{name}", name, context.get(name)) for name in CONTEXT_FIELDS]
    ids = [(name, _id(label, value)) for label, name, value in fields if value not in (None, "")]
    if not ids:
        return Caller(None, None)
    jobs = [id for name, id in ids if name in JOB_FIELDS]
    program, job = ids[0][1], jobs[0] if jobs else None
    by_name = {name.lower(): value for name, value in headers.items()}
    if agent := sub_agent_in(by_name):
        program, job = _id("the sub-agent's header", f"{program}:{agent}"), job or program
    return Caller(program, job, is_final(by_name))


def ended_program(body: object, field: str) -> str | None:
    """Return the program that a request ends; None if it names none. Raises InvalidProgramId."""
    value = mapping(body).get(field)
    return None if value in (None, "") else _id(field, value)


def _id(field: str, value: object) -> str:
    if not isinstance(value, str | int) or isinstance(value, bool):
        raise InvalidProgramId(f"{field}: a program's id is text, not {type(value).__name__}")
    id = str(value)
    if not is_valid_id(id):
        raise InvalidProgramId(
            f"{field}: a program's id has at most {MAX_ID_CHARS} printable characters"
        )
    return id


def parse_body(raw: bytes) -> Any:
    """Parse a JSON body. Raises orjson.JSONDecodeError.

    This includes bodies that orjson cannot serialize again: it parses up to 1024 levels of nesting,
    and serializes 254.
    """
    body = orjson.loads(raw)
    try:
        orjson.dumps([[[[[[[[body]]]]]]]])  # the deepest level at which we nest parts of a body
    except orjson.JSONEncodeError:
        raise orjson.JSONDecodeError("nested too deeply", "", 0) from None
    return body


def rewrite_body(
    body: JsonObject,
    raw: bytes,
    tag: Mapping[str, object] | None,
    ids: Mapping[str, str] | None = None,
    *,
    asks_for_usage: bool = True,
) -> tuple[bool, bytes]:
    """Return whether to hide the usage event from the client, and the body for the server.

    The usage event is hidden if only the gateway requests it. `tag`: fields to add to `vllm_xargs`.
    `ids`: to add to the body. `asks_for_usage`: whether streams must ask for the usage. Returns
    `raw` if there is nothing to add or remove.
    """
    added: JsonObject = dict(ids or {})
    options = body.get("stream_options")
    requested = isinstance(options, Mapping) and bool(options.get("include_usage"))
    hide_usage = asks_for_usage and body.get("stream") is True and not requested
    if hide_usage:
        from_client = dict(options) if isinstance(options, Mapping) else {}
        added["stream_options"] = {**from_client, "include_usage": True}
    if tag is not None:
        xargs = body.get("vllm_xargs")
        from_client = dict(xargs) if isinstance(xargs, Mapping) else {}
        from_client = {k: v for k, v in from_client.items() if k not in RESERVED_XARGS}
        added["vllm_xargs"] = {**from_client, **tag}
    removed = [name for name in GATEWAY_FIELDS if name in body]
    if not added and not removed:
        return hide_usage, raw
    if removed or added.keys() & body.keys() or not body:
        merged = {k: v for k, v in body.items() if k not in removed} | added
        return hide_usage, orjson.dumps(merged)
    # Appending to the bytes avoids serializing a long conversation again.
    return hide_usage, raw.rstrip()[:-1] + b"," + orjson.dumps(added)[1:]
