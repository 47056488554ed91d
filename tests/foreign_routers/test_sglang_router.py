"""What sglang-router does with our programs, in front of servers that log arrivals."""

from __future__ import annotations

import asyncio
import dataclasses
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from harness.replay.identity import CLOSE_SESSION
from harness.replay.live import replay_live
from harness.replay.live_server import OPENAI, LiveServer, Service
from harness.replay.sglang import SGLANG_APIS
from servers.basics.errors import ServerFailed
from servers.foreign_routers.process import launch_router
from servers.routing import ForeignRouter
from tests.bench.trivial_server import trivial_server
from tests.foreign_routers.replaying import Replayed, deployment, installation, replayed
from tests.lines import Line, into
from tests.live.replaying import program
from tests.processes import session_of
from tests.sentences import mentions
from tests.sglang.server import Sglang, serving
from traces import Message, Program

WORDS = "please repair the parser of the configuration file "


def conversation(name: str, turns: int, gap_s: float = 0.0) -> Program:
    """Return a program whose prompts have 2, 4, 6, … messages, which repeat the earlier ones."""
    messages = [Message(("user", "assistant")[k % 2], f"{name} {k} {WORDS}") for k in range(9)]
    return dataclasses.replace(
        program(name, turns, gap_s),
        messages=tuple(messages),
        prompt_messages=tuple(2 * k for k in range(1, turns + 1)),
    )


def behind(policy: str, programs: list[Program], folder: Path) -> Replayed:
    apis = OPENAI._replace(text=OPENAI.plain)
    return replayed(policy, programs, folder, project="sglang-router", text=True, apis=apis)


def test_manual_knows_our_programs_by_their_routing_key(tmp_path: Path) -> None:
    """The chance that all of 24 programs have one server is below 1 in a million."""
    names = [f"p{k}" for k in range(24)]
    done = behind("manual", [conversation(name, 3) for name in names], tmp_path)
    servers = {name: set(done.served(name)) for name in names}
    assert {len(found) for found in servers.values()} == {1}
    assert set().union(*servers.values()) == {0, 1}
    # It passes on `vllm_xargs`, by which our plug-in and the records know the turn of a program.
    assert {line["error"] for line in done.lines} == {None}
    assert all(servers[line["program_id"]] == {line["replica"]} for line in done.lines)
    # Its own metrics: 24 new keys, and 48 turns with a key that it knew.
    assert done.metrics["smg_manual_policy_cache_entries"] == 24
    assert done.metrics['smg_manual_policy_branch_total{branch="vacant"}'] == 24
    assert done.metrics['smg_manual_policy_branch_total{branch="occupied_hit"}'] == 48
    assert not any("no_routing_id" in name for name in done.metrics)
    # Of the identities that every turn carries, this one reaches the servers.
    headers = {name.lower() for name in done.servers[0].headers.popitem()[1]}
    assert "x-smg-routing-key" in headers
    assert not headers & {"x-program-id", "x-session-id", "x-dynamo-session-id"}


def test_cache_aware_returns_to_the_server_that_has_the_prompt(tmp_path: Path) -> None:
    done = behind("cache_aware", [conversation(name, 4) for name in ("a", "b", "c")], tmp_path)
    assert {len(set(done.served(name))) for name in ("a", "b", "c")} == {1}


def test_token_ids_do_not_pass(tmp_path: Path) -> None:
    """Why they are refused before anything starts."""
    refused = replayed("random", [program("a", 1)], tmp_path, project="sglang-router")
    assert mentions(str(refused.lines[0]["error"]), "prompt: data did not match")


def test_sglang_behind_it_gets_token_ids_and_the_ends_of_sessions(tmp_path: Path) -> None:
    """Servers that answer as SGLang's code does, since SGLang needs a GPU."""
    servers, lines = [Sglang(), Sglang()], list[Line]()
    found, router = installation("sglang-router"), ForeignRouter("sglang-router", "manual")

    async def replay() -> None:
        async with AsyncExitStack() as stack:
            urls = [await stack.enter_async_context(serving(each)) for each in servers]
            log = tmp_path / "log"
            process = await asyncio.to_thread(launch_router, router, found, deployment(*urls), log)
            stack.push_async_callback(asyncio.to_thread, process.stop)
            behind = tuple(LiveServer(url, session_ends=(CLOSE_SESSION,)) for url in urls)
            await replay_live(
                [program("a", 2), program("b", 2)],
                [0.0, 0.0],
                None,
                Service(
                    [LiveServer(process.base_url, behind=behind, apis=SGLANG_APIS)],
                    "m",
                    range(5000, 6000),
                    seed=0,
                ),
                on_turn=into(lines),
            )

    asyncio.run(replay())
    assert [line["error"] for line in lines] == [None] * 4
    # It drops fields that it does not know, but not its own header.
    assert not any("session_id" in body for server in servers for body in server.bodies)
    keys = [headers["x-smg-routing-key"] for server in servers for headers in server.headers]
    assert sorted(keys) == ["a", "a", "b", "b"]
    assert [sorted(server.ended) for server in servers] == [["a", "b"]] * 2
    assert sorted(line["device_hit_tokens"] for line in lines) == [0, 0, 15, 15]


def test_it_is_ready_when_it_has_found_all_servers_and_leaves_no_process(tmp_path: Path) -> None:
    found, router = installation("sglang-router"), ForeignRouter("sglang-router", "power_of_two")
    with trivial_server() as one, trivial_server() as two:
        with launch_router(router, found, deployment(one, two), tmp_path / "log") as process:
            assert process.failure() is None
        assert session_of(process.pid) == []
        missing = deployment(one, "http://127.0.0.1:9")
        with pytest.raises(ServerFailed, match=r"was not healthy after 1 s: "):
            launch_router(router, found, missing, tmp_path / "log", ready_within_s=1.0)


def test_a_router_that_cannot_start_fails_with_the_cause_in_its_log(tmp_path: Path) -> None:
    found, router = installation("sglang-router"), ForeignRouter("sglang-router", "random")
    with pytest.raises(ServerFailed) as failed:
        launch_router(router, found, deployment("nonsense"), tmp_path / "log")
    cause = "sglang-router:random", "code 1", "ValueError", "'worker_url': nonsense"
    assert mentions(str(failed.value), *cause)
