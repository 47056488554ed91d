"""What a reader of an answer has to doubt, a sentence each. Rules in docs/reference/metrics.md."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from reports.metrics.cells import Results
from reports.phrasing import counted, listed, seconds
from reports.statistics.bootstrap import FEWEST_SEEDS
from reports.statistics.points import Point

SETTLES = 8
"""A run shorter than so many mean JCTs is called short."""


def short_run(winner: Point, sweep: dict[str, Any]) -> list[str]:
    """A queue settles in a few job times; a run of fewer shows a burst, not a rate."""
    if winner.jps is None or winner.saturated:
        return []
    mean_s, jobs = winner.jct_mean_s.value, winner.jobs // len(sweep["seeds"])
    window_s = jobs / winner.jps
    if mean_s * SETTLES <= window_s:
        return []
    enough = math.ceil(mean_s * SETTLES * winner.jps / 100) * 100
    remedy = f"--programs {enough}" if enough <= 20 * jobs else "Lower rates"
    arrive, take = f"{jobs:,} jobs arrive", f"take {seconds(mean_s)} each"
    if jobs == 1:
        arrive, take = "1 job arrives", f"takes {seconds(mean_s)}"
    return [
        f"Short run: {arrive} within {seconds(window_s)} and {take}, so the queue does not"
        f" settle: saturation sets in at lower rates than this run can show, and gains come"
        f" out too small. {remedy} would tell."
    ]


def doubts(points: Sequence[Point], results: Results, sweep: dict[str, Any]) -> list[str]:
    """Of all cells, whatever the answer is."""
    return [
        *_saturated(points),
        *_cells_without_a_valid_result(results),
        *_dearer_steps(points, sweep),
        *_traces_left_out(sweep),
        *_few_seeds(sweep, results),
    ]


def _saturated(points: Sequence[Point]) -> list[str]:
    saturated = [p for p in points if p.saturated]
    if not saturated:
        return []
    return [
        "Past saturation jobs arrive faster than they finish, and a mean JCT grows with the"
        f" length of the run; so read it as a ranking only: {_first_loads(saturated, points)}."
    ]


def _cells_without_a_valid_result(results: Results) -> list[str]:
    said, failed, missing = [], results.failed_gates, results.missing
    if failed:
        name, gates = next(iter(failed.items()))
        said.append(
            f"{counted(len(failed), 'cell')} of {len(results.cells)} failed a validity gate; the"
            f" first, {name}: {gates}."
        )
    if missing:
        name, why = missing[0]
        said.append(
            f"{counted(len(missing), 'cell')} of {len(missing) + len(results.cells)} without a"
            f" result; the first, {name}: {why.rstrip('.')}."
        )
    return said


def _dearer_steps(points: Sequence[Point], sweep: dict[str, Any]) -> list[str]:
    plain, offload = (sweep.get(p) or {} for p in ("profile", "profile_with_offload"))
    dearer = bool(offload) and plain.get("base_ps") != offload["base_ps"]
    if not dearer or not any(p.offload for p in points):
        return []
    return [
        f"Each step of a variant with offload is charged {offload['base_ps'] / 1e9:.2f} ms of"
        f" scheduling, of the others {plain['base_ps'] / 1e9:.2f} ms (Continuum v3, Table 4):"
        " that is what makes them slower where memory is free."
    ]


def _traces_left_out(sweep: dict[str, Any]) -> list[str]:
    said = []
    if programs := (sweep.get("workload") or {}).get("left_out"):
        first = programs[0]
        said.append(
            f"{counted(len(programs), 'program')} left out; the first, {first['program_id']}:"
            f" {first['reason']}."
        )
    if files := sweep.get("rejected_files"):
        first = files[0]
        said.append(
            f"{counted(len(files), 'file')} not read; the first, {first['file']}:"
            f" {first['reason']}."
        )
    return said


def _few_seeds(sweep: dict[str, Any], results: Results) -> list[str]:
    seeds = len(sweep["seeds"])
    if seeds >= FEWEST_SEEDS or not len(results.cells):
        return []
    return [
        f"{'One seed' if seeds == 1 else 'Two seeds'}: the intervals tell how"
        " much the choice of programs matters, not the draw of their arrivals; three seeds and"
        " more tell both (--seeds 1..5)."
    ]


def _first_loads(saturated: Sequence[Point], points: Sequence[Point]) -> str:
    """`fcfs from 0.15 jobs/s; all others from 0.3 jobs/s`"""
    since: dict[str, list[str]] = {}
    for variant in dict.fromkeys(p.variant for p in saturated):
        load = next(p.load for p in saturated if p.variant == variant)
        since.setdefault(load, []).append(variant)
    everyone = len({p.variant for p in points})
    loads = list(dict.fromkeys(p.load for p in points))
    place = "from" if len(loads) > 1 else "at"
    most = max(since.values(), key=len)
    rest = "every variant" if len(most) == everyone > 1 else "all others"
    short = rest == "every variant" or (len(most) > 3 and sum(map(len, since.values())) == everyone)
    groups = [
        f"{rest if short and names is most else listed(names, at_most=20)} {place} {load}"
        for load, names in sorted(
            since.items(), key=lambda i: (short and i[1] is most, loads.index(i[0]))
        )
    ]
    return "; ".join(groups)
