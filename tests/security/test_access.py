"""Access to a gateway: who may use it, and as which program."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest
from aiohttp import web
from yarl import URL

from harness.gateway import Gateway, serve_gateway
from harness.gateway.access import MAX_ACTIVE_REQUESTS, TOKEN, Access, check_listen
from harness.gateway.forwarding import MAX_ANSWER_BYTES
from harness.gateway.serving import program_socket
from harness.replay.live_server import LiveServer
from tests.gateway.upstream import Upstream, serving
from tests.harness.in_process import bench
from tests.lines import into
from tests.loopback import on_loopback
from tests.sentences import mentions

ASK = {"model": "m", "messages": [{"role": "user", "content": "fix the bug"}]}
SECRET = "a-token-of-24-characters"  # noqa: S105


@asynccontextmanager
async def guarded(
    access: Access, upstream: Upstream, api_key: str | None = None
) -> AsyncIterator[tuple[str, list[Any]]]:
    lines: list[Any] = []
    async with serving(upstream) as server:
        gateway = Gateway([LiveServer(server, tagged=True)], into(lines), api_key, access=access)
        async with serve_gateway(gateway) as url:
            yield url, lines


@asynccontextmanager
async def answering(
    handler: Callable[[web.Request], Awaitable[web.StreamResponse]],
) -> AsyncIterator[str]:
    """Serve every path with the same handler."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)
    async with on_loopback(app) as url:
        yield url


async def request(
    url: str, key: str | None = None, method: str = "POST", **headers: str
) -> tuple[int, dict[str, Any]]:
    headers_sent = {name.replace("_", "-"): value for name, value in headers.items()}
    if key is not None:
        headers_sent["Authorization"] = f"Bearer {key}"
    async with (
        aiohttp.ClientSession() as session,
        session.request(
            method, url, data=orjson.dumps(ASK) if method == "POST" else None, headers=headers_sent
        ) as answer,
    ):
        return answer.status, orjson.loads(await answer.read() or b"{}")


def statuses(access: Access, cases: Mapping[str, tuple[str, dict[str, str]]]) -> dict[str, int]:
    """Send each case's request (a path and options of `request`); return the statuses."""

    async def go() -> dict[str, int]:
        async with guarded(access, Upstream()) as (url, _):
            return {
                case: (await request(url + path, **options))[0]
                for case, (path, options) in cases.items()
            }

    return asyncio.run(go())


CHAT = "/v1/chat/completions"


def test_on_loopback_local_programs_need_no_token() -> None:
    assert statuses(
        Access(),
        {
            "plain": (CHAT, {}),
            "by name": (CHAT, {"Host": "localhost:9000"}),
            "in IPv6": (CHAT, {"Host": "[::1]:9000"}),
            "with the server's key": (CHAT, {"key": "sk-1"}),
        },
    ) == {"plain": 200, "by name": 200, "in IPv6": 200, "with the server's key": 200}


def test_web_pages_cannot_send_requests_through_their_visitors_browser() -> None:
    """A page can send a form or a fetch to any port of its visitor's machine (Origin), and can let
    its own name resolve to 127.0.0.1 (DNS rebinding, Host)."""
    assert statuses(
        Access(),
        {
            "fetch": (CHAT, {"Origin": "https://page.example"}),
            "sandboxed frame": (CHAT, {"Origin": "null"}),
            "no-cors": ("/v1/models", {"method": "GET", "Sec_Fetch_Site": "cross-site"}),
            "preflight": (CHAT, {"method": "OPTIONS", "Origin": "https://page.example"}),
            "rebound": (CHAT, {"Host": "page.example:9000"}),
            "rebound to all": ("/v1/models", {"method": "GET", "Host": "127.0.0.1.page.example"}),
            "ends a program": ("/programs/p", {"method": "DELETE", "Host": "page.example"}),
        },
    ) == dict.fromkeys(
        [
            *("fetch", "sandboxed frame", "no-cors", "preflight"),
            *("rebound", "rebound to all", "ends a program"),
        ],
        403,
    )


def test_a_token_is_required_on_every_path_if_one_is_set() -> None:
    wrong = {"key": SECRET[:-1]}
    assert statuses(
        Access(SECRET),
        {
            "right": (CHAT, {"key": SECRET}),
            "right, of a page that knows it": (
                CHAT,
                {"key": SECRET, "Origin": "https://a.example"},
            ),
            "none": (CHAT, {}),
            "wrong": (CHAT, wrong),
            "not ASCII": (CHAT, {"key": "ключ"}),
            "models": ("/v1/models", {"method": "GET", **wrong}),
            "as a program": (f"/programs/p{CHAT}", wrong),
            "end of a program": ("/programs/p", {"method": "DELETE", **wrong}),
            "no such path": ("/admin", {"method": "GET", **wrong}),
        },
    ) == {
        **dict.fromkeys(["right", "right, of a page that knows it"], 200),
        **dict.fromkeys(["none", "wrong", "not ASCII", "models", "as a program"], 401),
        **dict.fromkeys(["end of a program", "no such path"], 401),
    }


def test_without_the_token_a_client_learns_only_that_the_gateway_is_up() -> None:
    async def go() -> tuple[int, bytes]:
        async with (
            guarded(Access(SECRET), Upstream()) as (url, _),
            aiohttp.ClientSession() as session,
            session.get(f"{url}/health") as answer,
        ):
            return answer.status, await answer.read()

    assert asyncio.run(go()) == (200, b"ok\n")


def test_the_token_is_not_forwarded_to_the_server() -> None:
    async def go(api_key: str | None) -> dict[str, str]:
        upstream = Upstream()
        async with guarded(Access(SECRET), upstream, api_key) as (url, _):
            await request(url + CHAT, SECRET, api_key=SECRET, x_api_key=SECRET)
        return upstream.headers[0]

    assert SECRET not in str(asyncio.run(go(None)))
    assert asyncio.run(go("sk-mine"))["Authorization"] == "Bearer sk-mine"


def test_the_token_may_be_the_key_of_anthropics_clients() -> None:
    async def go() -> list[int]:
        upstream = Upstream()
        async with guarded(Access(SECRET), upstream) as (url, _):
            answers = [await request(url + CHAT, x_api_key=key) for key in (SECRET, "wrong")]
            assert SECRET not in str(upstream.headers)
        return [status for status, _ in answers]

    assert asyncio.run(go()) == [200, 401]


def test_a_programs_key_is_valid_only_for_that_program_whatever_the_request_claims() -> None:
    access = Access(keyed=True)

    async def go() -> tuple[list[int], list[str]]:
        with access.issue_key("p1") as one, access.issue_key("p2"):
            async with guarded(access, Upstream()) as (url, lines):
                found = [
                    await request(f"{url}/programs/p1{CHAT}", one),
                    await request(url + CHAT, one, X_Program_Id="p2"),
                    await request(f"{url}/programs/p2{CHAT}", one),
                    await request(f"{url}/programs/p2", one, "DELETE"),
                    await request(url + CHAT, "none"),
                    await request(url + CHAT),
                    await request(f"{url}/v1/models", method="GET"),
                ]
                return [status for status, _ in found], [line["program_id"] for line in lines]

    assert asyncio.run(go()) == ([200, 200, 403, 403, 401, 401, 401], ["p1", "p1"])


def test_a_programs_key_is_invalid_after_the_program_ends() -> None:
    access = Access(keyed=True)
    with access.issue_key("p1") as key:
        pass
    assert statuses(access, {"late": (CHAT, {"key": key})}) == {"late": 401}


def test_the_program_of_a_request_is_determined_before_its_body_arrives() -> None:
    """A key that expires meanwhile must not let the request name another program."""
    access = Access(keyed=True)

    async def go() -> tuple[int, list[str]]:
        async with guarded(access, Upstream()) as (url, lines):
            issued, body_started = access.issue_key("p1"), asyncio.Event()
            headers = {"Authorization": f"Bearer {issued.__enter__()}", "X-Program-Id": "victim"}

            async def slowly() -> AsyncIterator[bytes]:
                body = orjson.dumps(ASK)
                yield body[:10]
                body_started.set()
                while access._keys:
                    await asyncio.sleep(0.01)
                yield body[10:]

            async def end() -> None:
                await body_started.wait()
                while not access._active["p1"]:
                    await asyncio.sleep(0.01)
                issued.__exit__(None, None, None)

            async with aiohttp.ClientSession() as session:
                ending = asyncio.create_task(end())
                async with session.post(url + CHAT, data=slowly(), headers=headers) as answer:
                    await ending
                    return answer.status, [line["program_id"] for line in lines]

    assert asyncio.run(go()) == (200, ["p1"])
    assert not access._active, "no request is counted as active"


def test_a_connection_whose_program_has_ended_cannot_act_for_any_program(tmp_path: Path) -> None:
    """A connection outlives the socket through which it was opened."""

    async def go() -> tuple[int, int]:
        gateway = Gateway([LiveServer("http://127.0.0.1:9")], print)
        path = tmp_path / "s"
        async with serve_gateway(gateway):
            listening = program_socket(gateway, path, "p1")
            await listening.__aenter__()
            connector = aiohttp.UnixConnector(str(path))
            async with aiohttp.ClientSession(connector=connector) as session:
                async with session.delete("http://localhost/programs/p1") as answer:
                    before = answer.status
                gateway.access.programs_by_socket.clear()
                async with session.delete("http://localhost/programs/victim") as answer:
                    after = answer.status
            await listening.__aexit__(None, None, None)
        return before, after

    assert asyncio.run(go()) == (204, 403)


def test_the_number_of_concurrent_requests_of_a_program_is_limited() -> None:
    """Requests beyond the limit are refused before their bodies are read."""
    access = Access(keyed=True)

    async def go() -> list[int]:
        with access.issue_key("flood") as flood, access.issue_key("other") as other:
            async with guarded(access, Upstream(chunk_s=0.5)) as (url, lines):
                streamed = orjson.dumps({**ASK, "stream": True})

                async def stream(key: str) -> int:
                    headers = {"Authorization": f"Bearer {key}"}
                    async with (
                        aiohttp.ClientSession() as session,
                        session.post(url + CHAT, data=streamed, headers=headers) as answer,
                    ):
                        await answer.read()
                        return answer.status

                all_at_once = [stream(flood) for _ in range(MAX_ACTIVE_REQUESTS + 20)]
                found = await asyncio.gather(*all_at_once, stream(other))
                assert found.pop() == 200
                assert len(lines) == MAX_ACTIVE_REQUESTS + 1
                assert await stream(flood) == 200, "after the others have finished"
                return found

    found = asyncio.run(go())
    assert (found.count(200), found.count(429)) == (MAX_ACTIVE_REQUESTS, 20)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        *(
            ("POST", path)
            for path in ("files", "load_lora_adapter", "batches", "responses/compact", "models")
        ),
        *(
            ("GET", path)
            for path in ("files/a", "models/%2e%2e/%2e%2e/pause", "models/..%2f..%2fx")
        ),
        *(("GET", "models//x"), ("DELETE", "models/mine"), ("GET", "models/.")),
        *(("POST", "embeddings/.."), ("POST", "embeddings%3Fx"), ("POST", "chat/completions/")),
    ],
)
def test_no_other_path_of_the_server_is_reachable_with_the_users_key(
    method: str, path: str
) -> None:
    async def go() -> tuple[int, list[str]]:
        forwarded: list[str] = []

        async def note(request: web.Request) -> web.Response:
            forwarded.append(request.raw_path)
            return web.Response()

        async with (
            answering(note) as server,
            serve_gateway(Gateway([LiveServer(server)], print, "sk-mine")) as url,
            aiohttp.ClientSession() as session,
            session.request(method, URL(f"{url}/v1/{path}", encoded=True)) as answer,
        ):
            return answer.status, forwarded

    assert asyncio.run(go()) == (404, [])


def test_a_client_cannot_end_a_turn_of_another_program_at_the_server() -> None:
    async def go() -> Any:
        upstream = Upstream()
        async with (
            guarded(Access(), upstream) as (url, _),
            aiohttp.ClientSession() as session,
        ):
            xargs = {"ended": "other", "warm_up": 1, "program_id": "other", "is_last": 1}
            body = {**ASK, "vllm_xargs": xargs}
            async with session.post(f"{url}/programs/p{CHAT}", json=body) as answer:
                await answer.read()
        return upstream.bodies[0]["vllm_xargs"]

    assert asyncio.run(go()) == {"program_id": "p", "turn": 0, "is_last": 1}


@pytest.mark.parametrize(
    ("address", "token", "message"),
    [
        ("0.0.0.0", None, rf"accessible from other machines; set {TOKEN} to a secret"),  # noqa: S104
        ("::", None, "accessible from other machines"),
        ("192.168.0.1", None, "accessible from other machines"),
        ("everywhere", SECRET, "not an IP address of this machine"),
        ("127.0.0.1", "short", f"{TOKEN}: must have at least 16 characters, all ASCII"),
    ],
)
def test_a_token_is_required_outside_loopback(
    address: str, token: str | None, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        check_listen(address, token)


@pytest.mark.parametrize(
    ("address", "token"),
    [("127.0.0.1", None), ("127.0.0.2", None), ("::1", None), ("0.0.0.0", SECRET)],  # noqa: S104
)
def test_loopback_needs_no_token_and_other_addresses_are_allowed_with_one(
    address: str, token: str | None
) -> None:
    check_listen(address, token)


def test_bench_gateway_refuses_to_listen_on_all_addresses_without_a_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(TOKEN, raising=False)
    code, out, err = bench("gateway", "http://127.0.0.1:9", "--listen", "0.0.0.0")  # noqa: S104
    assert (code, out) == (2, "")
    assert mentions(err, "--listen 0.0.0.0", "other machines", TOKEN)
    assert err.count("\n") == 1


@pytest.mark.parametrize("streamed", [True, False])
def test_an_endless_answer_is_truncated(streamed: bool) -> None:
    """Otherwise a server could fill the memory of the gateway."""

    async def endless(request: web.Request) -> web.StreamResponse:
        await request.read()
        kind = "text/event-stream" if streamed else "application/json"
        response = web.StreamResponse(headers={"Content-Type": kind})
        await response.prepare(request)
        piece = b'data: {"choices": [], "filler": "' + b"x" * (1 << 20) + b'"}\n\n'
        with suppress(ConnectionError):
            while True:
                await response.write(piece)
        return response

    async def go() -> tuple[int, str]:
        lines: list[Any] = []
        passed = 0
        async with (
            answering(endless) as server,
            serve_gateway(Gateway([LiveServer(server)], into(lines))) as url,
            aiohttp.ClientSession() as session,
        ):
            with suppress(aiohttp.ClientPayloadError):
                async with session.post(url + CHAT, json=ASK) as answer:
                    async for piece in answer.content.iter_any():
                        passed += len(piece)
        return passed, lines[0]["error"]

    passed, error = asyncio.run(go())
    assert passed <= MAX_ANSWER_BYTES
    assert mentions(error, "no answer", "longer than 64 MiB")
