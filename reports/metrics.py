"""Turns of a cell in; its jobs, its metrics and its validity out, as docs/metrics.md defines them.

Seconds and tokens throughout. Entries of docs/metrics.md are cited by their symbol.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from reports.load import HITS, PARTS, Cell, NotARun, Run, read_turns
from reports.words import counted, listed

Floats = npt.NDArray[Any]

PERCENTILES = (50, 90, 95, 99)
MAX_RESIDUAL = 0.01
"""Of a program's span: its parts must add up to it."""
MAX_LATENESS = 0.01
"""Of all JCT: more, and the client is measured, not the server."""
GROWTH_AT_SATURATION = 0.1
"""g, from which on a cell counts as saturated: of ten jobs that arrive, one only waits."""
JOBS_TO_JUDGE = 12
"""With fewer jobs a third of the arrivals says nothing about a trend."""


@dataclass(frozen=True, slots=True)
class Results:
    cells: pd.DataFrame
    """One row per finished cell, named by the columns of `cells.csv`."""
    jobs: pd.DataFrame
    """One row per job of each: cell, variant, load, seed, job_id, jct_s."""
    missing: tuple[tuple[str, str], ...]
    """Cells without a result, and why."""

    @property
    def failed_gates(self) -> dict[str, str]:
        """By cell, in the order of the cells."""
        rows = self.cells.to_dict("records")
        return {str(row["cell"]): str(row["failed_gates"]) for row in rows if row["failed_gates"]}


def collect(run: Run) -> Results:
    rows: list[dict[str, Any]] = []
    frames: list[pd.DataFrame] = []
    missing = list(run.missing)
    for cell in run.cells:
        try:
            turns = read_turns(cell)
        except NotARun as error:
            missing.append((cell.folder.name, str(error)))
            continue
        jobs = jobs_of(turns)
        row = cell_row(cell, turns, jobs)
        rows.append(row)
        good = jobs.loc[~jobs["failed"], ["jct_s"]].reset_index()
        frames.append(good.assign(**{k: row[k] for k in ("cell", "variant", "load", "seed")}))
    jobs_frame = pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()
    return Results(pd.DataFrame(rows), jobs_frame, tuple(sorted(missing)))


def load_label(jps: float | None, arrivals: str) -> str:
    """What a cell is put under: its rate, or how its jobs arrive where there is none."""
    return arrivals if jps is None else f"{jps:g} jobs/s"


def jobs_of(turns: pd.DataFrame) -> pd.DataFrame:
    """A row per job, sub-agents inside: a_j, d_j, JCT_j, q_j and lateness, in order of arrival."""
    codes, names = pd.factorize(turns["job_id"], sort=True)
    late = turns["sent_at_s"] - turns["scheduled_at_s"]
    arrival, departure = _extremes(codes, len(names), turns)
    jobs = pd.DataFrame(
        {
            "arrival_s": arrival,
            "departure_s": departure,
            "jct_s": departure - arrival,
            "queue_s": np.bincount(codes, turns["queue_s"], len(names)),
            "lateness_s": np.bincount(codes, late, len(names)),
            "failed": np.bincount(codes, turns["error"].notna(), len(names)) > 0,
        },
        index=pd.Index(names, name="job_id"),
    )
    return jobs.sort_values("arrival_s", kind="stable")


def _extremes(codes: Floats, groups: int, turns: pd.DataFrame) -> tuple[Floats, Floats]:
    """When the first turn of each group was due, and when its last one finished."""
    first, last = np.full(groups, np.inf), np.full(groups, -np.inf)
    np.minimum.at(first, codes, turns["scheduled_at_s"].to_numpy())
    np.maximum.at(last, codes, turns["finished_at_s"].to_numpy())
    return first, last


def cell_row(cell: Cell, turns: pd.DataFrame, jobs: pd.DataFrame) -> dict[str, Any]:
    config = cell.config
    done, good = jobs[~jobs["failed"]], turns[turns["error"].isna()]
    prompt = float(good["prompt_tokens"].sum())
    hits = {hit: _sum(good[hit]) / prompt if prompt else math.nan for hit in HITS}
    span = float(done["departure_s"].max() - done["arrival_s"].min()) if len(done) else math.nan
    growth = math.nan
    if not str(config["arrivals"]).startswith("closed"):
        growth = backlog_growth(turns, jobs)
    row: dict[str, Any] = {
        "cell": cell.folder.name,
        "variant": config["variant"],
        "bound": bool(config.get("bound")),
        "offload": bool(config.get("offload")),
        "jps": config["jps"],
        "load": load_label(config["jps"], str(config["arrivals"])),
        "seed": config["seed"],
        "jobs": len(done),
        "jct_mean_s": float(done["jct_s"].mean()) if len(done) else math.nan,
        **jct_percentiles(done["jct_s"]),
        "throughput_jobs_per_s": len(done) / span if span > 0 else math.nan,
        "hit_ratio": sum(hits.values()),
        "device_hit_ratio": hits["device_hit_tokens"],
        "dram_hit_ratio": hits["dram_hit_tokens"],
        "ssd_hit_ratio": hits["ssd_hit_tokens"],
        "computed_ratio": 1.0 - sum(hits.values()),
        "queue_mean_s": float(done["queue_s"].mean()) if len(done) else math.nan,
        "preemptions": _sum(turns["preemptions"]),
        "failed_turns": int(turns["error"].notna().sum()),
        "drain_s": float(jobs["departure_s"].max() - jobs["arrival_s"].max()),
        "backlog_growth": growth,
        "saturated": bool(growth >= GROWTH_AT_SATURATION),
        "residual": residual(turns),
        "lateness_ratio": _ratio(done["lateness_s"].sum(), done["jct_s"].sum()),
    }
    row["failed_gates"] = "; ".join(failed_gates(cell, row, jobs, len(good), turns))
    return row


def jct_percentiles(jct_s: pd.Series) -> dict[str, float]:
    """Linear between the two nearest ranks, as numpy's default."""
    values = jct_s.to_numpy(dtype=float)
    points = np.percentile(values, PERCENTILES) if len(values) else [math.nan] * len(PERCENTILES)
    return {f"jct_p{p}_s": float(v) for p, v in zip(PERCENTILES, points, strict=True)}


def residual(turns: pd.DataFrame) -> float:
    """ε: the largest share of a program's span that its parts leave unexplained (or exceed it by);
    programs with a failed turn are not asked."""
    codes, names = pd.factorize(turns["program_id"])
    parts = turns[[*PARTS, "gap_s", "wait_s"]].to_numpy().sum(axis=1)
    parts += (turns["sent_at_s"] - turns["scheduled_at_s"]).to_numpy()
    first, last = _extremes(codes, len(names), turns)
    span = last - first
    off = np.abs(span - np.bincount(codes, parts, len(names))) / np.maximum(span, 1e-9)
    good = np.bincount(codes, turns["error"].notna(), len(names)) == 0
    return float(off[good].max(initial=0.0))


def backlog_growth(turns: pd.DataFrame, jobs: pd.DataFrame) -> float:
    """g = (W̄₃ − W̄₁) / (⅔ n): by how many waiting jobs the backlog grows per arriving job.

    W̄₁ and W̄₃ are the mean numbers of waiting jobs in the first and the last third of the time in
    which jobs arrive; ⅔ n jobs arrive between the middles of the two. NaN where too few arrive.
    """
    first, last = float(jobs["arrival_s"].min()), float(jobs["arrival_s"].max())
    if len(jobs) < JOBS_TO_JUDGE or last <= first:
        return math.nan
    third = (last - first) / 3
    starts, ends = _waiting(turns)
    early = _mean_overlap(starts, ends, first, first + third)
    late = _mean_overlap(starts, ends, last - third, last)
    return (late - early) / (len(jobs) * 2 / 3)


def _waiting(turns: pd.DataFrame) -> tuple[Floats, Floats]:
    """Intervals in which a job waits for the server, merged over its turns. Records tell how long
    a turn waited after its admission, not when: taken to follow its queueing."""
    waits = turns[["queue_s", "load_s", "preempted_s", "recompute_s"]].to_numpy().sum(axis=1)
    codes, _ = pd.factorize(turns["job_id"])
    starts = turns["sent_at_s"].to_numpy()
    order = np.lexsort((starts, codes))
    codes, starts, ends = codes[order], starts[order], (starts + waits)[order]
    # Each job on a stretch of time of its own, so that one running maximum serves all.
    stretch = codes * (float(ends.max(initial=0.0)) + 1.0)
    reached = np.maximum.accumulate(ends + stretch)
    before = np.concatenate(([-np.inf], reached[:-1])) - stretch
    starts = np.maximum(starts, before)
    return starts, np.maximum(starts, ends)


def _mean_overlap(starts: Floats, ends: Floats, begin: float, end: float) -> float:
    inside = np.clip(ends, begin, end) - np.clip(starts, begin, end)
    return float(inside.sum() / (end - begin))


def failed_gates(
    cell: Cell, row: dict[str, Any], jobs: pd.DataFrame, good_turns: int, turns: pd.DataFrame
) -> list[str]:
    """Why the cell's numbers are not to be relied on. Saturation is shown, but fails no gate."""
    failed: list[str] = []
    expected = cell.config["workload"].get("turns")
    if row["failed_turns"]:
        errors = turns["error"].dropna()
        failed.append(
            f"{counted(row['failed_turns'], 'failed turn')} in"
            f" {counted(int(jobs['failed'].sum()), 'job')} (first: {errors.iloc[0]})"
        )
    elif expected is not None and good_turns != expected:
        failed.append(f"{good_turns:,} of {expected:,} turns were recorded")
    failed += _failed_engine_gates(cell)
    if row["residual"] > MAX_RESIDUAL:
        failed.append(f"parts miss a program's time by {row['residual']:.1%}")
    if row["lateness_ratio"] > MAX_LATENESS:
        failed.append(
            f"client lateness is {row['lateness_ratio']:.1%} of the JCT: lower the rate, or give"
            " the client more cores"
        )
    return failed


def _failed_engine_gates(cell: Cell) -> list[str]:
    """What a live engine, unlike virtual time, may have failed to do in silence."""
    done = cell.done or {}
    failed: list[str] = []
    if done.get("external_hit_tokens") == 0:
        failed.append("no token came from the offload tier: it does not work, or was not needed")
    if done.get("prefix_caching") is False:
        failed.append("prefix caching was off")
    idle = [k for k, turns in enumerate(done.get("turns_per_replica") or []) if not turns]
    if idle:
        failed.append(f"replica {listed([str(k) for k in idle])} was given no turn")
    return failed


def _sum(values: pd.Series) -> float:
    """NaN if the engine did not tell one of them."""
    return float(values.sum(skipna=False))


def _ratio(part: float, whole: float) -> float:
    return float(part / whole) if whole > 0 else 0.0
