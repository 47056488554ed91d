"""Lists the models that a running server serves."""

from __future__ import annotations

import json

from harness.replay.http import API_KEY, RequestFailed, api_key
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
    from harness.replay.openai_client import fetch

    try:
        body = fetch(f"{url}/v1/models", TIMEOUT_S, MAX_BYTES)
    except RequestFailed as error:
        if error.status is not None:
            problem = f"/v1/models answered {error.status}{_hint(error.status)}"
        else:
            problem = f"no OpenAI-compatible server responds ({one_line(str(error))})"
        raise Unavailable(f"{label} {url}: {problem}") from None
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
