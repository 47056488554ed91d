"""A failed turn is recorded with its error; its program stops, and the others continue."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import orjson
import pytest

from harness.replay.live import replay_live
from harness.replay.live_server import LiveServer, Service
from tests.lines import into
from tests.live import simulated_time
from tests.live.replaying import program, replayed
from tests.live.server import Server, serving
from tests.sentences import mentions

ERRORS = {
    "500": "the server answered 500: EngineDeadError EngineDeadError",
    "503 html": "the server answered 503: <h1>out of service</h1>",
    "no stream": "the server answered application/json, not a stream",
    "cut": "connection lost after 3 output tokens",
    "ends early": "the stream was cut after 3 tokens",
    "one short": "the server counted 26 prompt and 5 output tokens, but the trace has 26 and 6",
    "prompt cut short": (
        "the server counted 25 prompt and 6 output tokens, but the trace has 26 and 6"
    ),
    "no ids": "the answer contains no token ids: token mode needs a server that supports",
    "engine error": "the engine failed: CUDA error",
    "garbage": "cannot read the stream as a completion: ",
    "hangs": "turn timeout of 0.3 s exceeded after 0 output tokens",
}


@pytest.mark.parametrize("fault", ERRORS)
def test_a_failed_turn_is_recorded_and_ends_only_its_program(fault: str) -> None:
    server = Server(faults={("bad", 1): fault})
    timeout_s = 0.3 if fault == "hangs" else 30.0
    programs = [program("bad", turns=3), program("good", turns=3)]
    lines, done = replayed(programs, server, turn_timeout_s=timeout_s)
    error = lines["bad", 1]["error"]
    assert isinstance(error, str)
    assert error.startswith(ERRORS[fault])
    assert len(error) < 300
    assert "\n" not in error
    assert sorted(lines) == [("bad", 0), ("bad", 1), *(("good", i) for i in range(3))]
    assert (done.finished_programs, done.failed_turns) == (1, 1)
    assert server.open == 0


def test_a_turn_that_a_full_queue_refuses_is_sent_again_when_the_server_says() -> None:
    stated = [{"Retry-After": seconds} for seconds in ("3", "0", "9" * 400)]
    server = Server(full={("p", 1): [*stated, {}, None]}, queue_ms=250.0)
    lines, done = replayed([program("p")], server, turn_timeout_s=90.0)
    first, refused = lines["p", 0], lines["p", 1]
    assert (done.finished_programs, done.failed_turns, done.refusals) == (1, 0, 5)
    assert ("refusals" in first, refused["refusals"], refused["error"]) == (False, 5, None)
    # 3 s as stated, 1 s at least, 60 s at most, twice 1 s without a statement, and 0.25 s in the
    # queue that took it.
    assert refused["queue_s"] == pytest.approx(66.25, abs=0.05)
    assert refused["refused_s"] == pytest.approx(66.0, abs=0.05)
    assert first["queue_s"] == pytest.approx(0.25, abs=0.05)
    assert len(server.prompts["p", 1]) == 26


def test_a_queue_that_stays_full_fails_the_turn_at_its_time_limit() -> None:
    server = Server(full={("p", 0): [{"Retry-After": "1"}] * 9})
    lines, done = replayed([program("p")], server, turn_timeout_s=3.5)
    assert done.failed_turns == 1
    assert mentions(lines["p", 0]["error"], "turn timeout of 3.5 s", "0 output tokens")
    assert lines["p", 0]["refusals"] == 4


def test_a_turn_that_times_out_is_aborted_at_the_server() -> None:
    server = Server(faults={("p", 0): "hangs"})
    replayed([program("p"), program("q", gap_s=0.5)], server, turn_timeout_s=0.2)
    assert server.aborted == [("p", 0)]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def test_a_closed_port_fails_every_program_at_once() -> None:
    lines: list[dict[str, Any]] = []
    url = f"http://127.0.0.1:{free_port()}"
    done = asyncio.run(
        replay_live(
            [program(f"p{i}") for i in range(20)],
            None,
            4,
            Service([LiveServer(url)], "m", range(99), seed=0),
            on_turn=into(lines),
        )
    )
    assert {line["error"] for line in lines} == {
        f"cannot connect to {url}/v1/completions: connection refused"
    }
    assert (len(lines), done.failed_turns, done.finished_programs) == (20, 20, 0)


def test_after_a_server_dies_all_programs_fail_quickly() -> None:
    lines: list[dict[str, Any]] = []

    async def replay() -> float:
        async with serving(Server(think_s=0.2)) as url:
            replaying = asyncio.create_task(
                replay_live(
                    [program(f"p{i}", turns=50) for i in range(10)],
                    [0.1 * i for i in range(10)],
                    None,
                    Service([LiveServer(url)], "m", range(99), seed=0, turn_timeout_s=3.0),
                    on_turn=into(lines),
                    # While closing, aiohttp's server may leave a request unanswered.
                )
            )
            await asyncio.sleep(0.6)
        await replaying
        return asyncio.get_running_loop().time()

    assert simulated_time.run(replay()) < 5
    failed = [line for line in lines if line["error"] is not None]
    assert len(failed) == 10  # one failed turn for each program, and none after it
    assert {line["program_id"] for line in failed} == {f"p{i}" for i in range(10)}


INTERRUPTED = """
import asyncio, sys
from msgspec.json import encode
from harness.replay.live import replay_live
from harness.replay.live_server import LiveServer, Service
from tests.live.replaying import program
from tests.live.server import Server, serving

def write(record):
    print(encode(record).decode(), flush=True)

class Hanging(Server):
    async def _answer(self, request, turn, *rest):
        if turn == ("cut", 1):
            print("arrived", flush=True)
        return await super()._answer(request, turn, *rest)

async def main():
    async with serving(Hanging(faults={("cut", 1): "hangs"})) as url:
        await replay_live(
            [program("cut"), program("later")], [0.0, 60.0], None,
            Service([LiveServer(url)], "m", range(99), seed=0), on_turn=write,
        )

try:
    asyncio.run(main())
except KeyboardInterrupt:
    sys.exit(130)
"""


def test_ctrl_c_records_the_turns_that_it_cancels() -> None:
    process = subprocess.Popen(
        [sys.executable, "-W", "error", "-c", INTERRUPTED],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    )
    assert process.stdout is not None
    first = orjson.loads(process.stdout.readline())
    assert process.stdout.readline() == b"arrived\n"  # the second turn, which hangs
    process.send_signal(signal.SIGINT)
    rest, stderr = process.communicate(timeout=300)
    assert (process.returncode, stderr) == (130, b"")
    assert (first["turn"], first["error"]) == (0, None)
    cut = [orjson.loads(line) for line in rest.splitlines()]
    assert [(line["program_id"], line["turn"], line["error"]) for line in cut] == [
        ("cut", 1, "cancelled")
    ]


def test_a_key_is_sent_but_never_recorded_even_if_the_server_repeats_it() -> None:
    refusing = Server(faults={("p", 0): "401"})
    lines, _ = replayed([program("p")], refusing, api_key="sk-secret-123")
    assert mentions(lines["p", 0]["error"], "401", "Bearer ***", "TURNSTILE_API_KEY")
