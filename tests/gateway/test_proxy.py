"""Requests and answers that pass through the gateway, and the record of each turn."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import aiohttp
import orjson
import pytest
from yarl import URL

from harness.gateway import Gateway, serve_gateway
from harness.replay.live_server import LiveServer
from tests.gateway.upstream import Upstream, gateway_to, serving
from tests.lines import Line, into
from tests.sentences import mentions

ASK = {"model": "m", "messages": [{"role": "user", "content": "fix the bug"}]}


def next_ask(answer: str, observation: str, ask: dict[str, Any] = ASK) -> dict[str, Any]:
    following = [{"role": "assistant", "content": answer}, {"role": "user", "content": observation}]
    return {**ask, "messages": [*ask["messages"], *following]}


async def post(url: str, body: Any, **options: Any) -> tuple[int, bytes, dict[str, str]]:
    """Send `body` (bytes, JSON, or an async iterator of bytes); return status, body and headers."""
    data = orjson.dumps(body) if isinstance(body, dict | list) else body
    async with (
        aiohttp.ClientSession() as session,
        session.post(url, data=data, **options) as answer,
    ):
        return answer.status, await answer.read(), dict(answer.headers)


def test_a_turn_is_recorded_as_its_client_observed_it() -> None:
    async def go() -> tuple[list[Line], float]:
        started_s = time.monotonic()
        async with gateway_to(Upstream()) as (url, lines):
            await post(f"{url}/programs/p1/v1/chat/completions", ASK)
            await asyncio.sleep(0.1)
            await post(
                f"{url}/programs/p1/v1/chat/completions", next_ask("all done here", "ok then")
            )
            return lines, time.monotonic() - started_s

    (first, second), elapsed_s = asyncio.run(go())
    assert (first["program_id"], first["turn"], first["gap_s"]) == ("p1", 0, 0.0)
    assert (first["prompt_tokens"], first["output_tokens"], first["kept_tokens"]) == (3, 3, 0)
    assert first["device_hit_tokens"] == 1
    assert first["error"] is None
    assert (second["turn"], second["prompt_tokens"]) == (1, 8)
    assert second["kept_tokens"] == 6, "prompt and answer of the first turn"
    assert 0.1 <= second["gap_s"] < elapsed_s
    assert second["gap_s"] == pytest.approx(second["sent_at_s"] - first["finished_at_s"], abs=1e-3)
    assert second["gap_provenance"] == "measured"


def test_an_answer_that_is_not_in_the_next_prompt_is_not_kept() -> None:
    async def go() -> list[Line]:
        async with gateway_to(Upstream()) as (url, lines):
            await post(f"{url}/programs/p1/v1/chat/completions", ASK)
            await post(f"{url}/programs/p1/v1/chat/completions", next_ask("other", "ok then go"))
            return lines

    _, second = asyncio.run(go())
    assert second["kept_tokens"] == 3


@pytest.mark.parametrize("include_usage", [True, False])
def test_a_stream_passes_unchanged_and_its_tokens_are_counted_with_or_without_usage(
    include_usage: bool,
) -> None:
    ask = {**ASK, "stream": True}
    if include_usage:
        ask["stream_options"] = {"include_usage": True}

    async def go() -> tuple[bytes, bytes, Line]:
        upstream = Upstream()
        async with gateway_to(upstream) as (url, lines):
            _, through, _ = await post(f"{url}/v1/chat/completions", ask)
            direct = b"".join(b"data: " + e + b"\n\n" for e in upstream._events(ask))
            return through, direct, lines[0]

    through, direct, line = asyncio.run(go())
    assert through == direct
    assert (b'"usage"' in through) == include_usage
    assert (line["prompt_tokens"], line["output_tokens"], line["error"]) == (3, 3, None)
    assert line["sent_at_s"] < line["first_token_at_s"] <= line["finished_at_s"]


def test_the_clients_bytes_are_forwarded_with_the_tag_appended() -> None:
    raw = b'{ "model" : "m", "messages": [{"role":"user","content":"x y"}], "temperature": 1.0 }\n'

    async def go() -> tuple[bytes, bytes]:
        upstream = Upstream()
        async with gateway_to(upstream) as (url, _):
            await post(f"{url}/programs/p/v1/chat/completions", raw)
        untagged = Upstream()
        async with gateway_to(untagged, tagged=False) as (url, _):
            await post(f"{url}/programs/p/v1/chat/completions", raw)
        return upstream.raw[0], untagged.raw[0]

    tagged, untagged = asyncio.run(go())
    assert tagged.startswith(raw.rstrip()[:-1])
    assert orjson.loads(tagged)["vllm_xargs"] == {"program_id": "p", "turn": 0}
    assert untagged == raw


def test_headers_for_the_gateway_are_not_forwarded() -> None:
    body = {**ASK, "program_id": "p", "prompt_cache_key": "k", "vllm_xargs": {"tools": "ls"}}

    async def go() -> dict[str, Any]:
        upstream = Upstream()
        async with gateway_to(upstream) as (url, _):
            await post(f"{url}/v1/chat/completions", body)
        return upstream.bodies[0]

    sent = asyncio.run(go())
    assert "program_id" not in sent
    assert sent["prompt_cache_key"] == "k"
    assert sent["vllm_xargs"] == {"tools": "ls", "program_id": "p", "turn": 0}


def test_the_tools_of_a_turn_are_the_commands_in_its_calls() -> None:
    async def go(stream: bool) -> Line:
        async with gateway_to(Upstream(calls_tool=True)) as (url, lines):
            await post(f"{url}/v1/chat/completions", {**ASK, "stream": stream})
            return lines[0]

    assert asyncio.run(go(stream=True))["tools"] == ["cd", "pytest"]
    assert asyncio.run(go(stream=False))["tools"] == ["cd", "pytest"]


def test_a_job_stays_on_the_server_with_its_kv_and_new_jobs_go_where_there_are_fewest() -> None:
    async def go() -> list[tuple[str, int]]:
        async with gateway_to(Upstream(), Upstream()) as (url, lines):
            for name in ("a", "b", "a", "c", "b"):
                await post(f"{url}/programs/{name}/v1/chat/completions", ASK)
            async with aiohttp.ClientSession() as session:
                await session.delete(f"{url}/programs/b")
            await post(f"{url}/programs/d/v1/chat/completions", ASK)
            headers = {"X-Job-Id": "c"}
            await post(f"{url}/programs/sub/v1/chat/completions", ASK, headers=headers)
            return [(line["program_id"], line["replica"]) for line in lines]

    placed = asyncio.run(go())
    assert placed == [("a", 0), ("b", 1), ("a", 0), ("c", 0), ("b", 1), ("d", 1), ("sub", 0)]


def test_a_lost_server_gets_no_new_jobs_and_the_other_keeps_serving() -> None:
    async def go() -> list[tuple[str, int, bool]]:
        lines: list[Line] = []
        async with serving(Upstream()) as alive:
            backends = [
                LiveServer("http://127.0.0.1:9", tagged=True),
                LiveServer(alive, tagged=True),
            ]
            gateway = Gateway(backends, into(lines))
            async with serve_gateway(gateway) as url:
                for name in ("a", "b", "c", "d", "a", "b"):
                    await post(f"{url}/programs/{name}/v1/chat/completions", ASK)
        return [(line["program_id"], line["replica"], line["error"] is None) for line in lines]

    assert asyncio.run(go()) == [
        ("a", 0, False),
        *((name, 1, True) for name in ("b", "c", "d")),
        ("a", 0, False),  # it stays on the server with its KV
        ("b", 1, True),
    ]


def test_the_server_is_notified_of_the_end_of_a_program() -> None:
    async def go(tagged: bool) -> list[Any]:
        upstream = Upstream()
        async with gateway_to(upstream, tagged=tagged) as (url, _):
            await post(f"{url}/programs/p/v1/chat/completions", ASK)
            async with aiohttp.ClientSession() as session:
                for _ in range(2):  # once is enough
                    async with session.delete(f"{url}/programs/p") as answer:
                        assert answer.status == 204
            await post(f"{url}/programs/p/v1/chat/completions", ASK)
        return [body.get("vllm_xargs") for body in upstream.bodies]

    first = {"program_id": "p", "turn": 0}
    assert asyncio.run(go(tagged=True)) == [first, {"ended": "p"}, first]
    assert asyncio.run(go(tagged=False)) == [None, None]


def test_an_error_passes_unchanged_with_its_headers_and_is_recorded() -> None:
    async def go() -> tuple[int, bytes, dict[str, str], Line]:
        async with gateway_to(Upstream(fault="429")) as (url, lines):
            return (*await post(f"{url}/v1/chat/completions", ASK), lines[0])

    status, body, headers, line = asyncio.run(go())
    assert (status, orjson.loads(body)) == (429, {"error": {"message": "slow down"}})
    assert headers["Retry-After"] == "3"
    assert line["error"] == "slow down"


def test_a_stream_cut_by_the_server_ends_early_and_is_recorded() -> None:
    async def go() -> Line:
        async with gateway_to(Upstream(fault="cut")) as (url, lines):
            with pytest.raises(aiohttp.ClientPayloadError):
                await post(f"{url}/v1/chat/completions", {**ASK, "stream": True})
            return lines[0]

    assert asyncio.run(go())["error"].startswith("no answer from the server")


@pytest.mark.parametrize("path", ["chat/completions", "embeddings"])
def test_a_compressed_answer_is_an_error_of_the_server(path: str) -> None:
    """It was not asked for, and would pass on what it hides: tokens, and keys in its errors."""

    async def go() -> tuple[int, bytes]:
        async with gateway_to(Upstream(fault="compressed")) as (url, _):
            status, answer, _ = await post(f"{url}/v1/{path}", ASK)
            return status, answer

    status, answer = asyncio.run(go())
    assert status == 502
    message = orjson.loads(answer)["error"]["message"]
    assert mentions(message, "server compressed", "gzip")


def test_a_client_that_disconnects_aborts_its_request() -> None:
    async def go() -> tuple[int, Line]:
        upstream = Upstream(words="w " * 500, chunk_s=0.01)
        async with gateway_to(upstream) as (url, lines):
            async with aiohttp.ClientSession() as session:
                answer = await session.post(
                    f"{url}/v1/chat/completions", json={**ASK, "stream": True}
                )
                await answer.content.readany()
                answer.close()
            for _ in range(200):
                if lines and upstream.aborted:
                    break
                await asyncio.sleep(0.02)
            return upstream.aborted, lines[0]

    aborted, line = asyncio.run(go())
    assert aborted == 1
    assert line["error"] == "the client disconnected"


def test_an_unreachable_server_gives_an_error_in_openais_format() -> None:
    async def go() -> tuple[int, Any, list[Line]]:
        lines: list[Line] = []
        gateway = Gateway([LiveServer("http://127.0.0.1:9", tagged=True)], into(lines))
        async with serve_gateway(gateway) as url:
            status, body, _ = await post(f"{url}/v1/chat/completions", ASK)
            return status, orjson.loads(body), lines

    status, body, lines = asyncio.run(go())
    assert status == 502
    assert body["error"]["type"] == "api_error"
    assert "no answer from the server" in body["error"]["message"]
    assert len(lines) == 1


def test_a_model_is_that_of_the_server_or_the_entry_in_its_list() -> None:
    """vLLM has a list only. An id may have slashes, which clients may encode."""

    async def go() -> list[tuple[int, Any]]:
        async with gateway_to(Upstream()) as (url, _), aiohttp.ClientSession() as session:
            answers = []
            for id in ("m", "org/m", "org%2Fm", "served/by/id", "unknown"):
                async with session.get(URL(f"{url}/v1/models/{id}", encoded=True)) as answer:
                    answers.append((answer.status, await answer.text()))
            return answers

    *found, unknown = asyncio.run(go())
    assert [(status, orjson.loads(text)) for status, text in found] == [
        (200, {"id": "m", "owned_by": "vllm"}),
        (200, {"id": "org/m", "owned_by": "vllm"}),
        (200, {"id": "org/m", "owned_by": "vllm"}),
        (200, {"id": "served/by/id", "object": "model"}),
    ]
    assert unknown == (404, "404: Not Found"), "the server's own answer"


def test_models_pass_and_unknown_paths_are_refused() -> None:
    async def go() -> tuple[int, Any, Any, int]:
        async with gateway_to(Upstream()) as (url, lines), aiohttp.ClientSession() as session:
            async with session.get(f"{url}/programs/p/v1/models") as answer:
                models = await answer.json()
            async with session.get(f"{url}/v1/broken") as answer:
                return answer.status, await answer.json(), models, len(lines)

    status, refused, models, turns = asyncio.run(go())
    assert models["data"][0]["id"] == "m"
    assert (status, turns) == (404, 0)
    paths = "chat/completions", "messages", "responses", "embeddings", "models"
    assert mentions(refused["error"]["message"], "GET /v1/broken", *paths)
