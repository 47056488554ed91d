"""A gateway under the code that runs agents: lateness, ended programs, events, sockets, keys."""

from __future__ import annotations

import asyncio
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import aiohttp
import orjson
import pytest

from harness.gateway import Gateway, serve_gateway
from harness.gateway.serving import program_socket
from harness.replay.live_server import LiveServer
from tests.gateway.test_proxy import ASK, post
from tests.gateway.upstream import Upstream, serving
from tests.lines import Line, into

Scenario = Callable[[str, Gateway], Awaitable[None]]


def lines_of(scenario: Scenario, upstream: Upstream | None = None, **options: Any) -> list[Line]:
    lines: list[Line] = []

    async def go() -> None:
        async with serving(upstream or Upstream()) as server:
            events = options.pop("events", None)
            gateway = Gateway([LiveServer(server, events, tagged=True)], into(lines), **options)
            async with serve_gateway(gateway) as url:
                await scenario(f"{url}/programs/p/v1/chat/completions", gateway)

    asyncio.run(go())
    return lines


def test_a_first_turn_is_due_at_the_scheduled_start_of_its_program() -> None:
    async def scenario(url: str, gateway: Gateway) -> None:
        gateway.set_lateness("p", 0.25)
        await post(url, ASK)
        await post(url, ASK)

    first, second = lines_of(scenario)
    assert first["sent_at_s"] - first["scheduled_at_s"] == pytest.approx(0.25)
    assert second["sent_at_s"] == second["scheduled_at_s"]


def test_a_program_ended_between_two_turns_leaves_a_last_record_with_the_reason() -> None:
    upstream = Upstream()

    async def scenario(url: str, gateway: Gateway) -> None:
        await post(url, ASK)
        await gateway.abandon("p", "over its time limit of 900 s")

    _, last = lines_of(scenario, upstream)
    assert (last["program_id"], last["turn"]) == ("p", 1)
    assert last["error"] == "over its time limit of 900 s"
    assert last["sent_at_s"] == last["finished_at_s"]
    assert (last["prompt_tokens"], last["output_tokens"]) == (0, 0)
    assert upstream.bodies[-1]["vllm_xargs"] == {"ended": "p"}


def test_a_program_without_requests_leaves_one_record() -> None:
    async def scenario(_url: str, gateway: Gateway) -> None:
        await gateway.abandon("p", "exit code 1 before its first request")

    (line,) = lines_of(scenario)
    assert (line["turn"], line["error"]) == (0, "exit code 1 before its first request")


def test_a_running_request_ends_with_the_reason_and_the_server_stops_generating() -> None:
    upstream = Upstream(words="w " * 500, chunk_s=0.01)

    async def scenario(url: str, gateway: Gateway) -> None:
        async with aiohttp.ClientSession() as session:
            answer = await session.post(url, json={**ASK, "stream": True})
            await answer.content.readany()
            await gateway.abandon("p", "over its time limit of 900 s")
            with pytest.raises(aiohttp.ClientError):
                await answer.read()
        for _ in range(200):
            if upstream.aborted:
                break
            await asyncio.sleep(0.02)

    (line,) = lines_of(scenario, upstream)
    assert (line["turn"], line["error"]) == (0, "over its time limit of 900 s")
    assert upstream.aborted == 1


def test_an_id_used_again_after_its_program_ended_is_a_new_program() -> None:
    async def scenario(url: str, gateway: Gateway) -> None:
        await post(url, ASK)
        await gateway.abandon("p", "crashed")
        await post(url, ASK)

    assert [line["turn"] for line in lines_of(scenario)] == [0, 1, 0]


def test_the_socket_of_a_program_serves_only_that_program_and_is_removed_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / ("deep" * 30) / "gateway.sock"  # longer than a socket's address can be
    path.parent.mkdir()
    monkeypatch.chdir(path.parent)
    lines: list[Line] = []
    answers: list[int] = []

    async def go() -> int:
        async with serving(Upstream()) as server:
            gateway = Gateway([LiveServer(server, tagged=True)], into(lines))
            async with serve_gateway(gateway), program_socket(gateway, path, "p"):
                mode = stat.S_IMODE(path.stat().st_mode)
                connector = aiohttp.UnixConnector(path.name)
                async with aiohttp.ClientSession(connector=connector) as session:
                    for prefix in ("/programs/p", "", "/programs/other"):
                        url = f"http://inside{prefix}/v1/chat/completions"
                        async with session.post(url, json=ASK) as answer:
                            answers.append(answer.status)
                    async with session.delete("http://inside/programs/other") as answer:
                        answers.append(answer.status)
            return mode

    assert asyncio.run(go()) == 0o600
    assert not path.exists()
    assert answers == [200, 200, 403, 403]
    assert [(line["program_id"], line["turn"]) for line in lines] == [("p", 0), ("p", 1)]


def test_an_existing_file_at_the_sockets_path_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("mine")

    async def go() -> None:
        gateway = Gateway([LiveServer("http://x", tagged=True)], print)
        async with serve_gateway(gateway), program_socket(gateway, path, "p"):
            raise AssertionError("it should not listen there")

    with pytest.raises(OSError, match="in use"):
        asyncio.run(go())
    assert path.read_text() == "mine"


def test_records_have_the_engines_times_on_the_cells_clock(tmp_path: Path) -> None:
    """The engine admits the turn 2 s after its arrival."""
    events = tmp_path / "events.jsonl"
    events.write_text("")
    seen: list[Line] = []
    at_s = 100.0

    async def scenario(url: str, gateway: Gateway) -> None:
        gateway.set_origin(at_s)
        with events.open("ab") as file:
            for name, t, fields in (
                ("arrival", 5.0, {}),
                ("waiting_to_running", 7.0, {"hit_length": 32}),
            ):
                event = {"event": name, "t": at_s + t, "program_id": "p", "turn": 0, **fields}
                file.write(orjson.dumps(event) + b"\n")
        await post(url, ASK)
        with events.open("ab") as file:  # after the last turn
            file.write(
                orjson.dumps({"event": "unpinned", "t": at_s + 9.0, "program_id": "p", "turn": 0})
            )
            file.write(b"\n")

    (line,) = lines_of(scenario, events=events, on_event=into(seen))
    assert (line["queue_s"], line["device_hit_tokens"]) == (pytest.approx(2.0), 32)
    assert [(event["event"], event["t"]) for event in seen] == [
        ("arrival", pytest.approx(5.0)),
        ("waiting_to_running", pytest.approx(7.0)),
        ("unpinned", pytest.approx(9.0)),
    ]


@pytest.mark.parametrize("fault", ["401", "engine error"])
def test_a_key_that_the_server_repeats_is_neither_recorded_nor_forwarded(
    fault: str,
) -> None:
    async def scenario(url: str, _gateway: Gateway) -> None:
        _, body, _ = await post(url, ASK)
        assert b" Bearer ***" in body
        if fault == "401":
            embeddings = url.replace("chat/completions", "embeddings")
            assert await post(embeddings, ASK) == (401, body, ANY)

    (line,) = lines_of(scenario, Upstream(fault=fault), api_key="sk-secret")
    assert "Bearer ***" in line["error"]
