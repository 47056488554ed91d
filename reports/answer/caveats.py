"""Writes the caveats of an answer, one sentence each (docs/design/statistics.md, "The answer")."""

from __future__ import annotations

import math
from collections.abc import Sequence

from reports.answer.findings import untuned
from reports.answer.noise import is_noise_covered
from reports.answer.provenance import without_name
from reports.answer.starvation import starvation
from reports.answer.workload import pauses
from reports.metrics.cells import Results
from reports.metrics.steady import grows_beyond_chance
from reports.statistics.bootstrap import MIN_SEEDS
from reports.statistics.points import Point
from servers.basics.phrasing import counted, listed, seconds, share
from servers.records.settings import WorkloadRecord
from servers.records.sweep import SweepRecord

SETTLING_JCTS = 8
"""A run is short if its arrivals take fewer mean JCTs than this."""
MIN_PROGRAMS = 30
"""With fewer distinct programs, the result may not hold for other programs."""
TABLE_4 = "Continuum v3, Table 4"


def short_run(winner: Point, sweep: SweepRecord) -> list[str]:
    """Return a caveat if a fixed set of jobs is too short for the queue to settle. A stream
    continues until its window is long enough (docs/design/statistics.md, "Steady state")."""
    if sweep.steady_state or winner.amount is None or winner.saturated:
        return []
    mean_s, jobs = winner.jct_mean_s.value, jobs_per_cell(winner, sweep)
    window_s = jobs / winner.amount
    if jobs == 1 or mean_s * SETTLING_JCTS <= window_s:
        return []
    enough = math.ceil(mean_s * SETTLING_JCTS * winner.amount / 100) * 100
    more = f"--programs {enough}, which repeats jobs if fewer fit, or "
    remedy = f"{more if enough <= 20 * jobs else ''}lower rates"
    return [
        f"Short run: {jobs:,} jobs arrive within {seconds(window_s)} and the mean JCT is"
        f" {seconds(mean_s)}, so the queue does not settle. Saturation starts at lower rates"
        f" than this run shows, and gains are underestimated. Use {remedy}."
    ]


def jobs_per_cell(point: Point, sweep: SweepRecord) -> int:
    return point.jobs // (len(sweep.seeds) * len(sweep.repeats))


def caveats_of(
    points: Sequence[Point], results: Results, sweep: SweepRecord, *, at_rates: bool
) -> list[str]:
    """Return the caveats on all cells, most important first; a page shows three at the top.
    `at_rates`: with those on answers that are no capacities."""
    return [
        *cells_without_a_valid_result(results),
        *_traces_left_out(sweep),
        *_few_programs(results, sweep),
        *([*_saturated(points), *_few_seeds(sweep, results)] if at_rates else []),
        *_by_other_code(results),
        *_stalls(results),
        *_refusals(results),
        *_counted_turns(results),
        *starvation(points, results, sweep.baseline),
        *pauses(results.jobs, sweep),
        *_growing(points, results),
        *_more_scheduling_time(points, sweep),
        *untuned(sweep),
    ]


def _few_programs(results: Results, sweep: SweepRecord) -> list[str]:
    """Return a caveat if few distinct programs are repeated, or if there are fewer sessions than
    agents. A recipe draws new ones."""
    workload = sweep.workload
    count = workload.programs if sweep.steady_state else None
    distinct = workload.distinct_programs or count
    if workload.recipe or not distinct:
        return []
    at_once = _at_once(results, distinct - workload.sub_agents)
    if distinct >= MIN_PROGRAMS:
        return [f"Repeated sessions: {at_once}."] if at_once else []
    one = distinct == 1
    how_often = f" ({at_once})" if at_once else ""
    return [
        f"Few programs: {counted(distinct, 'distinct program')} {'is' if one else 'are'} repeated"
        f"{how_often}, so the result holds for agents like {'this' if one else 'these'}, and no"
        f" interval covers other programs. Use at least {MIN_PROGRAMS}."
    ]


def _at_once(results: Results, sessions: int) -> str:
    """State how often recorded sessions ran, if there were more agents than sessions; else ""."""
    rows = [row for row in results.rows if row["steady"]]
    most = max(rows, key=lambda row: float(row.get("agents", 0)), default=None)
    if most is None or most.get("agents", 0) <= sessions:
        return ""
    agents, jobs = most["agents"], most["jobs"]
    return (
        f"the {agents:.0f} agents of {most['cell']} ran {jobs:,.0f} measured sessions, drawn from"
        f" {counted(sessions, 'recording')}: each ran about {jobs / sessions:.0f} times, sometimes"
        " concurrently"
    )


def _by_other_code(results: Results) -> list[str]:
    if not results.by_other_code:
        return []
    cells = counted(results.by_other_code, "cell")
    return [
        f"Another version of Turnstile computed the numbers of {cells}, whose turns were not kept."
        " Run the same sweep in a new folder (--out) to recompute them."
    ]


def _saturated(points: Sequence[Point]) -> list[str]:
    saturated = [p for p in points if p.saturated]
    if not saturated:
        return []
    return [
        "Past saturation, jobs arrive faster than they finish and the mean JCT grows with the"
        f" length of the run, so it only ranks the variants: {_first_loads(saturated, points)}."
    ]


def _growing(points: Sequence[Point], results: Results) -> list[str]:
    """Return a caveat if the backlog of stable streams grows. The backlog of an accepted window may
    grow by a tenth of the arrivals, which only a short window does by chance."""
    stable = {(p.variant, p.load) for p in points if not p.unstable}
    growing = [
        cell
        for cell in results.rows
        if (cell["variant"], cell["load"]) in stable
        and cell["steady"]
        and grows_beyond_chance(cell["backlog_growth"], cell["jobs"])
    ]
    if not growing:
        return []
    most = max(growing, key=lambda cell: float(cell["backlog_growth"]))
    where = {(cell["variant"], cell["load"]) for cell in growing}
    shown = [p for p in points if (p.variant, p.load) in where]
    return [
        "Stable, but the backlog grows by more than arrivals vary by chance, so a longer run"
        f" would have a higher mean JCT or no steady state: {_first_loads(shown, points)}. The"
        f" largest growth is {share(most['backlog_growth'])} of the arriving jobs, in"
        f" {most['cell']}."
    ]


def _stalls(results: Results) -> list[str]:
    cells = [
        row for row in results.rows if row.get("stalled_jobs", 0) > 0
    ]  # NaN where it is unknown
    if not cells:
        return []
    most = max(cells, key=lambda row: int(row["stalled_jobs"]))
    jobs = int(most["stalled_jobs"]) + int(most["jobs"])
    return [
        "The client machine stalled during measurements. JCTs and latencies exclude the jobs that"
        f" it delayed, the same ones for all policies: at most {most['stalled_jobs']:.0f} of"
        f" {jobs:,}, in {most['cell']}."
    ]


def _refusals(results: Results) -> list[str]:
    rows = results.rows
    refused = {row["cell"]: int(row["refusals"]) for row in rows if row.get("refusals", 0) > 0}
    if not refused:
        return []
    most = max(refused, key=lambda cell: refused[cell])
    return [
        f"A full queue refused requests in {counted(len(refused), 'cell')}, at most"
        f" {refused[most]:,} in {most}. They were sent again when the server allowed it, and JCTs"
        " include that wait."
    ]


def _counted_turns(results: Results) -> list[str]:
    rows = results.rows
    turns = sum(int(row["counted_turns"]) for row in rows if row.get("counted_turns", 0) > 0)
    if not turns:
        return []
    return [
        f"The server reported no usage in {counted(turns, 'turn')}. --tokenizer counted the tokens"
        " in their text: inferred, not measured."
    ]


def cells_without_a_valid_result(results: Results) -> list[str]:
    caveats, failed, missing = [], results.failed_gates, results.missing
    if failed:
        name, gates = next(iter(failed.items()))
        caveats.append(
            f"{counted(len(failed), 'cell')} of {len(results.cells)} failed a validity gate; the"
            f" first, {name}: {gates}."
        )
    if missing:
        name, why = missing[0]
        caveats.append(
            f"No result in {counted(len(missing), 'cell')} of"
            f" {len(missing) + len(results.cells)}; the first, {name}: {why.rstrip('.')}."
        )
    return caveats


def _more_scheduling_time(points: Sequence[Point], sweep: SweepRecord) -> list[str]:
    added_ps = (sweep.profile_with_offload.base_ps or 0) - (sweep.profile.base_ps or 0)
    if added_ps <= 0 or not any(p.offload for p in points):
        return []
    source = "measured with LMCache" if sweep.scheduling == "async" else TABLE_4
    return [
        f"Each step of a variant with offload takes {added_ps / 1e9:.2f} ms more CPU time than a"
        f" step of the others ({source}), so variants with offload are slower if there is enough"
        " KV memory."
    ]


def _traces_left_out(sweep: SweepRecord) -> list[str]:
    caveats, workload = [], sweep.workload
    if programs := workload.left_out:
        first = programs[0]
        caveats.append(
            f"Left out: {counted(len(programs), 'program')}; the first, {first.program_id}:"
            f" {without_name(first)}.{_repeated(workload)}"
        )
    if files := sweep.rejected_files:
        caveats.append(
            f"Not read: {counted(len(files), 'file')}; the first, {files[0].file}:"
            f" {files[0].reason}."
        )
    return caveats


def _repeated(workload: WorkloadRecord) -> str:
    if (distinct := workload.distinct_programs) is None:
        return ""
    return f" {counted(distinct, 'distinct program')}, repeated to {workload.programs:,}."


def _few_seeds(sweep: SweepRecord, results: Results) -> list[str]:
    seeds = len(sweep.seeds)
    if seeds >= MIN_SEEDS or not len(results.cells) or not is_noise_covered(sweep):
        return []
    few = "the intervals cover the choice of programs, but not the draw of arrivals"
    if sweep.steady_state and seeds == 1:
        few = "there are no intervals, and no difference was tested"
    elif sweep.steady_state:
        few = "the intervals over seeds are so wide that few differences are significant"
    count = "One seed" if seeds == 1 else "Two seeds"
    return [f"{count}: {few}. Use at least three seeds (--seeds 1..5)."]


def _first_loads(saturated: Sequence[Point], points: Sequence[Point]) -> str:
    """Return a phrase such as `fcfs from 0.15 jobs/s; all others at 0.1 and 0.3 jobs/s`."""
    loads = list(dict.fromkeys(p.load for p in points))
    where: dict[tuple[str, ...], list[str]] = {}
    for variant in dict.fromkeys(p.variant for p in saturated):
        at = {p.load for p in saturated if p.variant == variant}
        where.setdefault(tuple(load for load in loads if load in at), []).append(variant)
    count = len({p.variant for p in points})
    largest = max(where.values(), key=len)
    rest = "every variant" if len(largest) == count > 1 else "all others"
    short = rest == "every variant" or (len(largest) > 3 and sum(map(len, where.values())) == count)
    groups = [
        f"{rest if short and names is largest else listed(names, at_most=20)} {_at(at, loads)}"
        for at, names in sorted(
            where.items(), key=lambda i: (short and i[1] is largest, loads.index(i[0][0]))
        )
    ]
    return "; ".join(groups)


def _at(some: Sequence[str], loads: Sequence[str]) -> str:
    """Return `from 0.2 jobs/s` if `some` are the highest of several loads, else list them."""
    if len(loads) > 1 and list(some) == list(loads[-len(some) :]):
        return f"from {some[0]}"
    return f"at {listed(some, at_most=20)}"
