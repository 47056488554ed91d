"""What the gateway itself answers where a request cannot go on, as OpenAI's API words it."""

from __future__ import annotations

from aiohttp import web


def refusal(status: int, message: str, kind: str = "invalid_request_error") -> web.Response:
    error = {"message": message, "type": kind, "param": None, "code": None}
    return web.json_response({"error": error}, status=status)
