"""Requests beside the programs on a live server, until the programs have ended."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

from servers.basics.clock import PS_PER_S
from tests.live.replaying import program, replayed
from tests.live.server import Server
from traces import Program

TOLERANCE_S = 1e-6


def every(interval_s: float) -> Iterator[tuple[Program, int]]:
    """Yield requests at multiples of the interval, without end."""
    for number in count():
        at_ps = round((number + 1) * interval_s * PS_PER_S)
        yield program(f"background/{number}", turns=1), at_ps


def test_requests_are_sent_on_time_and_those_under_way_at_the_end_are_aborted() -> None:
    """The program's answers take 1 s and its gap 0.5 s, so it ends at 2.5 s. Requests of 1 s begin
    at 0.7, 1.4 and 2.1 s, and the third is under way at the end."""
    server = Server(think_s=1.0)
    one = program("p", turns=2, gap_s=0.5)
    lines, done = replayed([one], server, background=every(0.7))
    beside: dict[str, Any] = {str(id): line for (id, _), line in lines.items() if id != "p"}
    assert list(beside) == ["background/0", "background/1"]
    for id, due_s in (("background/0", 0.7), ("background/1", 1.4)):
        line = beside[id]
        assert line["background"] is True
        assert line["scheduled_at_s"] == pytest.approx(due_s)
        assert abs(line["sent_at_s"] - due_s) < TOLERANCE_S
        assert line["error"] is None
    assert "background" not in lines["p", 0]
    assert lines["p", 1]["finished_at_s"] == pytest.approx(2.5)
    assert done.finished_programs == 1
    assert done.background.until_s == pytest.approx(2.5)
    assert done.background.unfinished == [(pytest.approx(2.1), None)]
    assert server.aborted == [("background/2", 0)]


def test_a_request_that_has_its_first_token_at_the_end_says_when_it_had_it() -> None:
    """Chunks are 0.3 s apart, the first one after 0.1 s: the answer of the request of 0.5 s begins
    at 0.6 s and ends at 1.2 s, after the program, whose answer ends at 1 s."""
    server = Server(think_s=0.1, chunk_s=0.3)
    _, done = replayed([program("p", turns=1)], server, background=every(0.5))
    (first, *_) = done.background.unfinished
    assert first == (pytest.approx(0.5), pytest.approx(0.6))


def test_a_request_that_fails_is_recorded_and_ends_no_program() -> None:
    server = Server(think_s=0.1, faults={("background/0", 0): "500"})
    lines, done = replayed([program("p", turns=2, gap_s=1.0)], server, background=every(0.4))
    assert lines["background/0", 0]["error"] is not None
    assert lines["background/1", 0]["error"] is None
    assert (done.finished_programs, done.failed_turns) == (1, 0)


def test_a_closed_loop_ends_with_its_last_program() -> None:
    programs = [program(f"p{k}", turns=1) for k in range(3)]
    lines, done = replayed(programs, Server(think_s=0.5), in_flight=1, background=every(0.4))
    assert done.finished_programs == 3
    assert sum(line.get("background", False) for line in lines.values()) == 2  # of 0.4 and 0.8 s
