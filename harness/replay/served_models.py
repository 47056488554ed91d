"""Lists the models that a running server serves."""

from __future__ import annotations

import http.client
import json
import urllib.error

from harness.replay.http import API_KEY, api_key, fetch
from servers.basics.errors import Unavailable
from servers.basics.json_object import JsonObject
from servers.basics.text import one_line

TIMEOUT_S = 10.0
MAX_BYTES = 16 << 20


def is_vllm(model: JsonObject) -> bool:
    return model.get("owned_by") == "vllm"


def served_models(url: str, label: str) -> list[JsonObject]:
    """Return the models of a server. Raises Unavailable, whose message begins with `label`
    (the option that gave the URL)."""
    try:
        body = fetch(f"{url}/v1/models", TIMEOUT_S, MAX_BYTES)
    except urllib.error.HTTPError as error:
        raise Unavailable(
            f"{label} {url}: /v1/models answered {error.code}{_hint(error.code)}"
        ) from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = one_line(str(getattr(error, "reason", error)))
        raise Unavailable(
            f"{label} {url}: no OpenAI-compatible server responds ({reason})"
        ) from None
    try:
        return [model for model in json.loads(body)["data"] if isinstance(model, dict)]
    except (ValueError, LookupError, TypeError, RecursionError):
        raise Unavailable(
            f"{label} {url}: /v1/models did not return a JSON list of models; give the URL of an "
            "OpenAI-compatible server"
        ) from None


def _hint(status: int) -> str:
    if 300 <= status < 400:
        return ", a redirect, which is not followed; give the URL of the server itself"
    if status != 401:
        return ""
    return f"; it rejected the key in {API_KEY}" if api_key() else f"; set {API_KEY}"
