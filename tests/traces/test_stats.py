"""The statistics of Table 2 and Figure 5, compared with manual calculations."""

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


def test_statistics_are_those_of_table_2() -> None:
    stats = statistics(PROGRAMS)
    assert stats.turns.mean == 2.5
    assert stats.turns.sd == pytest.approx(0.5**0.5)
    assert (stats.tool_gap_s.count, stats.tool_gap_s.mean) == (2, 2.0)
    assert stats.final_context_tokens.mean == (330 + 550) / 2
    assert stats.summed_tokens.mean == (110 + 220 + 330 + 440 + 550) / 2
    assert stats.kept_share == (110 + 220 + 440) / 1500


def test_a_gap_without_a_tool_counts_as_a_pause() -> None:
    stats = statistics(PROGRAMS)
    assert (stats.pause_s.count, stats.pause_s.mean) == (1, 60.0)
    assert stats.gap_provenance == {"unstated": 3}


def test_calls_are_grouped_by_their_first_command_the_slowest_first() -> None:
    assert [(t.tool, t.calls) for t in statistics(PROGRAMS).tools] == [("cd", 1), ("ls", 1)]


def test_the_slowest_tenth_of_twenty_calls_are_two() -> None:
    gaps = np.array([1.0] * 18 + [11.0] * 2)
    assert share_of_slowest(gaps, 0.1) == 22 / 40


def test_a_fraction_of_a_call_counts_in_proportion() -> None:
    assert share_of_slowest(np.array([4.0, 1, 1, 1, 1]), 0.1) == 2 / 8


def test_statistics_of_no_programs_are_empty() -> None:
    assert statistics([]).turns.count == 0
    assert statistics([Program("a", (Turn(1, 1),))]).tools == []
