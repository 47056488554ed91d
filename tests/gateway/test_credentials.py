"""A credential may be any string; redacting it never damages the records of turns."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp
import orjson
import pytest
from aiohttp import web

from harness.gateway import Gateway, serve_gateway
from harness.gateway.forwarding import Forwarding
from harness.replay.live_server import LiveServer
from tests.gateway.test_proxy import ASK, post
from tests.gateway.upstream import Upstream, serving
from tests.lines import Line, into
from tests.loopback import on_loopback
from tests.sentences import mentions

KEY = "sk-planted-12345"


async def post_status(gateway: Gateway, body: Any, **headers: str) -> int:
    headers_sent = {name.replace("_", "-"): value for name, value in headers.items()}
    async with serve_gateway(gateway) as url:
        status, _, _ = await post(
            f"{url}/programs/p/v1/chat/completions", body, headers=headers_sent
        )
    return status


def line_of(
    upstream: Upstream, body: dict[str, Any] = ASK, status: int = 200, **headers: str
) -> Line:
    lines: list[Line] = []

    async def go() -> None:
        async with serving(upstream) as server:
            gateway = Gateway([LiveServer(server, tagged=True)], into(lines), keeps_messages=True)
            assert await post_status(gateway, body, **headers) == status
            assert not gateway._turns._active

    asyncio.run(go())
    (line,) = lines
    return line


@pytest.mark.parametrize("word", [',"tools":', "output_tokens", '"fix the bug"', "anything"])
def test_a_key_that_is_a_common_word_changes_no_record(word: str) -> None:
    plain = line_of(Upstream(words="do anything with output_tokens"))
    line = line_of(Upstream(words="do anything with output_tokens"), X_Api_Key=word)
    times = {name for name in plain if name.endswith("_s")}
    assert line.keys() == plain.keys()
    assert {n: v for n, v in line.items() if n not in times} == {
        n: v for n, v in plain.items() if n not in times
    }
    assert line["answer"] == "do anything with output_tokens"


def test_passwords_of_the_environment_that_are_numbers_or_words_change_no_record(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    digits = {"role": "user", "content": "12345678 and postgres"}
    monkeypatch.setenv("DB_PASSWORD", "12345678")
    monkeypatch.setenv("PGPASSWORD", "postgres")
    monkeypatch.setenv("X_TOKEN", "finished_at_s")
    line = line_of(Upstream(), {**ASK, "messages": [digits]})
    assert "finished_at_s" in line
    assert line["messages"] == [digits]


def test_a_distinctive_key_is_in_no_record() -> None:
    message = {"role": "user", "content": f"curl with {KEY}"}
    call = {"id": "c", "type": "function"}
    command = orjson.dumps({"command": f"curl -H 'api-key: {KEY}'"}).decode()
    called = {**call, "function": {"name": "bash", "arguments": command}}
    shell = {"name": "bash", "parameters": {"properties": {"command": {"type": "string"}}}}
    upstream = Upstream(words=f"with {KEY}")
    body = {**ASK, "messages": [message], "tools": [{"type": "function", "function": shell}]}
    line = line_of(upstream, body, X_Api_Key=KEY)
    assert line["messages"] == [{"role": "user", "content": "curl with ***"}]
    assert line["answer"] == "with ***"
    again = {**body, "messages": [{"role": "assistant", "tool_calls": [called]}, message]}
    assert KEY not in str(line_of(upstream, again, X_Api_Key=KEY))


@pytest.mark.parametrize("fault", ["401", "engine error"])
def test_any_key_is_redacted_from_errors(fault: str) -> None:
    status = {"401": 401}.get(fault, 200)
    line = line_of(Upstream(fault=fault), status=status, Authorization="Bearer anything")
    assert "Bearer ***" in line["error"]


async def echo(request: web.Request) -> web.StreamResponse:
    """Repeat the request's key in a header and in the body, in the form that the path names."""
    key = request.headers["Authorization"]
    headers = {"WWW-Authenticate": f'Bearer realm="{key}"', "X-Echo": key}
    answer = json.dumps({"choices": [{"index": 0, "message": {"content": f"it is {key}"}}]})
    escaped = answer.replace("/", "\\/")
    if request.path == "/v1/completions":
        response = web.StreamResponse(headers={**headers, "Content-Type": "text/event-stream"})
        await response.prepare(request)
        half = len(answer) - 20
        for part in ("data: ", answer[:half], answer[half:], f"\n\ndata: {escaped}", "\n\ndata: "):
            await response.write(part.encode())
        await response.write(b"[DONE]\n\n")
        return response
    status = 401 if request.path == "/v1/models" else 200
    return web.Response(text=f"{answer} {escaped}", status=status, headers=headers)


def echoed(key: str, path: str) -> str:
    """Return headers and body of the answer that a client of the gateway gets."""

    async def go() -> str:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", echo)
        async with on_loopback(app) as server:
            gateway = Gateway([LiveServer(server, tagged=True)], lambda _: None, key)
            async with serve_gateway(gateway) as url, aiohttp.ClientSession() as session:
                method = "GET" if path == "models" else "POST"
                async with session.request(method, f"{url}/v1/{path}", json=ASK) as answer:
                    return f"{dict(answer.headers)} {await answer.text()}"

    return asyncio.run(go())


@pytest.mark.parametrize("path", ["chat/completions", "completions", "embeddings", "models"])
def test_the_users_key_is_in_no_header_and_no_body_that_a_client_gets(path: str) -> None:
    answer = echoed("sk-planted/12345", path)
    assert "'WWW-Authenticate': 'Bearer realm=\"Bearer ***\"'" in answer
    assert "'X-Echo': 'Bearer ***'" in answer
    assert answer.count("it is Bearer ***") == 2
    assert "planted" not in answer


@pytest.mark.parametrize(("path", "in_body"), [("embeddings", True), ("models", False)])
def test_a_key_that_is_a_word_is_removed_from_headers_and_errors_only(
    path: str, in_body: bool
) -> None:
    answer = echoed("postgres", path)
    assert "'X-Echo': 'Bearer ***'" in answer
    assert ("it is Bearer postgres" in answer) == in_body
    assert ("it is Bearer ***" in answer) != in_body


def test_a_turn_ends_even_if_its_answer_cannot_be_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(*_: object) -> Line:
        raise RecursionError

    monkeypatch.setattr(Forwarding, "_measured", broken)
    line = line_of(Upstream(), status=500)
    assert mentions(line["error"], "gateway could not read")
