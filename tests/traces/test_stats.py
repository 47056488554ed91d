"""Table 2 and Figure 5, worked by hand."""

from __future__ import annotations

import numpy as np
import pytest

from traces import Program, Turn
from traces.stats import share_of_slowest, statistics

PROGRAMS = [
    Program(
        "a",
        (
            Turn(100, 10, tools=("cd", "pytest"), tool_gap_s=3.0),
            Turn(200, 20, 110, tools=("ls",), tool_gap_s=1.0),
            Turn(300, 30, 220, tools=("never counted",), tool_gap_s=99.0),
        ),
    ),
    Program("b", (Turn(400, 40, tool_gap_s=60.0), Turn(500, 50, 440))),
]


def test_table_2() -> None:
    found = statistics(PROGRAMS)
    assert found.turns.mean == 2.5
    assert found.turns.sd == pytest.approx(0.5**0.5)
    assert (found.tool_gap_s.count, found.tool_gap_s.mean) == (2, 2.0)
    assert found.final_context_tokens.mean == (330 + 550) / 2
    assert found.summed_tokens.mean == (110 + 220 + 330 + 440 + 550) / 2
    assert found.kept_share == (110 + 220 + 440) / 1500


def test_a_gap_without_a_tool_is_a_pause() -> None:
    found = statistics(PROGRAMS)
    assert (found.pause_s.count, found.pause_s.mean) == (1, 60.0)
    assert found.gap_provenance == {"measured": 3}


def test_a_call_is_booked_under_its_first_word_longest_first() -> None:
    assert [(t.tool, t.calls) for t in statistics(PROGRAMS).tools] == [("cd", 1), ("ls", 1)]


def test_the_slowest_tenth_of_twenty_calls_are_two() -> None:
    gaps = np.array([1.0] * 18 + [11.0] * 2)
    assert share_of_slowest(gaps, 0.1) == 22 / 40


def test_half_a_call_counts_half() -> None:
    assert share_of_slowest(np.array([4.0, 1, 1, 1, 1]), 0.1) == 2 / 8


def test_no_programs_have_no_statistics() -> None:
    assert statistics([]).turns.count == 0
    assert statistics([Program("a", (Turn(1, 1),))]).tools == []
