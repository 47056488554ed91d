"""What a request becomes on its way to a server: the client's own bytes, and a little more."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from harness.gateway.identity import OURS

NO_CLIENTS = ("ended", "warm_up")
"""Of `vllm_xargs`: with the one it would end another's program, with the other be no one's turn."""


def parsed(raw: bytes) -> Any:
    """Raises an orjson.JSONDecodeError also where it could not be written again: orjson reads
    values nested 1024 deep, and writes 254."""
    body = orjson.loads(raw)
    try:
        orjson.dumps([[[[[[[[body]]]]]]]])  # as deep as we put parts of it
    except orjson.JSONEncodeError:
        raise orjson.JSONDecodeError("nested too deeply", "", 0) from None
    return body


def rewritten(
    body: dict[str, Any], raw: bytes, tag: Mapping[str, object] | None
) -> tuple[bool, bytes]:
    """Whether we ask for the count of tokens where the client did not, and the body to send: the
    client's own bytes as far as nothing has to be added or taken out. `tag` is for `vllm_xargs`."""
    added: dict[str, Any] = {}
    options = body.get("stream_options")
    asked = isinstance(options, Mapping) and bool(options.get("include_usage"))
    hide_usage = body.get("stream") is True and not asked
    if hide_usage:
        kept = dict(options) if isinstance(options, Mapping) else {}
        added["stream_options"] = {**kept, "include_usage": True}
    if tag is not None:
        xargs = body.get("vllm_xargs")
        kept = dict(xargs) if isinstance(xargs, Mapping) else {}
        kept = {name: value for name, value in kept.items() if name not in NO_CLIENTS}
        added["vllm_xargs"] = {**kept, **tag}
    ours = [name for name in OURS if name in body]
    if not added and not ours:
        return hide_usage, raw
    if ours or added.keys() & body.keys() or not body:
        return hide_usage, orjson.dumps({k: v for k, v in body.items() if k not in ours} | added)
    # A long conversation is not written anew for the sake of two fields at its end.
    return hide_usage, raw.rstrip()[:-1] + b"," + orjson.dumps(added)[1:]
