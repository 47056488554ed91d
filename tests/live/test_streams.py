"""Streams as servers send them: what the first token is, where usage comes, and how they end."""

from __future__ import annotations

import asyncio
import io
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from harness.gateway import Gateway, serve_gateway
from harness.gateway.answers import ForwardedAnswer, Tap
from harness.replay.completion import PartialAnswer, QueueFull
from harness.replay.http import client_session, stream_completion
from harness.replay.live_server import LiveServer
from servers.basics.errors import TurnFailed
from tests.gateway.test_proxy import ASK as CHAT
from tests.gateway.test_proxy import post
from tests.lines import Line, into
from tests.live.server import Server, serving
from tests.threaded import threaded
from tests.traces.test_token_counts import words
from traces import Turn
from traces.token_counts import TokenCounter, by_tokenizer

TURN = Turn(40, 8)
USAGE = {"prompt_tokens": 40, "completion_tokens": 8}
DONE = b"data: [DONE]\n\n"


ASK = """
import sys
from harness.replay.live_server import served_models
print(len(served_models(sys.argv[1], "--engine")))
"""


def event(**chunk: Any) -> bytes:
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


def delta(**fields: Any) -> bytes:
    return event(choices=[{"index": 0, "delta": fields}])


ROLE = delta(role="assistant", content="", reasoning_content=None, tool_calls=[])
ENDS = event(choices=[{"index": 0, "delta": {}, "finish_reason": "stop"}])
CALL = [{"index": 0, "id": "c", "function": {"name": "bash", "arguments": ""}}]


BASH = {"index": 0, "id": "c", "function": {"name": "bash", "arguments": " ls"}}


def received(
    *parts: bytes, text: bool = True, counter: TokenCounter | None = None
) -> PartialAnswer:
    """Return the answer of parts that arrive at 1 s, 2 s, and so on."""
    answer = PartialAnswer(0.0, text=text, counter=counter)
    for second, part in enumerate(parts, 1):
        answer.take(part, second)
    return answer


@asynccontextmanager
async def sending(*parts: bytes) -> AsyncIterator[str]:
    """Answer chats on loopback with these parts of a stream."""

    async def answer(request: web.Request) -> web.StreamResponse:
        await request.read()
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for part in parts:
            await response.write(part)
        await response.write_eof()
        return response

    app = web.Application()
    app.router.add_post("/v1/chat/completions", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def replayed(*parts: bytes) -> PartialAnswer:
    """Return the answer that a replay gets from a server."""

    async def go() -> PartialAnswer:
        answer = PartialAnswer(time.monotonic(), text=True)
        async with sending(*parts) as url, client_session() as session:
            path = f"{url}/v1/chat/completions"
            await stream_completion(session, path, io.BytesIO(b"{}"), answer, time.monotonic)
        return answer

    return asyncio.run(go())


def recorded(
    *parts: bytes, chat: dict[str, Any] = CHAT, counter: TokenCounter | None = None
) -> Line:
    """Return the record of a gateway whose client does not ask for usage."""

    async def go() -> Line:
        lines: list[Line] = []
        async with sending(*parts) as url:
            gateway = Gateway([LiveServer(url, tagged=True)], into(lines), counter=counter)
            async with serve_gateway(gateway) as base_url:
                _, body, _ = await post(f"{base_url}/v1/chat/completions", {**chat, "stream": True})
        assert b"usage" not in body
        return lines[0]

    return asyncio.run(go())


@pytest.mark.parametrize(
    "sampled",
    [{"content": "a"}, {"reasoning_content": "hm"}, {"reasoning": "hm"}, {"tool_calls": CALL}],
)
def test_the_first_token_is_the_first_sampled_one_of_any_kind(sampled: dict[str, Any]) -> None:
    answer = received(ROLE, delta(**sampled), delta(content="b"), ENDS, event(usage=USAGE), DONE)
    assert answer.first_token_at_s == 2
    forwarded = ForwardedAnswer()
    tap = Tap(forwarded, hide_usage=False, key=None)
    for second, part in enumerate((ROLE, delta(**sampled)), 1):
        tap.feed(part, second)
    assert forwarded.first_token_at_s == 2


def test_a_full_queue_refuses_a_turn_only_before_its_first_token() -> None:
    busy = event(error={"message": "Please try again later.", "code": 503})
    with pytest.raises(QueueFull, match="engine failed: Please try again"):
        received(ROLE, busy)
    with pytest.raises(TurnFailed) as failed:
        received(ROLE, delta(content="a"), busy)
    assert not isinstance(failed.value, QueueFull)


@pytest.mark.parametrize(
    "chunk", [{"choices": [], "usage": USAGE}, {"choices": None, "usage": USAGE}, {"usage": USAGE}]
)
def test_a_chunk_with_usage_need_not_have_choices(chunk: dict[str, Any]) -> None:
    parts = delta(content="a"), ENDS, event(**chunk), DONE
    answer = replayed(*parts)
    answer.check(TURN)
    assert answer.output_tokens == 8
    line = recorded(*parts)
    assert (line["prompt_tokens"], line["output_tokens"], line["error"]) == (40, 8, None)


def test_usage_may_come_in_any_chunk() -> None:
    first = event(choices=[{"index": 0, "delta": {"content": "a"}}], usage=USAGE)
    received(first, event(choices=[{"delta": {"content": "b"}}], usage=None), ENDS).check(TURN)


@pytest.mark.parametrize(
    "end", [b"", b"data: [DONE]", b"data: [DONE]\n", b"data: [DONE]\r\n", b"data: [DONE] \n\n"]
)
def test_a_stream_that_the_server_ended_is_complete_however_it_ends(end: bytes) -> None:
    parts = delta(content="a"), ENDS, event(usage=USAGE), end
    replayed(*parts).check(TURN)
    assert recorded(*parts)["error"] is None


def test_the_last_event_may_lack_its_empty_line() -> None:
    received(delta(content="a"), ENDS, event(usage=USAGE)[:-2]).check(TURN)
    forwarded = ForwardedAnswer()
    tap = Tap(forwarded, hide_usage=True, key=None)
    assert tap.feed(delta(content="a") + event(usage=USAGE)[:-1], 1) == delta(content="a")
    assert tap.end() == b""
    assert forwarded.output_tokens == 8


def test_a_stream_without_a_reason_for_its_end_was_cut() -> None:
    with pytest.raises(TurnFailed, match="the stream was cut after 0 tokens"):
        received(delta(content="a"), event(usage=USAGE)).check(TURN)
    with pytest.raises(TurnFailed, match="the stream was cut after 0 tokens"):
        received(delta(content="a"), ENDS[:-20]).check(TURN)


def test_token_ids_are_counts_if_the_server_sends_no_usage() -> None:
    chunks = [event(choices=[{"text": "a", "token_ids": [n]}]) for n in range(8)]
    answer = received(*chunks, DONE, text=False)
    answer.check(TURN)
    assert (answer.prompt_tokens(TURN), answer.output_tokens) == (40, 8)
    with pytest.raises(TurnFailed, match="40 prompt and 7 output tokens"):
        received(*chunks[1:], DONE, text=False).check(TURN)


def test_text_without_usage_says_what_to_do() -> None:
    said = "so the tokens of its answer are unknown; count them with --tokenizer FILE, or use"
    parts = delta(content="a"), ENDS, DONE
    with pytest.raises(TurnFailed, match=re.escape(said)):
        replayed(*parts).check(TURN)
    # An agent gets its answer; `bench record` says which turns lack counts.
    line = recorded(*parts)
    assert (line["prompt_tokens"], line["output_tokens"], line["error"]) == (0, 0, None)


LENGTH = event(choices=[{"index": 0, "delta": {}, "finish_reason": "length"}])


def test_a_tokenizer_counts_what_the_server_does_not_report(tmp_path: Path) -> None:
    """The text of the answer, its reasoning once, and its tool calls; a chunk may cut a word."""
    counter = by_tokenizer(words(tmp_path))
    thinks = delta(reasoning="so it is ", reasoning_content="so it is ")
    parts = ROLE, thinks, delta(content="a b"), delta(content="b c "), delta(tool_calls=[BASH])
    answer = received(*parts, LENGTH, DONE, counter=counter)
    answer.check(TURN, ["be brief", "fix it now"])
    assert answer.is_counted
    assert (answer.prompt_tokens(TURN), answer.output_tokens) == (5, 3 + 3 + 2)
    ids = event(choices=[{"index": 0, "delta": {"content": "ab"}, "token_ids": [*range(8)]}])
    exact = received(ids, LENGTH, DONE, counter=counter)
    exact.check(TURN, ["be brief"])
    assert (exact.prompt_tokens(TURN), exact.output_tokens) == (2, 8)
    reported = received(*parts, ENDS, event(usage=USAGE), DONE, counter=counter)
    reported.check(TURN, ["be brief"])
    assert (reported.is_counted, reported.prompt_tokens(TURN)) == (False, 40)


def test_an_answer_that_the_server_ended_too_early_fails_by_its_count(tmp_path: Path) -> None:
    answer = received(delta(content="a b"), ENDS, DONE, counter=by_tokenizer(words(tmp_path)))
    said = "the server ended the answer (stop) after 2 tokens, counted with --tokenizer, but"
    with pytest.raises(TurnFailed, match=re.escape(said)):
        answer.check(TURN, ["be brief"])


def test_a_gateway_counts_the_text_that_the_client_sent_and_got(tmp_path: Path) -> None:
    """The text of `CHAT` is "fix the bug"."""
    parts = delta(content="a b "), delta(tool_calls=[BASH]), ENDS
    line = recorded(*parts, DONE, counter=by_tokenizer(words(tmp_path)))
    assert (line["prompt_tokens"], line["output_tokens"], line["counted"]) == (3, 4, True)
    whole = recorded(*parts, event(usage=USAGE), DONE, counter=by_tokenizer(words(tmp_path)))
    assert (whole["prompt_tokens"], "counted" in whole) == (40, False)


def test_a_gateway_counts_tools_and_calls_in_a_prompt_but_no_images(tmp_path: Path) -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA BB CC"}}
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "see it"}, image]},
        {"role": "assistant", "content": None, "tool_calls": [BASH]},
    ]
    chat = {"model": "m", "messages": messages, "tools": ["look"]}
    counter = by_tokenizer(words(tmp_path))
    line = recorded(delta(content="a b"), ENDS, DONE, chat=chat, counter=counter)
    # `["`, `look`, `"]`; `see it`; `bash`, `ls`
    assert line["prompt_tokens"] == 3 + 2 + 2


def part(**fields: Any) -> bytes:
    function = {name: fields.pop(name) for name in ("name", "arguments") if name in fields}
    return delta(tool_calls=[{**fields, "function": function}])


PYTEST, RUFF = '{"command": "pytest -q"}', '{"command": "ruff check"}'


@pytest.mark.parametrize(
    "parts",
    [
        # whole calls with ids: the same index, or none
        [part(index=0, id="a", name="bash", arguments=PYTEST),
         part(index=0, id="b", name="bash", arguments=RUFF)],
        [part(id="a", name="bash", arguments=PYTEST), part(id="b", name="bash", arguments=RUFF)],
        # neither ids nor indices
        [part(name="bash", arguments=PYTEST), part(name="bash", arguments=RUFF)],
        # parts with the index only, interleaved
        [part(index=0, id="a", name="bash", arguments=""), part(index=1, id="b", name="bash"),
         part(index=0, arguments=PYTEST), part(index=1, arguments=RUFF)],
        # parts with the id only, interleaved
        [part(id="a", name="bash"), part(id="b", name="bash"),
         part(id="a", arguments=PYTEST), part(id="b", arguments=RUFF)],
        # interleaved parts with ids and one wrong index
        [part(index=0, id="a", name="bash"), part(index=0, id="b", name="bash"),
         part(index=0, id="a", arguments=PYTEST), part(index=0, id="b", arguments=RUFF)],
        # the same index, and parts without an id
        [part(index=0, id="a", name="bash"), part(index=0, arguments=PYTEST),
         part(index=0, id="b", name="bash"), part(index=0, arguments=RUFF)],
    ],
)  # fmt: skip
def test_parallel_tool_calls_are_kept_apart(parts: list[bytes]) -> None:
    assert recorded(*parts, ENDS, event(usage=USAGE), DONE)["tools"] == ["pytest", "ruff"]


def test_a_server_is_asked_directly_whatever_proxy_the_environment_has() -> None:
    """A proxy would get the API key. Nothing listens on port 9. The proxies of the environment are
    read when a process begins."""
    env = {name: value for name, value in os.environ.items() if name.lower() != "no_proxy"}
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        env[name] = "http://127.0.0.1:9"
    with threaded(serving(Server())) as url:
        asked = subprocess.run(
            [sys.executable, "-c", ASK, url], env=env, capture_output=True, text=True, timeout=60
        )
    assert (asked.returncode, asked.stdout) == (0, "1\n"), asked.stderr
