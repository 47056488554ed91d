"""Turns at `/generate`, and the cache, of a server that answers as SGLang's code does."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from harness.replay import sglang
from harness.replay.identity import CLOSE_SESSION
from harness.replay.live import replay_live
from harness.replay.live_server import Apis, LiveServer, Service
from harness.replay.sglang import SGLANG_APIS, flush_cache
from servers.basics.errors import CellFailed
from servers.processes.metrics_page import server_load
from tests.lines import Line, into
from tests.live.replaying import program
from tests.sentences import mentions
from tests.sglang.server import CONTEXT, Sglang, serving
from traces import Message, Program, Turn

QUESTION = (Message("user", "fix the bug"), Message("assistant", "ls"), Message("user", "a.py"))


def replayed(
    programs: Sequence[Program], server: Sglang, text: bool = False, apis: Apis = SGLANG_APIS
) -> list[Line]:
    lines: list[Line] = []

    async def replay() -> None:
        async with serving(server) as url:
            await replay_live(
                programs,
                [0.0] * len(programs),
                None,
                Service(
                    [LiveServer(url, session_ends=(CLOSE_SESSION,), apis=apis)],
                    "m",
                    range(5000, 6000),
                    seed=0,
                    text=text,
                    turn_timeout_s=20.0,
                ),
                on_turn=into(lines),
            )

    asyncio.run(replay())
    return lines


@pytest.mark.parametrize("incremental", [True, False])
def test_a_turn_has_the_recorded_lengths_and_continues_the_answer_before(incremental: bool) -> None:
    """10 prompt tokens and 6 of the answer; then 16 tokens of context and 10 new ones. The cache
    has all but the last token of the first turn: 15 tokens."""
    server = Sglang(incremental=incremental)
    first, second = replayed([program("job", 2)], server)
    assert (first["error"], second["error"]) == (None, None)
    assert (first["prompt_tokens"], first["output_tokens"]) == (10, 6)
    assert (second["prompt_tokens"], second["output_tokens"]) == (26, 6)
    assert (first["device_hit_tokens"], second["device_hit_tokens"]) == (0, 15)
    assert first["queue_s"] == 0.125
    sent = [body["input_ids"] for body in server.bodies]
    assert sent[1][:16] == [*sent[0], *range(1000, 1006)]


def test_a_turn_asks_for_an_answer_of_exactly_its_length_and_says_whose_it_is() -> None:
    server = Sglang()
    replayed([program("job", 1)], server)
    (body,) = server.bodies
    assert body.pop("input_ids")
    assert body == {
        "sampling_params": {"max_new_tokens": 6, "min_new_tokens": 6, "temperature": 0},
        "stream": True,
        "routing_key": "job",
        "session_id": "job",
    }
    assert server.headers[0]["X-SMG-Routing-Key"] == "job"
    assert server.ended == ["job"]


def test_recorded_messages_go_to_its_openai_api_with_the_session() -> None:
    server = Sglang()
    talk = Program("job", (Turn(30, 4), Turn(50, 2, 34)), messages=QUESTION, prompt_messages=(1, 3))
    first, second = replayed([talk], server, text=True)
    assert (first["error"], second["error"]) == (None, None)
    assert [(line["prompt_tokens"], line["output_tokens"]) for line in (first, second)] == [
        (3, 4),
        (5, 2),
    ]
    assert second["device_hit_tokens"] == 1
    assert [message["content"] for message in server.bodies[1]["messages"]][1] == "ls"
    assert server.bodies[1]["session_id"] == "job"
    assert [body["ignore_eos"] for body in server.bodies] == [False, False]


def test_a_refused_and_an_aborted_turn_fail_with_the_server_s_words() -> None:
    long = Program("long", (Turn(CONTEXT, 6),))
    (refused,) = replayed([long], Sglang())
    assert "exceeds the model's maximum context length" in str(refused["error"])
    (aborted,) = replayed([program("job", 1)], Sglang(aborts=True))
    assert aborted["error"] == "the engine failed: out of memory"
    (unauthorized,) = replayed([program("job", 1)], Sglang(api_key="k"))
    assert "the server answered 401: Unauthorized" in str(unauthorized["error"])


def test_a_parameter_that_it_does_not_know_is_refused_with_its_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """SGLang's contract check answers with a text where other errors are objects."""
    monkeypatch.setattr(sglang, "sampling_params", lambda tokens: {"max_tokens": tokens})
    (refused,) = replayed([program("job", 1)], Sglang())
    assert mentions(str(refused["error"]), "400", "`max_tokens`")


def test_a_flush_is_tried_again_while_a_turn_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Sglang(running=1)

    async def flush() -> None:
        async with serving(server) as url:
            flushing = asyncio.create_task(asyncio.to_thread(flush_cache, url))
            while not server.flushes:
                await asyncio.sleep(0.01)
            server.running = 0
            await flushing
            server.running = 1
            monkeypatch.setattr(sglang, "FLUSH_WITHIN_S", 0.0)
            with pytest.raises(CellFailed, match=r"status 400: Flush cache failed\."):
                await asyncio.to_thread(flush_cache, url)

    asyncio.run(flush())
    assert server.flushes[0] is False
    assert True in server.flushes


def test_its_load_is_read_from_its_metrics() -> None:
    page = asyncio.run(Sglang(running=3).metrics(None)).text  # type: ignore[arg-type]
    assert page is not None
    assert server_load(page) == (3, 2, 0.25)
    assert server_load("vllm:num_requests_running 1\n") is None
