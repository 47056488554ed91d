"""A credential may be any string; redacting it never damages the records of turns."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest

from harness.gateway import Backend, Gateway, serve_gateway
from harness.gateway.forwarding import Forwarding
from tests.gateway.test_proxy import ASK, post
from tests.gateway.upstream import Upstream, serving
from tests.lines import Line, into

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
            gateway = Gateway([Backend(server, True)], into(lines), keeps_messages=True)
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


def test_a_turn_ends_even_if_its_answer_cannot_be_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(*_: object) -> Line:
        raise RecursionError

    monkeypatch.setattr(Forwarding, "_measured", broken)
    line = line_of(Upstream(), status=500)
    assert line["error"] == "the gateway could not read the answer"
