"""Agents' own client libraries through the gateway: what they get, and what is recorded.

The answers are those of vLLM 0.32 (tests/real/test_launcher.py), with a command in the
arguments.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import orjson
import pytest

from tests.gateway.agent_apis import (
    ARGUMENTS,
    MESSAGES_ASK,
    MESSAGES_STREAM,
    MESSAGES_WHOLE,
    PARAMETERS,
    RESPONSES_ASK,
    RESPONSES_STREAM,
    RESPONSES_WHOLE,
    sse,
)
from tests.gateway.test_proxy import post
from tests.gateway.upstream import Upstream, gateway_to
from tests.lines import Line

if TYPE_CHECKING:  # They take seconds to import, which each worker of pytest would do.
    import anthropic
    import openai

CASES = [
    ("messages", MESSAGES_ASK, MESSAGES_STREAM, MESSAGES_WHOLE),
    ("responses", RESPONSES_ASK, RESPONSES_STREAM, RESPONSES_WHOLE),
]


@pytest.mark.parametrize(("path", "ask", "stream", "whole"), CASES)
def test_the_apis_of_claude_code_and_codex_pass_unchanged_and_are_recorded_as_chats_are(
    path: str, ask: dict[str, Any], stream: bytes, whole: bytes
) -> None:
    async def go() -> tuple[list[bytes], list[Line], list[dict[str, Any]]]:
        upstream = Upstream(stream=stream, whole=whole)
        async with gateway_to(upstream) as (url, lines):
            answers = [
                (await post(f"{url}/programs/p/v1/{path}", {**ask, "stream": streams}))[1]
                for streams in (True, False)
            ]
            return answers, lines, upstream.bodies

    answers, (streamed, at_once), bodies = asyncio.run(go())
    assert answers == [stream, whole]
    for line in (streamed, at_once):
        counts = line["prompt_tokens"], line["device_hit_tokens"], line["output_tokens"]
        assert (*counts, line["tools"], line["error"]) == (49, 32, 80, ["ls"], None)
    assert streamed["first_token_at_s"] is not None
    xargs = {"vllm_xargs": {"program_id": "p", "turn": 0}}
    assert bodies[0] == {**ask, "stream": True, **xargs}


@pytest.mark.parametrize(
    ("path", "event", "error"),
    [
        ("messages", {"type": "error", "error": {"message": "engine dead"}}, "engine dead"),
        ("responses", {"type": "error", "message": "engine dead"}, "engine dead"),
        (
            "responses",
            {"type": "response.failed", "response": {"error": {"message": "no memory"}}},
            "no memory",
        ),
        ("messages", {"type": "ping"}, "the stream was cut"),
        ("responses", {"type": "response.in_progress"}, "the stream was cut"),
    ],
)
def test_a_stream_that_fails_or_stops_is_a_failed_turn(
    path: str, event: dict[str, Any], error: str
) -> None:
    async def go() -> Line:
        async with gateway_to(Upstream(stream=sse([event]))) as (url, lines):
            await post(f"{url}/v1/{path}", {**MESSAGES_ASK, **RESPONSES_ASK, "stream": True})
            return lines[0]

    assert asyncio.run(go())["error"] == error


@asynccontextmanager
async def clients(
    upstream: Upstream,
) -> AsyncIterator[tuple[openai.AsyncOpenAI, anthropic.AsyncAnthropic, list[Line]]]:
    import anthropic
    import openai

    async with (
        gateway_to(upstream) as (url, lines),
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as of_openai,
        anthropic.AsyncAnthropic(base_url=url, api_key="none", max_retries=0) as of_anthropic,
    ):
        yield of_openai, of_anthropic, lines


def test_claude_code_and_its_library_send_one_program_whose_next_prompt_keeps_the_last() -> None:
    tools: Any = [{"name": "bash", "input_schema": PARAMETERS}]
    headers = {"X-Claude-Code-Session-Id": "s"}

    def system(request: int) -> Any:
        billing = {"type": "text", "text": f"x-anthropic-billing-header: cch={request};"}
        return [billing, {"type": "text", "text": "be brief"}]

    async def go() -> list[Line]:
        async with clients(Upstream(stream=MESSAGES_STREAM)) as (_, client, lines):
            messages: list[Any] = [{"role": "user", "content": "list"}]
            for turn in range(2):
                async with client.messages.stream(
                    model="m",
                    max_tokens=9,
                    system=system(turn),
                    messages=messages,
                    tools=tools,
                    extra_headers=headers,
                ) as stream:
                    answer = await stream.get_final_message()
                result = {"type": "tool_result", "tool_use_id": "t1", "content": "a.py"}
                messages += [
                    {"role": "assistant", "content": answer.content},
                    {"role": "user", "content": [result]},
                ]
                await asyncio.sleep(0.05)
            return lines

    first, second = asyncio.run(go())
    assert [line["program_id"] for line in (first, second)] == ["s", "s"]
    assert second["kept_tokens"] == 48, "129 tokens of the last turn, but one less than the prompt"
    assert second["gap_s"] >= 0.05
    assert first["system"]["id"].startswith("system:")


def test_codex_and_its_library_send_one_program_whose_next_prompt_keeps_the_last() -> None:
    tools: Any = [{"type": "function", "name": "bash", "parameters": PARAMETERS}]
    headers = {"Session-Id": "s", "Thread-Id": "s"}

    async def go() -> tuple[str, list[Line]]:
        async with clients(Upstream(stream=RESPONSES_STREAM)) as (client, _, lines):
            given: list[Any] = [{"role": "user", "content": "list"}]
            for _turn in range(2):
                events = await client.responses.create(
                    model="m",
                    instructions="x",
                    input=given,
                    tools=tools,
                    stream=True,
                    extra_headers=headers,
                )
                last: Any = [event async for event in events][-1]
                output = {"type": "function_call_output", "call_id": "t1", "output": "a.py"}
                given += [*last.response.output, output]
                await asyncio.sleep(0.05)
            return last.response.output[0].arguments, lines

    arguments, (first, second) = asyncio.run(go())
    assert arguments == ARGUMENTS
    assert [line["program_id"] for line in (first, second)] == ["s", "s"]
    assert (second["kept_tokens"], second["queue_s"]) == (48, 0.0005)
    assert second["gap_s"] >= 0.05


def test_the_openai_library_streams_tools_embeds_and_gets_errors_as_from_the_server() -> None:
    import openai

    async def go() -> tuple[str, int, str, list[Line]]:
        upstream = Upstream(calls_tool=True)
        async with clients(upstream) as (client, _, lines):
            names = ""
            async for chunk in await client.chat.completions.create(
                model="m", messages=[{"role": "user", "content": "list"}], stream=True
            ):
                for call in chunk.choices[0].delta.tool_calls or ():
                    names += (call.function and call.function.name) or ""
            models = [model.id async for model in client.models.list()]
            upstream.whole = orjson.dumps({"object": "list", "data": [{"embedding": [0.5]}]})
            await client.embeddings.create(model="m", input="x", encoding_format="float")
            upstream.whole, upstream.fault = b"", "429"
            with pytest.raises(openai.RateLimitError, match="slow down"):
                await client.responses.create(model="m", input="list")
            return names, len(models), upstream.paths[1], lines

    names, models, embedded, (chat, failed) = asyncio.run(go())
    assert (names, models, embedded) == ("bash", 2, "/v1/embeddings")
    assert (chat["tools"], chat["error"], failed["error"]) == (["cd", "pytest"], None, "slow down")


Streams = Callable[["openai.AsyncOpenAI", "anthropic.AsyncAnthropic"], Awaitable[Any]]
ASK: Any = [{"role": "user", "content": "list"}]


@pytest.mark.parametrize(
    "streams",
    [
        lambda client, _: client.chat.completions.create(model="m", messages=ASK, stream=True),
        lambda client, _: client.responses.create(model="m", input="list", stream=True),
        lambda _, client: client.messages.create(
            model="m", messages=ASK, max_tokens=9, stream=True
        ),
    ],
)
def test_a_client_that_cancels_is_recorded_as_such_and_the_server_stops(streams: Streams) -> None:
    async def go() -> tuple[int, str | None]:
        events = [{"type": "response.output_text.delta", "delta": "x"}, {"type": "ping"}]
        upstream = Upstream(words="w " * 500, chunk_s=0.02, stream=sse(events * 250))
        async with clients(upstream) as (of_openai, of_anthropic, lines):
            answer = await streams(of_openai, of_anthropic)
            await anext(aiter(answer))
            await answer.close()
            while not lines or not upstream.aborted:
                await asyncio.sleep(0.01)
            return upstream.aborted, lines[0]["error"]

    assert asyncio.run(go()) == (1, "the client disconnected")
