"""The matrix of a terminal: no cell contradicts the capacity in its row."""

from __future__ import annotations

import io
import math
from dataclasses import replace

from msgspec import convert
from rich.console import Console
from test_capacity_answer import SWEEP, answer_of, chains, point

from reports.answer.capacity_context import also_serves
from reports.answer.capacity_rows import capacity_rows
from reports.answer.speed_ups import grid
from reports.answer.table import RateMatrix, ResultTable
from reports.capacity.estimate import Capacity, Kind
from reports.statistics.points import Point, with_sustained
from servers.records.sweep import SweepRecord

CAPACITIES = chains(fcfs=(0.24, 0.25, 0.26), a=(0.39, 0.40, 0.43))


def lines(points: list[Point]) -> list[str]:
    answer = answer_of(CAPACITIES, points=points)
    matrix = RateMatrix(points, capacity_rows(answer), answer.capacities)
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(matrix)
    return [line.rstrip() for line in console.export_text().splitlines()]


def unstable(variant: str, jps: float) -> Point:
    return point(variant, jps, float("nan"), stable=False)


def test_a_rate_that_some_seeds_sustain_has_their_number_and_no_mean() -> None:
    """Seeds sustain rates up to 98% of their capacities: 0.245 is one of them with two of three
    seeds of fcfs, and 0.4 with one of three seeds of a."""
    points = [
        point("fcfs", 0.1, 60), point("a", 0.1, 60),
        point("fcfs", 0.245, 450), point("a", 0.245, 65),
        unstable("fcfs", 0.3), point("a", 0.3, 75),
        unstable("a", 0.4),
    ]  # fmt: skip
    head, a, fcfs, one, two, unstable_line = lines(points)
    assert head.split()[-4:] == ["0.1/s", "0.245/s", "0.3/s", "0.4/s"]
    assert " ".join(a.split()[-7:]) == "60.0 s 65.0 s 75.0 s 1/3"
    assert " ".join(fcfs.split()[-5:]) == "60.0 s 2/3 unstable –"
    assert one == "1/3: sustained with 1 of 3 seeds."
    assert two == "2/3: sustained with 2 of 3 seeds."
    assert unstable_line == "unstable: too many jobs wait."


def test_the_tables_of_all_numbers_have_no_jct_and_no_ratio_of_such_rates() -> None:
    points = [
        replace(each, jct_s=dict.fromkeys(("jct_p50_s", "jct_p95_s", "jct_p99_s"), 9.0))
        for each in (point("fcfs", 0.245, 450), point("a", 0.245, 65))
    ]
    shown = with_sustained(points, answer_of(CAPACITIES).capacities)
    assert [str(each.sustained) for each in shown] == ["2/3", "3/3"]
    (layout, *_) = ResultTable(shown, "fcfs").layouts()
    fcfs, a = (line.cells for line in layout.lines)
    assert fcfs[1:] == ("fcfs", *["–"] * 6, "50%", "0.245", "sustained 2/3")
    assert a[1:3] == ("a", "65.0 s")
    table = grid(shown, answer_of(CAPACITIES), "fcfs")
    assert table is not None
    assert table.rows[0].cells[0].text == "2/3"
    assert "65.0 s" in table.rows[1].cells[0].title


def test_a_share_leaves_out_seeds_whose_search_has_not_decided_the_rate() -> None:
    """Seed 2 has sustained 0.2 and not 0.4, and seed 3 has not begun."""
    begun, open_at_all = (
        Capacity(Kind.OPEN, math.nan, *bounds) for bounds in ((0.2, 0.4), (None, None))
    )
    (fcfs,) = answer_of(chains(fcfs=(0.25, begun, open_at_all))).capacities
    shares = [str(fcfs.sustained_at(load)) for load in (0.1, 0.3, 0.5)]
    assert shares == ["2/2", "0/1", "0/2"]


def test_an_interval_is_beside_its_ratio_and_is_left_out_before_it() -> None:
    times_s = dict.fromkeys(("jct_p50_s", "jct_p95_s", "jct_p99_s"), 9.0)
    layouts = ResultTable([replace(point("fcfs", 0.1, 60), jct_s=times_s)], "fcfs").layouts()
    heads = [[head for head, _ in layout.heads] for layout in layouts]
    first, rest = ["load", "variant", "mean", "faster"], ["hits", "jobs/s", ""]
    assert heads[0] == [*first, "95% CI", "P50", "P95", "P99", *rest]
    assert heads[2] == [*first, "95% CI", "P95", *rest]
    assert heads[4] == [*first, "P95", "hits", ""]
    assert heads[-1] == ["load", "variant"]


def test_without_such_cells_there_is_no_legend() -> None:
    assert len(lines([point("fcfs", 0.1, 60), point("a", 0.1, 60)])) == 3


def test_a_note_on_the_capacities_is_below_the_table() -> None:
    answer = answer_of(CAPACITIES, points=[point("fcfs", 0.1, 60)])
    beside = {"requests_per_s": 0.1, "name": "chat.jsonl", "requests": 8}
    note = also_serves(convert(SWEEP | {"background": beside}, SweepRecord))
    console = Console(width=100, record=True, file=io.StringIO())
    rows = capacity_rows(answer)
    console.print(RateMatrix([point("fcfs", 0.1, 60)], rows, answer.capacities, note))
    last = console.export_text().splitlines()[-1]
    assert last.rstrip() == "Each machine also serves 0.1 background requests/s."


def test_a_narrow_terminal_keeps_the_rates_around_the_capacities() -> None:
    rates = (0.1, 0.15, 0.2, 0.23, 0.3, 0.35, 0.38)
    points = [point(name, jps, 60) for jps in rates for name in ("fcfs", "a")]
    answer = answer_of(CAPACITIES, points=points)
    console = Console(width=72, record=True, file=io.StringIO())
    console.print(RateMatrix(points, capacity_rows(answer), answer.capacities))
    head = console.export_text().splitlines()[0].split()
    assert head[-3:] == ["0.2/s", "0.23/s", "0.3/s"]
