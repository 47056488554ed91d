"""Turns are sent when they are due, whatever the server does, and each is recorded."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import pytest

from harness.replay.live import replay_live
from harness.replay.live_server import LiveServer, Service
from tests.live.replaying import program, replayed
from tests.live.server import Server, serving
from traces import Fork

TOLERANCE_S = 1e-6
"""Tolerance for rounding. In simulated time no request is late."""


def seconds(line: dict[str, Any], field: str) -> float:
    return float(line[field])


def test_programs_start_on_time_even_if_the_server_is_slow() -> None:
    starts = [0.05 * i for i in range(8)]
    programs = [program(f"p{i}", turns=1) for i in range(8)]
    lines, done = replayed(programs, Server(think_s=0.5), starts_s=starts)
    assert done.finished_programs == 8
    for i, start_s in enumerate(starts):
        line: dict[str, Any] = lines[f"p{i}", 0]
        assert line["scheduled_at_s"] == pytest.approx(start_s)
        assert abs(line["sent_at_s"] - line["scheduled_at_s"]) < TOLERANCE_S


def test_a_turn_is_due_one_gap_after_the_last_byte_of_the_previous_turn() -> None:
    lines, _ = replayed([program("p", turns=4, gap_s=0.1)], Server(think_s=0.02, chunk_s=0.01))
    turns: list[dict[str, Any]] = [lines["p", i] for i in range(4)]
    for before, after in pairwise(turns):
        assert after["scheduled_at_s"] == pytest.approx(before["finished_at_s"] + 0.1)
        assert abs(after["sent_at_s"] - after["scheduled_at_s"]) < TOLERANCE_S
        assert after["gap_s"] == 0.1


def test_a_record_contains_what_client_and_server_measure() -> None:
    server = Server(think_s=0.1, chunk_s=0.1, chunk_tokens=3, cached_tokens=7, queue_ms=40.0)
    lines, done = replayed([program("p", turns=1)], server)
    line: dict[str, Any] = lines["p", 0]
    assert (line["prompt_tokens"], line["output_tokens"], line["error"]) == (10, 6, None)
    assert (line["device_hit_tokens"], line["queue_s"]) == (7, 0.04)
    # 0.1 s before the first chunk, and 0.1 s each before the second, the usage and the end.
    assert line["first_token_at_s"] - line["sent_at_s"] == pytest.approx(0.1, abs=TOLERANCE_S)
    assert line["decode_s"] == pytest.approx(0.3, abs=TOLERANCE_S)
    parts = line["queue_s"] + line["prefill_s"] + line["decode_s"]
    assert parts == pytest.approx(line["finished_at_s"] - line["sent_at_s"])
    unknown = ("dram_hit_tokens", "ssd_hit_tokens", "load_s", "preempted_s", "recompute_s")
    assert {line[field] for field in unknown} == {None}
    assert done.failed_turns == 0
    assert done.live_s >= line["finished_at_s"]


def test_values_that_a_server_does_not_report_are_null() -> None:
    lines, _ = replayed([program("p", turns=1)], Server(cached_tokens=None, queue_ms=None))
    line = lines["p", 0]
    assert (line["device_hit_tokens"], line["queue_s"], line["prefill_s"]) == (None, None, None)
    assert line["error"] is None


def test_requests_carry_the_program_and_turn() -> None:
    server = Server()
    replayed([program("p", turns=2)], server)
    assert server.arguments == {
        ("p", 0): {"program_id": "p", "turn": 0, "is_last": 0, "tools": "ls"},
        ("p", 1): {"program_id": "p", "turn": 1, "is_last": 1, "tools": "ls"},
    }


def test_sub_agents_start_at_their_fork_and_the_parent_waits_for_those_it_joins() -> None:
    programs = [
        program("parent", turns=2, gap_s=0.05),
        program("joined", turns=3, gap_s=0.05, fork=Fork("parent", 0, 0.1, joined_before_turn=1)),
        program("free", turns=1, fork=Fork("parent", 0, 0.0)),
    ]
    lines, done = replayed(programs, Server(think_s=0.01))
    forked: dict[str, Any] = lines["parent", 0]
    joined: dict[str, Any] = lines["joined", 2]
    after: dict[str, Any] = lines["parent", 1]
    first: dict[str, Any] = lines["joined", 0]
    assert done.finished_programs == 3
    assert first["scheduled_at_s"] == pytest.approx(forked["finished_at_s"] + 0.1)
    assert after["scheduled_at_s"] == pytest.approx(joined["finished_at_s"] + 0.05)
    assert after["wait_s"] == pytest.approx(joined["finished_at_s"] - forked["finished_at_s"])
    assert {line["job_id"] for line in lines.values()} == {"parent"}


def test_a_closed_loop_keeps_a_constant_number_of_programs_in_flight() -> None:
    server = Server(think_s=0.03)
    lines, done = replayed([program(f"p{i}") for i in range(9)], server, in_flight=3)
    assert (server.max_open, done.finished_programs) == (3, 9)
    fourth: dict[str, Any] = lines["p3", 0]
    ends = sorted(seconds(lines[f"p{i}", 1], "finished_at_s") for i in range(3))
    assert fourth["scheduled_at_s"] == pytest.approx(ends[0])


def test_five_hundred_programs_can_run_concurrently() -> None:
    server = Server(think_s=1.0, stores=False)
    lines, done = replayed([program(f"p{i}", turns=2) for i in range(500)], server)
    assert (len(lines), done.failed_turns, done.finished_programs) == (1000, 0, 500)
    assert server.max_open == 500


def test_an_error_while_recording_ends_the_replay() -> None:
    def disk_full(_: object) -> None:
        raise OSError("no space left")

    async def replay() -> None:
        async with serving(Server(think_s=0.01)) as url:
            await replay_live(
                [program("p"), program("q")],
                [0.0, 0.0],
                None,
                Service([LiveServer(url + "/v1/")], "m", range(99), seed=0),
                on_turn=disk_full,
            )

    with pytest.raises(OSError, match="no space left"):
        asyncio.run(replay())
