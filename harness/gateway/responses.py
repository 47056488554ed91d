"""Builds the client's response from a server's: whole, not compressed, without the user's key."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

import aiohttp
import orjson
from aiohttp import web

from harness.replay.http import refuse_compressed
from servers.basics.redact import key_forms, redact_bytes
from traces.lenient import items, mapping

HOP_BY_HOP = frozenset(
    [
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "host",
        "content-length",
        "accept-encoding",
        "expect",
    ]
)
"""Headers of a single connection (RFC 9110, §7.6.1), and headers that our HTTP client sets."""
MAX_ANSWER_BYTES = 64 << 20
TOO_LONG = f"its answer is longer than {MAX_ANSWER_BYTES >> 20} MiB"


async def whole(answer: aiohttp.ClientResponse, key: str | None) -> web.Response:
    """Raises TurnFailed for a compressed answer, and ValueError for one that is too long."""
    refuse_compressed(answer)
    body = bytearray()
    async for received in answer.content.iter_any():
        body += received
        if len(body) > MAX_ANSWER_BYTES:
            raise ValueError(TOO_LONG)
    headers = end_to_end_headers(answer.headers, key)
    return web.Response(status=answer.status, body=bytes(body), headers=headers)


def end_to_end_headers(headers: Mapping[str, str], key: str | None) -> dict[str, str]:
    """Return the headers for the client, without the user's API key."""
    forms = key_forms(key)
    return {
        name: redact_bytes(value.encode(errors="surrogateescape"), forms).decode(
            errors="surrogateescape"
        )
        for name, value in headers.items()
        if name.lower() not in HOP_BY_HOP
    }


def without_key(response: web.Response, key: str | None, *, is_error: bool) -> web.Response:
    """Remove the user's API key from the body, because some servers repeat what they get."""
    forms = key_forms(key, only_distinctive=not is_error)
    response.body = redact_bytes(bytes(response.body or b""), forms)  # type: ignore[arg-type]
    return response


def listed_model(models: web.Response, id: str) -> web.Response | None:
    """Return the model's entry in a list of models. vLLM has no `/v1/models/ID`."""
    with suppress(orjson.JSONDecodeError):
        listed = mapping(orjson.loads(bytes(models.body or b"")))  # type: ignore[arg-type]
        for model in items(listed.get("data")):
            if mapping(model).get("id") == id:
                return web.json_response(body=orjson.dumps(model))
    return None
