"""Guided replay: the engine computes the recorded turns; the agent gets the recorded answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import orjson
import pytest

from harness.gateway import Gateway, Guide, serve_gateway
from harness.replay.live_server import LiveServer
from tests.gateway.test_proxy import post
from tests.lines import Line, into
from tests.live.replaying import replayed
from tests.live.server import Server, serving
from traces import Message, Program, Turn

ASK = {"model": "m", "messages": [{"role": "user", "content": "whatever the agent says"}]}
BASH = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
EDITOR = {"properties": {"command": {"type": "string", "enum": ["view", "create"]}}}
FINISH = {"type": "object", "properties": {"message": {"type": "string"}}}
MESSAGES = [
    Message("system", "be brief"),
    Message("user", "fix it"),
    Message("assistant", "I look.\n\n```bash\nls src\n```"),
    Message("user", "a.py"),
    Message("assistant", "Not sure."),
    Message("user", "give one command"),
    Message("assistant", "Done."),
]
TURNS = (
    Turn(20, 6, 0, ("ls",), "ls src"),
    Turn(36, 6, 26),
    Turn(52, 6, 42, ("echo",), "echo COMPLETE"),
)
PROGRAM = Program("p", TURNS, messages=tuple(MESSAGES), prompt_messages=(2, 4, 6))


def offered(**functions: Any) -> dict[str, Any]:
    tools = [
        {"type": "function", "function": {"name": name, "parameters": schema}}
        for name, schema in functions.items()
    ]
    return {**ASK, "tools": tools}


@asynccontextmanager
async def guided(
    server: Server, *programs: Program
) -> AsyncIterator[tuple[str, list[Line], Gateway]]:
    """Yield the gateway's base URL, the records of finished turns, and the gateway."""
    lines: list[Line] = []
    guide = Guide(programs, range(2**31), 0)
    async with serving(server) as url:
        gateway = Gateway([LiveServer(url)], into(lines), guide=guide)
        async with serve_gateway(gateway) as base_url:
            yield base_url, lines, gateway


def answers(*bodies: dict[str, Any], server: Server | None = None) -> tuple[list[Any], list[Line]]:
    """Send a program's requests in order; return their (status, body) and the records."""

    async def go() -> tuple[list[Any], list[Line]]:
        async with guided(server or Server(), PROGRAM) as (url, lines, _):
            received = []
            for body in bodies:
                status, answer, _ = await post(f"{url}/programs/p/v1/chat/completions", body)
                received.append((status, orjson.loads(answer)))
            return received, lines

    return asyncio.run(go())


def message(answer: tuple[int, Any]) -> Any:
    assert answer[0] == 200, answer
    return answer[1]["choices"][0]["message"]


def test_the_engine_gets_the_same_requests_as_in_a_replay() -> None:
    """The requests have the same tokens, apart from token ids that the engine draws randomly."""

    class Constant(Server):
        def __post_init__(self) -> None:
            self._rng.randrange = lambda _n: 7  # type: ignore[method-assign,assignment,misc]

    guide, replay = Constant(), Constant()
    answers(ASK, ASK, ASK, server=guide)
    replayed([PROGRAM], replay)
    assert guide.prompts == replay.prompts
    assert guide.arguments == replay.arguments
    assert [len(guide.prompts["p", i]) for i in range(3)] == [20, 36, 52]
    assert guide.arguments["p", 2]["is_last"] == 1


def test_a_turns_record_has_the_fields_of_a_replay_and_a_measured_gap() -> None:
    async def go() -> list[Line]:
        async with guided(Server(), PROGRAM) as (url, lines, _):
            await post(f"{url}/programs/p/v1/chat/completions", ASK)
            await asyncio.sleep(0.1)
            await post(f"{url}/programs/p/v1/chat/completions", ASK)
            return lines

    lines = asyncio.run(go())
    as_replayed, _ = replayed([PROGRAM], Server())
    assert set(lines[0]) == set(as_replayed["p", 0])
    token_counts = [
        (line["prompt_tokens"], line["output_tokens"], line["kept_tokens"]) for line in lines
    ]
    assert token_counts == [(20, 6, 0), (36, 6, 26)]
    assert [line["tools"] for line in lines] == [["ls"], []]
    assert lines[0]["device_hit_tokens"] == 7
    assert lines[1]["gap_s"] >= 0.1
    assert lines[1]["gap_s"] == pytest.approx(lines[1]["sent_at_s"] - lines[0]["finished_at_s"])
    assert lines[1]["gap_provenance"] == "measured"
    assert all(line["error"] is None for line in lines)


def test_an_agent_that_reads_text_gets_the_recorded_text() -> None:
    found, _ = answers(ASK, ASK, ASK)
    assert [message(answer) for answer in found] == [
        {"role": "assistant", "content": MESSAGES[index].content} for index in (2, 4, 6)
    ]
    assert found[0][1]["usage"] == {
        "prompt_tokens": 20,
        "completion_tokens": 6,
        "total_tokens": 26,
    }


def test_an_agent_that_offers_a_shell_gets_the_recorded_command_as_its_call() -> None:
    ask = offered(str_replace_editor=EDITOR, bash=BASH)
    (first, second, third), _ = answers(ask, ask, ask)
    (call,) = message(first)["tool_calls"]
    assert call["function"] == {"name": "bash", "arguments": '{"command":"ls src"}'}
    assert first[1]["choices"][0]["finish_reason"] == "tool_calls"
    assert "tool_calls" not in message(second), "the recording ran no command here"
    assert message(third)["tool_calls"][0]["function"]["arguments"] == '{"command":"echo COMPLETE"}'


def test_a_turn_without_a_command_is_a_thought_if_the_agent_has_a_think_tool() -> None:
    """OpenHands takes an answer without a call for the last one."""
    ask = offered(terminal=BASH, think=FINISH)
    (first, second, _), _ = answers(ask, ask, ask)
    assert message(first)["tool_calls"][0]["function"]["name"] == "terminal"
    (call,) = message(second)["tool_calls"]
    assert call["function"]["name"] == "think"
    assert orjson.loads(call["function"]["arguments"]) == {"thought": MESSAGES[4].content}


def test_a_last_turn_calls_finish_if_the_agent_has_that_tool() -> None:
    ask = offered(terminal=BASH, finish=FINISH)
    (first, _, last), _ = answers(ask, ask, ask)
    assert message(first)["tool_calls"][0]["function"]["name"] == "terminal"
    (call,) = message(last)["tool_calls"]
    assert call["function"] == {"name": "finish", "arguments": '{"message":"Done."}'}


def test_a_stream_has_the_same_content_in_chunks() -> None:
    async def go() -> tuple[bytes, bytes]:
        body = {**offered(bash=BASH), "stream": True, "stream_options": {"include_usage": True}}
        async with guided(Server(), PROGRAM) as (url, _, _):
            _, chat, _ = await post(f"{url}/programs/p/v1/chat/completions", body)
            text_body = {"model": "m", "prompt": "x", "stream": True}
            _, text, _ = await post(f"{url}/programs/p/v1/completions", text_body)
            return chat, text

    chat, text = (
        [event.removeprefix(b"data: ") for event in stream.split(b"\n\n") if event]
        for stream in asyncio.run(go())
    )
    assert chat[-1] == text[-1] == b"[DONE]"
    *chunks, usage = map(orjson.loads, chat[:-1])
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None, None, "tool_calls"]
    assert chunks[0]["choices"][0]["delta"]["content"] == MESSAGES[2].content
    call = chunks[1]["choices"][0]["delta"]["tool_calls"][0]
    assert (call["index"], call["function"]["name"]) == (0, "bash")
    assert usage["usage"]["total_tokens"] == 26
    assert orjson.loads(text[0])["choices"][0]["text"] == "Not sure."


def test_requests_without_a_recorded_turn_are_refused_and_leave_no_record() -> None:
    async def go() -> tuple[list[tuple[int, bytes]], int]:
        async with guided(Server(), replace(PROGRAM, turns=TURNS[:1])) as (url, lines, _):
            prefixes = ("/programs/p", "/programs/p", "/programs/q", "")
            paths = [f"{prefix}/v1/chat/completions" for prefix in prefixes]
            found = [await post(url + path, ASK) for path in (*paths, "/programs/p/v1/messages")]
            return [(status, body) for status, body, _ in found], len(lines)

    found, turns = asyncio.run(go())
    assert [status for status, _ in found] == [200, 400, 400, 400, 404]
    assert b"the recorded program has no turn 1" in found[1][1]
    assert b"no recorded program has the id q" in found[2][1]
    assert b"guided replay needs the program in the URL" in found[3][1]
    assert b"supports chat/completions, completions, embeddings, messages/count_" in found[4][1]
    assert orjson.loads(found[1][1])["error"]["type"] == "invalid_request_error"
    assert turns == 1


def test_concurrent_requests_of_one_program_are_consecutive_turns() -> None:
    async def go() -> list[Line]:
        async with guided(Server(think_s=0.1), PROGRAM) as (url, lines, _):
            await asyncio.gather(
                *[post(f"{url}/programs/p/v1/chat/completions", ASK) for _ in range(2)]
            )
            return lines

    first, second = asyncio.run(go())
    assert (first["turn"], second["turn"]) == (0, 1)
    assert second["sent_at_s"] >= first["finished_at_s"]


def test_a_program_stops_at_a_turn_that_fails() -> None:
    found, lines = answers(ASK, ASK, ASK, server=Server(faults={("p", 1): "500"}))
    assert [status for status, _ in found] == [200, 502, 400]
    assert "the server answered 500: EngineDeadError" in found[1][1]["error"]["message"]
    assert "the recorded program stopped at turn 1" in found[2][1]["error"]["message"]
    assert [line["turn"] for line in lines] == [0, 1]
    assert lines[1]["error"].startswith("the server answered 500")


def test_a_program_id_that_ended_starts_again_at_turn_0() -> None:
    async def go() -> list[Line]:
        server = Server()
        async with guided(server, PROGRAM) as (url, lines, gateway):
            for _ in range(2):
                await post(f"{url}/programs/p/v1/chat/completions", ASK)
                await gateway.end("p")
            return lines

    assert [line["turn"] for line in asyncio.run(go())] == [0, 0]


def test_a_response_that_the_recording_lacks_is_empty() -> None:
    """mini-swe-agent records only its complaint about an answer that it cannot parse."""
    messages = (Message("user", "fix it"), Message("user", "give exactly one command"))
    program = Program("p", (Turn(20, 6),), messages=messages, prompt_messages=(1,))

    async def go() -> Any:
        async with guided(Server(), program) as (url, _, _):
            return (await post(f"{url}/programs/p/v1/chat/completions", ASK))[:2]

    status, answer = asyncio.run(go())
    assert message((status, orjson.loads(answer))) == {"role": "assistant", "content": ""}


def test_programs_without_messages_cannot_guide_agents() -> None:
    with pytest.raises(ValueError, match="program p: its trace has no messages"):
        Guide([replace(PROGRAM, messages=(), prompt_messages=())], range(9), 0)
