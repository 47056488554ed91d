"""Asks a server that runs already which models it serves."""

from __future__ import annotations

import http.client
import json
import urllib.error
from typing import Any

from harness.replay.http import API_KEY, api_key, fetched
from servers.errors import ServerUnavailable
from traces.lenient import one_line

ANSWER_WITHIN_S = 10.0


NO_ANSWER = (OSError, http.client.HTTPException, ValueError)


NO_LIST = (ValueError, LookupError, TypeError, RecursionError)


MOST_MODELS_BYTES = 16 << 20


def says_vllm(model: dict[str, Any]) -> bool:
    return model.get("owned_by") == "vllm"


def models_of(url: str, asked_as: str) -> list[dict[str, Any]]:
    """What a server says that it serves. Raises ServerUnavailable, which begins with `asked_as`."""
    try:
        said = fetched(f"{url}/v1/models", ANSWER_WITHIN_S, MOST_MODELS_BYTES)
    except urllib.error.HTTPError as error:
        hint = _hint(error.code)
        raise ServerUnavailable(
            f"{asked_as} {url}: /v1/models answered {error.code}{hint}"
        ) from None
    except NO_ANSWER as error:
        why = one_line(str(getattr(error, "reason", error)))
        raise ServerUnavailable(
            f"{asked_as} {url}: no OpenAI-compatible server answers ({why})"
        ) from None
    try:
        models = [m for m in json.loads(said)["data"] if isinstance(m, dict)]
    except NO_LIST:
        raise ServerUnavailable(
            f"{asked_as} {url}: /v1/models answered no JSON list of models; give the address of an "
            "OpenAI-compatible server"
        ) from None
    return models


def _hint(status: int) -> str:
    if 300 <= status < 400:
        return ", a redirect, which is not followed; give the address of the server itself"
    if status != 401:
        return ""
    return f"; it refuses the key of {API_KEY}" if api_key() else f"; set {API_KEY}"
