"""Excludes variants with a cell that failed a validity gate from the answer, and marks the answer
of an unfinished run, such as one whose other shards have not run.

In: points, capacities and results. Out: those that decide the answer, and a sentence on the rest.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from reports.answer.provenance import without_name
from reports.metrics.cells import Results
from reports.run_folder.read import NOT_FINISHED, NOT_RUN
from reports.statistics.capacities import VariantCapacity
from reports.statistics.points import Point
from servers.basics.phrasing import counted, listed
from servers.records.sweep import SweepRecord

MANY = 0.05
"""If at least this share of the programs is left out, the first sentence states it."""
TURN = re.compile(r"^turn \d+: ")
MOST_NAMES = 3
MOST_LETTERS = 120
"""Reasons are cut after this many letters; the first caveat has them in full."""


def valid_points(points: Sequence[Point]) -> list[Point]:
    return [point for point in points if not point.failed_gates]


def points_left_out(points: Sequence[Point], results: Results, load: str | None) -> list[str]:
    """List the variants that the answer leaves out at its load or a higher one, or at any load if
    it has none."""
    loads = list(dict.fromkeys(p.load for p in points))
    loads = loads[loads.index(load) :] if load in loads else loads
    left_out = [p for p in points if p.failed_gates and not p.reference and p.load in loads]
    cells = results.cells
    names = [f"{p.variant} at {p.load}" for p in left_out]
    gates = [
        str(gate)
        for p in left_out
        for gate in cells.loc[
            (cells["variant"] == p.variant) & (cells["load"] == p.load), "failed_gates"
        ]
        if gate
    ]
    return _sentence(names, gates)


def valid_capacities(
    capacities: Sequence[VariantCapacity], results: Results, baseline: str
) -> tuple[list[VariantCapacity], list[str]]:
    """Return the capacities of variants without a failed gate, and a sentence about the others.
    There are no ratios if the baseline is left out."""
    gates = results.failed_gates
    rows = results.rows if gates else []
    failed = {str(row["variant"]): gates[row["cell"]] for row in rows if row["cell"] in gates}
    valid = [each for each in capacities if each.variant not in failed]
    if baseline in failed:
        valid = [replace(each, ratio=None) for each in valid]
    names = [each.variant for each in capacities if each.variant in failed]
    return valid, _sentence(names, [failed[name] for name in names])


def programs_left_out(sweep: SweepRecord) -> str:
    """Return a sentence on the programs that are too long for the model or the memory, or "" if
    they are few enough for a caveat."""
    workload = sweep.workload
    left_out = workload.left_out
    ran = workload.distinct_programs or workload.programs or 0
    every = ran + len(left_out)
    if not left_out or len(left_out) < MANY * every:
        return ""
    reasons = [TURN.sub("", without_name(program)).rstrip(".") for program in left_out]
    reason = next((each for each in reasons if not each.startswith("left out with")), reasons[0])
    return f"{len(left_out):,} of {counted(every, 'program')} are left out; the first: {reason}."


def _sentence(names: Sequence[str], gates: Sequence[str]) -> list[str]:
    if not names:
        return []
    verb = "is" if len(names) == 1 else "are"
    failed = "a cell" if len(gates) == 1 else counted(len(gates), "cell")
    why = gates[0] if len(gates[0]) <= MOST_LETTERS else f"{gates[0][:MOST_LETTERS]}…"
    first = ": " if len(gates) == 1 else ", the first: "
    return [
        f"{listed(names, at_most=MOST_NAMES)} {verb} left out, because {failed} failed a validity"
        f" gate{first}{why}."
    ]


def so_far(sentence: str, missing: Sequence[tuple[str, str]], finished: int) -> str:
    """Return the first sentence of an answer, marked as interim if cells have not run. `finished`
    is the number of cells with a result. The others have not finished, or failed."""
    has_more = any(why == NOT_RUN or why.startswith(NOT_FINISHED) for _, why in missing)
    if not finished or not has_more:
        return sentence
    cells = finished + len(missing)
    return f"Unfinished: {finished:,} of {cells:,} cells have a result. So far: {sentence}"
