"""Clients say who they are in the ways of several systems, and servers are told in all of them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest

from harness.gateway import Gateway, serve_gateway
from harness.gateway.client_request import Caller, identify_caller
from harness.gateway.recording import backends
from harness.gateway.serving import program_socket
from harness.replay.identity import (
    IDENTITY_HEADERS,
    SESSION_ENDS,
    SessionEnd,
    identity_headers,
    session_ends,
)
from harness.replay.live import replay_live
from harness.replay.live_server import LiveServer, Service
from tests.gateway.test_proxy import ASK, post
from tests.gateway.upstream import Upstream, gateway_to, serving
from tests.lines import Line, into
from tests.live.replaying import program
from tests.live.server import Server
from tests.live.server import serving as serving_live
from tests.threaded import threaded
from traces import Fork

CHAT = "v1/chat/completions"
RELEASE, CLOSE = SESSION_ENDS


@pytest.mark.parametrize(
    ("headers", "body", "caller"),
    [
        ({"X-Dynamo-Session-Id": "s"}, {}, Caller("s", None)),
        (
            {"X-Dynamo-Session-Id": "s", "X-Dynamo-Parent-Session-Id": "p"},
            {},
            Caller("s", "p"),
        ),
        (
            {"X-Dynamo-Session-Id": "s", "X-Dynamo-Session-Final": "true"},
            {},
            Caller("s", None, is_final=True),
        ),
        ({"X-Claude-Code-Session-Id": "s"}, {}, Caller("s", None)),
        ({"Session-Id": "s"}, {}, Caller("s", None)),
        (
            {"X-Claude-Code-Session-Id": "s", "X-Claude-Code-Agent-Id": "a"},
            {},
            Caller("s:a", "s"),
        ),
        ({"Session-Id": "s", "Thread-Id": "s"}, {}, Caller("s", None)),
        ({"Session-Id": "s", "Thread-Id": "t"}, {}, Caller("s:t", "s")),
        ({"Session_Id": "s"}, {}, Caller("s", None)),
        ({"X-Session-Affinity": "s"}, {}, Caller("s", None)),
        ({"X-SMG-Routing-Key": "s"}, {}, Caller("s", None)),
        ({"X-LLM-D-Inference-Fairness-Id": "tenant"}, {}, Caller("tenant", None)),
        (
            {"X-LLM-D-Inference-Fairness-Id": "tenant", "X-Session-Id": "s"},
            {},
            Caller("s", None),
        ),
        ({"X-Job-Id": "j", "X-Session-Id": "s"}, {}, Caller("s", "j")),
        ({}, {"program_id": "s"}, Caller("s", None)),
        ({}, {"session_id": "s"}, Caller("s", None)),
        (
            {},
            {"vllm_xargs": {"agentic_context": {"program_id": "s", "parent_program_id": "p"}}},
            Caller("s", "p"),
        ),
    ],
)
def test_a_request_names_its_program_as_other_routers_expect(
    headers: dict[str, str], body: dict[str, Any], caller: Caller
) -> None:
    assert identify_caller(None, headers, body) == caller


def test_the_headers_of_a_turn_are_read_back_as_the_same_program() -> None:
    assert identify_caller(None, identity_headers("p", "p"), {}) == Caller("p", None)
    of_sub_agent = identity_headers("p/1", "p", is_final=True)
    assert identify_caller(None, of_sub_agent, {}) == Caller("p/1", "p", is_final=True)


def test_an_id_that_no_header_can_have_is_percent_encoded() -> None:
    assert identity_headers("a b%", "a b%")["X-Session-Id"] == "a b%"
    assert identity_headers("jöb\r\nX: y", "j")["X-Session-Id"] == "j%C3%B6b%0D%0AX: y"


def test_servers_get_the_program_in_all_headers_whatever_the_client_said() -> None:
    async def go() -> list[dict[str, str]]:
        upstream = Upstream()
        async with gateway_to(upstream) as (url, _):
            wrong = {"X-Session-Id": "other", "x-dynamo-session-final": "true", "X-Mine": "kept"}
            await post(f"{url}/programs/p/{CHAT}", ASK, headers=wrong)
            job = {"X-Job-Id": "p"}
            await post(f"{url}/programs/sub/{CHAT}", ASK, headers=job)
        sent = [{k.lower(): v for k, v in headers.items()} for headers in upstream.headers]
        return [headers for headers in sent if "x-program-id" in headers]

    first, sub_agent = asyncio.run(go())
    lower = {k.lower(): v for k, v in identity_headers("p", "p", is_final=True).items()}
    assert {k: v for k, v in first.items() if k in IDENTITY_HEADERS} == lower
    assert first["x-mine"] == "kept"
    lower = {k.lower(): v for k, v in identity_headers("sub", "p").items()}
    assert {k: v for k, v in sub_agent.items() if k in IDENTITY_HEADERS} == lower
    assert sub_agent["x-dynamo-parent-session-id"] == "p"


def test_vllm_does_not_get_the_context_that_only_its_router_understands() -> None:
    context = {"agentic_context": {"program_id": "p"}, "tools": "ls"}

    async def go() -> Any:
        upstream = Upstream()
        async with gateway_to(upstream) as (url, _):
            await post(f"{url}/{CHAT}", {**ASK, "vllm_xargs": context})
        return upstream.bodies[0]["vllm_xargs"]

    assert asyncio.run(go()) == {"tools": "ls", "program_id": "p", "turn": 0}


@pytest.mark.parametrize("end", SESSION_ENDS)
def test_a_server_that_lets_clients_end_sessions_gets_the_field_and_the_end(
    end: SessionEnd,
) -> None:
    """It is asked once whether it does. To other servers the fields would be unknown."""
    upstream, plain = Upstream(session_end=end), Upstream()
    serve, serve_plain = serving(upstream), serving(plain)

    async def go(servers: list[LiveServer]) -> None:
        for server in servers:
            async with serve_gateway(Gateway([server], lambda _: None)) as url:
                await post(f"{url}/programs/p/{CHAT}", {**ASK, end.field: "mine"})
                async with aiohttp.ClientSession() as session:
                    await session.delete(f"{url}/programs/p")

    with threaded(serve) as url, threaded(serve_plain) as plain_url:
        servers = backends([url, plain_url])
        assert [server.session_ends for server in servers] == [(end,), ()]
        asyncio.run(go(servers))
    assert upstream.bodies[0][end.field] == "p"
    assert upstream.ended == ["turnstile-probe", "p"]
    assert end.field not in plain.bodies[0]
    assert plain.ended == []


def test_an_unreachable_server_knows_no_way_to_end_a_session() -> None:
    assert session_ends("http://127.0.0.1:9") == ()


@pytest.mark.parametrize(
    ("path", "body"),
    [("/programs/release", {"program_id": "p"}), ("/close_session", {"session_id": "p"})],
)
def test_a_client_ends_its_program_as_at_other_routers(path: str, body: dict[str, str]) -> None:
    async def go() -> list[Any]:
        upstream = Upstream()
        async with gateway_to(upstream) as (url, _):
            await post(f"{url}/programs/p/{CHAT}", ASK)
            known, unknown = [await post(f"{url}{path}", body) for _ in range(2)]
            assert [known[0], unknown[0]] == [200, 200]
            assert orjson.loads(known[1]) == {**body, "released": True}
            assert orjson.loads(unknown[1]) == {**body, "released": False}
        return [sent["vllm_xargs"] for sent in upstream.bodies]

    assert asyncio.run(go()) == [{"program_id": "p", "turn": 0}, {"ended": "p"}]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"{", "unexpected end of data"),
        (b"{}", "/programs/release needs the field program_id"),
        (b"[]", "/programs/release needs the field program_id"),
        (b'{"program_id": {}}', "program_id: a program's id is text, not dict"),
    ],
)
def test_an_end_without_a_valid_program_is_refused(body: bytes, message: str) -> None:
    async def go() -> tuple[int, bytes]:
        async with gateway_to(Upstream()) as (url, _):
            return (await post(f"{url}/programs/release", body))[:2]

    status, answer = asyncio.run(go())
    assert (status, message in orjson.loads(answer)["error"]["message"]) == (400, True)


def test_a_program_with_a_socket_of_its_own_ends_no_other_one(tmp_path: Path) -> None:
    async def go() -> list[int]:
        statuses = []
        async with serving(Upstream()) as server:
            gateway = Gateway([LiveServer(server, tagged=True)], lambda _: None)
            path = tmp_path / "gateway.sock"
            async with serve_gateway(gateway) as url, program_socket(gateway, path, "mine"):
                await post(f"{url}/programs/other/{CHAT}", ASK)
                connector = aiohttp.UnixConnector(str(path))
                async with aiohttp.ClientSession(connector=connector) as session:
                    for name in ("other", "mine"):
                        body = {"program_id": name}
                        async with session.post("http://x/programs/release", json=body) as answer:
                            statuses.append(answer.status)
                assert gateway._turns.programs.ids() == ["other"]
        return statuses

    assert asyncio.run(go()) == [403, 200]


def test_the_request_that_says_so_is_the_last_one_of_its_program() -> None:
    async def go() -> list[Line]:
        upstream = Upstream()
        async with gateway_to(upstream) as (url, lines):
            headers = {"x-dynamo-session-id": "s"}
            await post(f"{url}/{CHAT}", ASK, headers=headers)
            await post(f"{url}/{CHAT}", ASK, headers={**headers, "x-dynamo-session-final": "true"})
            while upstream.bodies[-1]["vllm_xargs"] != {"ended": "s"}:
                await asyncio.sleep(0.01)
            await post(f"{url}/{CHAT}", ASK, headers=headers)
            return lines

    assert [(line["program_id"], line["turn"]) for line in asyncio.run(go())] == [
        ("s", 0),
        ("s", 1),
        ("s", 0),
    ]


def test_a_replay_says_who_its_programs_are() -> None:
    server = Server()

    async def go() -> None:
        async with serving_live(server) as url:
            await replay_live(
                [program("p", 2), program("p/1", 1, fork=Fork("p", 0))],
                [0.0],
                None,
                Service([LiveServer(url)], "m", range(2**31), seed=0),
                on_turn=lambda _: None,
            )

    asyncio.run(go())
    for turn, expected in {
        ("p", 0): identity_headers("p", "p"),
        ("p", 1): identity_headers("p", "p"),
        ("p/1", 0): identity_headers("p/1", "p"),
    }.items():
        sent = server.headers[turn]
        assert {k: v for k, v in sent.items() if k.lower() in IDENTITY_HEADERS} == expected


def test_a_replay_through_a_gateway_ends_its_programs_there() -> None:
    """The gateway lets clients end programs, so the replay asks it to, by the ids that it sent."""
    lines: list[Line] = []
    server = Server()

    async def go() -> list[str]:
        async with serving_live(server) as url:
            gateway = Gateway([LiveServer(url, tagged=True)], into(lines))
            async with serve_gateway(gateway) as base_url:
                known = await asyncio.to_thread(session_ends, base_url)
                await replay_live(
                    [program("p", 2), program("p/1", 1, fork=Fork("p", 0))],
                    [0.0],
                    None,
                    Service([LiveServer(base_url, session_ends=known)], "m", range(2**31), seed=0),
                    on_turn=lambda _: None,
                )
                assert known == (RELEASE, CLOSE)
                return gateway._turns.programs.ids()

    assert asyncio.run(go()) == []
    assert {(line["program_id"], line["job_id"]) for line in lines} == {("p", "p"), ("p/1", "p")}
    assert sorted(server.ended) == ["p", "p/1"]
