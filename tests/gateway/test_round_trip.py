"""Recording and replaying gives the same programs, turns, tokens, gaps and bytes. Recording with
messages and guided replay gives the same answers."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from harness.gateway import Gateway, Guide, serve_gateway
from harness.gateway.recording import recording
from harness.replay.live_server import LiveServer
from tests.gateway.test_guided import BASH, offered
from tests.gateway.test_proxy import post
from tests.gateway.upstream import Upstream, serving
from tests.harness import in_process
from tests.live import server as live
from traces import Message, Program, read_traces
from traces.formats.native import write_programs

SYSTEM = {"role": "system", "content": "be brief and to the point"}


async def agent(base_url: str, name: str, turns: int, pause_s: float, **ask: Any) -> list[Any]:
    """Run a chat in which each observation is the turn's number; return the answers."""
    messages = [SYSTEM, {"role": "user", "content": f"the task of {name}"}]
    answers = []
    for turn in range(turns):
        body = {**offered(bash=BASH), **ask, "messages": messages}
        _, content, _ = await post(f"{base_url}/programs/{name}/v1/chat/completions", body)
        answer = orjson.loads(content)["choices"][0]["message"]
        answers.append(answer)
        messages = [*messages, answer, {"role": "user", "content": f"observation {turn}"}]
        await asyncio.sleep(pause_s)
    return answers


def recorded(folder: Path, upstream: Upstream, keeps_messages: bool = False) -> list[list[Any]]:
    """Record three concurrent agents; return their answers."""

    async def go() -> list[list[Any]]:
        async with serving(upstream) as server:
            servers = [LiveServer(server, tagged=True)]
            async with recording(servers, folder, keeps_messages=keeps_messages) as running:
                agents = [agent(running.base_url, f"a{n}", 3, 0.02 * n) for n in range(3)]
                answers = await asyncio.gather(*agents)
            assert running.write_trace() is not None
        return answers

    return asyncio.run(go())


@pytest.mark.usefixtures("forked_workers")
def test_a_recording_replayed_in_virtual_time_gives_the_same_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded(tmp_path / "o", Upstream(chunk_s=0.01))
    monkeypatch.chdir(tmp_path)
    options = ("--arrivals", "recorded", "--policies", "fcfs", "--out", "run")
    code, _, err = in_process.bench("sweep", "--traces", "o/trace.jsonl", *options)
    assert code == 0, err
    (lines,) = (tmp_path / "run").glob("*/turns.jsonl.zst")
    read, source = read_traces(lines), tmp_path / "o/turns.jsonl"
    assert not read.repairs
    again = tuple(replace(program, source=source.name) for program in read.programs)
    assert again == tuple(read_traces(source).programs)
    assert [len(program.turns) for program in again] == [3, 3, 3]
    assert all(program.prefix is not None for program in again)
    write_programs(tmp_path / "again.jsonl", again)
    assert (tmp_path / "again.jsonl").read_bytes() == (tmp_path / "o/trace.jsonl").read_bytes()


def test_messages_are_recorded_only_with_the_option(tmp_path: Path) -> None:
    recorded(tmp_path / "silent", Upstream())
    assert b"the task of" not in (tmp_path / "silent/turns.jsonl").read_bytes()
    recorded(tmp_path / "o", Upstream(calls_tool=True), keeps_messages=True)
    loaded = read_traces(tmp_path / "o/trace.jsonl", messages=True)
    program = next(program for program in loaded.programs if program.id == "a1")
    assert program.messages == (
        Message("system", "be brief and to the point"),
        Message("user", "the task of a1"),
        Message("assistant", ""),
        Message("user", "observation 0"),
        Message("assistant", ""),
        Message("user", "observation 1"),
        Message("assistant", ""),
    )
    assert program.prompt_messages == (2, 4, 6)
    assert [turn.command for turn in program.turns] == ["cd src && pytest -q"] * 3


def test_a_rewritten_history_is_reported_and_keeps_the_order_of_responses(tmp_path: Path) -> None:
    async def go() -> None:
        async with serving(Upstream()) as server:
            servers = [LiveServer(server, tagged=True)]
            async with recording(servers, tmp_path / "o", keeps_messages=True) as running:
                for task in ("first", "in short"):
                    ask = {"model": "m", "messages": [SYSTEM, {"role": "user", "content": task}]}
                    await post(f"{running.base_url}/programs/p/v1/chat/completions", ask)

    asyncio.run(go())
    loaded = read_traces(tmp_path / "o/turns.jsonl", messages=True)
    assert "rewrote its history" in loaded.repairs[0].reason
    (program,) = loaded.programs
    assert [message.content for message in program.messages] == [
        *("be brief and to the point", "first", "all done here"),
        *("in short", "all done here"),
    ]
    assert program.prompt_messages == (2, 4)


def guided(programs: tuple[Program, ...], **ask: Any) -> list[list[Any]]:
    async def go() -> list[list[Any]]:
        async with live.serving(live.Server()) as server:
            guide = Guide(programs, range(2**31), 0)
            gateway = Gateway([LiveServer(server, tagged=True)], print, guide=guide)
            async with serve_gateway(gateway) as base_url:
                agents = [agent(base_url, program.id, 3, 0.0, **ask) for program in programs]
                return await asyncio.gather(*agents)

    return asyncio.run(go())


def test_guided_by_its_recording_an_agent_gets_the_same_answers(
    tmp_path: Path,
) -> None:
    recorded_answers = recorded(tmp_path / "o", Upstream(words="cd src"), keeps_messages=True)
    programs = read_traces(tmp_path / "o/trace.jsonl", messages=True).programs
    assert guided(programs) == recorded_answers


def test_recorded_tool_calls_are_replayed_as_tool_calls(tmp_path: Path) -> None:
    recorded_answers = recorded(tmp_path / "o", Upstream(calls_tool=True), keeps_messages=True)
    programs = read_traces(tmp_path / "o/trace.jsonl", messages=True).programs
    for recorded_chat, guided_chat in zip(recorded_answers, guided(programs), strict=True):
        for before, after in zip(recorded_chat, guided_chat, strict=True):
            (call,), (again,) = before["tool_calls"], after["tool_calls"]
            assert again["function"]["name"] == call["function"]["name"]
            assert orjson.loads(again["function"]["arguments"]) == orjson.loads(
                call["function"]["arguments"]
            )
