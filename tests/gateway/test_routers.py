"""A router in front of the servers of a gateway, and what it learns about prompts and loads."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

import aiohttp
import orjson
import pytest

from harness.gateway import Gateway, serve_gateway
from harness.gateway.answers import ForwardedAnswer
from harness.gateway.client_request import Caller
from harness.gateway.conversations import prompt_of
from harness.gateway.programs import GatewayPrograms
from harness.gateway.recording import backends, router_for
from harness.gateway.turns import estimated_tokens, runs_of_prompt
from harness.replay.http import client_session
from harness.replay.live_server import LiveServer
from harness.replay.load_reports import LoadReports
from servers.basics.errors import InvalidInput
from servers.routers.base import Replica, RoutedTurn, Router
from servers.routers.least_loaded import LeastLoaded
from servers.routers.prefix_aware import PrefixAware
from servers.routers.round_robin import RoundRobin
from servers.routers.thunderagent import ThunderAgent
from tests.gateway.test_proxy import ASK, next_ask, post
from tests.gateway.upstream import Upstream, gateway_to, serving
from tests.lines import Line, into
from tests.sentences import mentions
from tests.threaded import threaded

CHAT = "v1/chat/completions"


def test_streams_pass_unchanged_and_records_have_the_server_and_the_time_held_back() -> None:
    ask = {**ASK, "stream": True}

    async def go() -> tuple[list[bytes], bytes, list[Line]]:
        upstreams = [Upstream(), Upstream()]
        async with gateway_to(*upstreams, router=RoundRobin) as (url, lines):
            answers = [(await post(f"{url}/programs/p/{CHAT}", ask))[1] for _ in range(3)]
            direct = b"".join(b"data: " + e + b"\n\n" for e in upstreams[0]._events(ask))
            return answers, direct, lines

    answers, direct, lines = asyncio.run(go())
    assert answers == [direct] * 3
    assert [(line["replica"], line["held_s"]) for line in lines] == [(0, 0), (1, 0), (0, 0)]


def test_a_gateway_to_one_server_records_no_time_held_back() -> None:
    async def go() -> Line:
        async with gateway_to(Upstream()) as (url, lines):
            await post(f"{url}/{CHAT}", ASK)
            return lines[0]

    assert "held_s" not in asyncio.run(go())


def test_each_server_that_served_a_program_learns_of_its_end() -> None:
    async def go() -> list[Any]:
        upstreams = [Upstream(), Upstream(), Upstream()]
        async with gateway_to(*upstreams, router=RoundRobin) as (url, _):
            for _ in range(2):
                await post(f"{url}/programs/p/{CHAT}", ASK)
            async with aiohttp.ClientSession() as session:
                await session.delete(f"{url}/programs/p")
        return [upstream.bodies[-1]["vllm_xargs"] for upstream in upstreams if upstream.bodies]

    assert asyncio.run(go()) == [{"ended": "p"}, {"ended": "p"}]


Scenario = Callable[[str, list[Line], asyncio.Event], Awaitable[None]]


def with_thunderagent(scenario: Scenario) -> list[Line]:
    """Run a scenario with room for one program: `ASK` counts 100 tokens and some more. The event
    is set when a turn is held back."""

    async def go() -> list[Line]:
        held = asyncio.Event()

        class Observed(ThunderAgent):
            def route(self, turn: RoutedTurn, now_s: float) -> int | None:
                replica = super().route(turn, now_s)
                if replica is None:
                    held.set()
                return replica

        router = partial(Observed, interval_s=0.05)
        servers = Upstream(), Upstream(fault="429")
        async with gateway_to(*servers, router=router, kv_tokens=130) as (url, lines):
            await post(f"{url}/programs/b/{CHAT}", ASK)  # takes server 0, the first with most room
            await post(f"{url}/programs/c/{CHAT}", ASK)  # takes server 1
            await scenario(url, lines, held)
        return lines

    return asyncio.run(go())


def test_a_program_that_does_not_fit_is_held_back_until_another_one_ends() -> None:
    async def scenario(url: str, lines: list[Line], held: asyncio.Event) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(post(f"{url}/programs/held/{CHAT}", ASK))
            await held.wait()
            await asyncio.sleep(0.2)
            assert len(lines) == 2
            async with aiohttp.ClientSession() as session:
                await session.delete(f"{url}/programs/b")

    started_s = time.monotonic()
    *_, held = with_thunderagent(scenario)
    assert (held["program_id"], held["replica"], held["error"]) == ("held", 0, None)
    assert 0.2 <= held["held_s"] < time.monotonic() - started_s
    assert held["finished_at_s"] - held["sent_at_s"] > held["held_s"]


def test_a_client_that_leaves_while_its_turn_is_held_back_is_recorded() -> None:
    async def scenario(url: str, lines: list[Line], held: asyncio.Event) -> None:
        asking = asyncio.create_task(post(f"{url}/programs/gone/{CHAT}", ASK))
        await held.wait()
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        while len(lines) < 3:
            await asyncio.sleep(0.01)
        async with aiohttp.ClientSession() as session:
            for name in ("gone", "b", "c"):
                await session.delete(f"{url}/programs/{name}")
        await post(f"{url}/programs/next/{CHAT}", ASK)

    *_, gone, following = with_thunderagent(scenario)
    assert (gone["program_id"], gone["error"]) == ("gone", "the client disconnected")
    assert (following["program_id"], following["error"]) == ("next", None)


def test_turns_go_on_when_a_server_dies_under_a_router() -> None:
    async def go() -> list[tuple[int, bool]]:
        lines: list[Line] = []
        async with serving(Upstream()) as alive:
            servers = [
                LiveServer("http://127.0.0.1:9", tagged=True),
                LiveServer(alive, tagged=True),
            ]
            gateway = Gateway(servers, into(lines), router=LeastLoaded)
            async with serve_gateway(gateway) as url:
                for name in ("a", "b", "a", "b"):
                    await post(f"{url}/programs/{name}/{CHAT}", ASK)
        return [(line["replica"], line["error"] is None) for line in lines]

    assert asyncio.run(go()) == [(0, False), (1, True), (1, True), (1, True)]


class Picky(Router):
    name = "picky"

    def route(self, turn: RoutedTurn, now_s: float) -> int | None:
        if turn.program_id == "raises":
            raise ValueError("not this one")
        return 5 if turn.program_id == "wrong" else 0


def test_a_router_that_fails_for_one_request_fails_that_request_with_its_name() -> None:
    async def go() -> tuple[list[tuple[int, bytes]], list[Line]]:
        async with gateway_to(Upstream(), Upstream(), router=Picky) as (url, lines):
            names = ("raises", "wrong", "fine")
            answers = [await post(f"{url}/programs/{name}/{CHAT}", ASK) for name in names]
        return [(status, body) for status, body, _ in answers], lines

    answers, lines = asyncio.run(go())
    messages = [orjson.loads(body).get("error", {}).get("message") for _, body in answers]
    assert [status for status, _ in answers] == [500, 500, 200]
    assert messages == [line["error"] for line in lines]
    failed, wrong, fine = messages
    assert mentions(failed, "router picky", "`route`", "ValueError: not this one")
    assert mentions(wrong, "router picky", "turn of wrong", "replica 5", "2")
    assert fine is None


def test_a_prompt_goes_where_most_of_it_was_seen() -> None:
    """Half of a first prompt is not known, so the second program goes to the other, emptier server;
    the third one repeats 40 of 44 characters of the first."""

    def ask(*texts: str) -> dict[str, Any]:
        return {"model": "m", "messages": [{"role": "user", "content": text} for text in texts]}

    async def go() -> list[int]:
        servers = Upstream(), Upstream()
        async with gateway_to(*servers, router=PrefixAware, kv_tokens=1000) as (url, lines):
            for name, texts in (
                ("a", ("x" * 40, "one")),
                ("b", ("y" * 40, "two")),
                ("c", ("x" * 40, "three")),
                ("b", ("y" * 40, "two", "more")),
            ):
                await post(f"{url}/programs/{name}/{CHAT}", ask(*texts))
        return [line["replica"] for line in lines]

    assert asyncio.run(go()) == [0, 1, 0, 1]


def message_length(role: str, text: str) -> int:
    return len(orjson.dumps([role, text, []]))


def test_the_length_of_a_prompt_is_estimated_from_the_last_turn_of_its_program() -> None:
    """A first prompt has a token for four characters. Then the server counted 100 tokens for it, so
    that the part that is new has as many characters per token."""
    programs, first = GatewayPrograms(), prompt_of(ASK)
    program = programs.start_turn(Caller("p", None), first, 0.0).program
    length = message_length("user", "fix the bug")
    assert first.ends == (length,)
    assert estimated_tokens(program, first) == round(length / 4)
    usage = {"prompt_tokens": 100, "completion_tokens": 30}
    programs.record_answer(program, first, ForwardedAnswer(texts=["done"], usage=usage))
    again = prompt_of(next_ask("done", "ok"))
    new = message_length("user", "ok")
    assert estimated_tokens(program, again) == round(130 + new * 100 / length)
    other = prompt_of(next_ask("not what it said", "ok"))
    new += message_length("assistant", "not what it said")
    assert estimated_tokens(program, other) == round(100 + new * 100 / length)
    unrelated = prompt_of({"messages": [{"role": "user", "content": "x" * 50}]})
    expected = round(message_length("user", "x" * 50) * 100 / length)
    assert estimated_tokens(program, unrelated) == expected


def test_the_length_of_a_prompt_of_token_ids_is_known() -> None:
    programs, prompt = GatewayPrograms(), prompt_of({"prompt": list(range(600))})
    program = programs.start_turn(Caller("p", None), prompt, 0.0).program
    assert estimated_tokens(program, prompt) == 600
    assert [end for _, end in runs_of_prompt(prompt)] == [256, 600]


def test_equal_beginnings_are_equal_runs_whatever_follows() -> None:
    short, long = prompt_of(ASK), prompt_of(next_ask("done", "ok"))
    assert runs_of_prompt(long)[:1] == runs_of_prompt(short)
    assert runs_of_prompt(long)[-1][1] == round(long.ends[-1] / 4)


# What servers report --------------------------------------------------------------------------

PAGE = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 2.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="m"} 4.0
vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 9.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.5
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.25
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="100"} 1.0
"""


def test_a_load_report_is_read_from_the_servers_metrics() -> None:
    """Two engines: turns add up, and KV usage is the mean, 3/8 of 1600 tokens."""

    async def go() -> Sequence[Replica]:
        replicas = [Replica(0, 1600), Replica(1, 1600), Replica(2, 1600)]
        async with (
            serving(Upstream(metrics=PAGE)) as reporting,
            serving(Upstream()) as silent,
            client_session() as session,
        ):
            urls = [reporting, silent, "http://127.0.0.1:9"]
            read = LoadReports(session, [LiveServer(url) for url in urls], None, lambda: 7.0)
            for replica in replicas:
                await read(replica)
        return replicas

    first, *others = asyncio.run(go())
    assert (first.running, first.waiting, first.used_tokens) == (5, 4, 600)
    assert first.reported_s == 7.0
    assert [(each.running, each.used_tokens, each.reported_s) for each in others] == [(0, 0, 0)] * 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("stiky", "no router is called 'stiky'; did you mean sticky?"),
        ("sticky,round-robin", "--router sticky,round-robin: a gateway has one router; give one"),
        ("thunderagent", "--router thunderagent: needs the size of each server's KV memory, and"),
        ("least-loaded(load=kv)", "has no vllm:cache_config_info; choose another router"),
    ],
)
def test_a_router_that_the_servers_do_not_suit_is_refused_before_the_gateway_starts(
    text: str, message: str
) -> None:
    reports, silence = serving(Upstream(metrics=PAGE)), serving(Upstream())
    with threaded(reports) as reporting, threaded(silence) as silent:
        servers = backends([reporting, silent])
        assert [server.kv_tokens for server in servers] == [1600, 0]
        with pytest.raises(InvalidInput) as refused:
            router_for(text, servers)
        assert message in str(refused.value)


def test_a_router_that_needs_costs_is_refused_for_servers_at_urls() -> None:
    servers = [LiveServer(f"http://127.0.0.1:{port}", kv_tokens=100) for port in (8, 9)]
    with pytest.raises(InvalidInput, match="prefills and decode steps"):
        router_for("program-scheduling", servers)


def test_a_router_in_front_of_one_server_is_refused() -> None:
    with pytest.raises(InvalidInput, match="--router sticky: distributes turns over several"):
        router_for("sticky", [LiveServer("http://127.0.0.1:9", tagged=True)])
