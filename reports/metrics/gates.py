"""Checks the validity gates of a cell (docs/reference/metrics.md, "Validity gates").

In: the turns and jobs of a cell. Out: a phrase per failed gate. No gate checks saturation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from reports.metrics.jct import extremes
from reports.metrics.metric import COUNT, SHARE, Facts, Group, Metric, Value
from reports.metrics.waterfall import WATERFALL, in_server
from reports.run_folder.read import CellRun
from reports.run_folder.turns import PARTS, TRANSFER, Turns, failed_turns
from servers.basics.phrasing import counted, listed
from servers.basics.text import one_line

MAX_RESIDUAL = 0.01
"""Largest allowed relative difference between a program's span and the sum of its parts."""
MAX_LATENESS = 0.01
"""Largest allowed share of client lateness in the JCT. Above it, the client is too slow."""


def residual(turns: Turns, jobs: Turns) -> float:
    """Return ε, the largest relative difference of a program's span or a job's JCT from its parts.

    Programs and jobs with a failed turn are left out.
    """
    difference_s = np.abs(jobs["jct_s"] - sum(jobs[part] for part in WATERFALL))
    of_jobs = (difference_s / np.maximum(jobs["jct_s"], 1e-9))[~jobs["failed"]]
    return max(_of_programs(turns), float(of_jobs.max(initial=0.0)))


def _of_programs(turns: Turns) -> float:
    codes, names = pd.factorize(turns["program_id"])
    parts = sum(in_server(turns)) + turns["sent_at_s"] - turns["scheduled_at_s"]
    for part in (*PARTS, *TRANSFER, "gap_s", "wait_s"):
        if part not in ("queue_s", "prefill_s", "decode_s"):
            parts = parts + turns[part]
    first, last = extremes(codes, len(names), turns)
    span = last - first
    off = np.abs(span - np.bincount(codes, parts, len(names))) / np.maximum(span, 1e-9)
    good = np.bincount(codes, failed_turns(turns), len(names)) == 0
    good &= np.bincount(codes, turns["turn"] == 0, len(names)) > 0  # others began in a warm-up
    return float(off[good].max(initial=0.0))


def _validity(facts: Facts) -> dict[str, Value]:
    found: dict[str, Value] = {
        "residual": residual(facts.turns, facts.jobs),
        "lateness_ratio": facts.lateness_ratio,
    }
    if (stalls := facts.cell.done.client_stalls) is not None:
        found |= {"client_stalls": len(stalls), "stalled_jobs": facts.left_out}
    if (refusals := facts.cell.done.refusals) is not None:
        found["refusals"] = refusals
    if (counted_turns := facts.cell.done.counted_turns) is not None:
        found["counted_turns"] = counted_turns
    return found


VALIDITY = Group(
    _validity,
    (
        Metric("residual", SHARE, "lower").means("[ε](#validity-gates)."),
        Metric("lateness_ratio", SHARE, "lower").means(
            "Σ (`sent_at_s` − `scheduled_at_s`) ÷ Σ JCT.",
            "With `--scenario` ÷ the time of the requests.",
        ),
        Metric("client_stalls", COUNT).means(
            "[Stalls of the client machine](#stalls-of-the-client-machine), in live cells."
        ),
        Metric("stalled_jobs", COUNT).means("Jobs that are left out because of stalls."),
        Metric("refusals", COUNT, "lower").means(
            "Requests that a full queue refused and that were sent again, in live cells."
        ),
        Metric("counted_turns", COUNT, "lower").means(
            "Turns whose tokens `--tokenizer` counted, because the server reports no usage."
        ),
    ),
)


def failed_gates(facts: Facts, row: Mapping[str, Any]) -> list[str]:
    """`row`: the columns of the cell."""
    failed: list[str] = []
    cell, jobs, turns, requests = facts.cell, facts.jobs, facts.turns, facts.requests
    good_turns = int((~failed_turns(turns)).sum())
    expected = cell.config.workload.turns
    if row["failed_turns"] and cell.config.scenario is None:  # whose rules allow some
        first = one_line(turns["error"][failed_turns(turns)][0])
        failed.append(
            f"{counted(row['failed_turns'], 'failed turn')} in"
            f" {counted(int(jobs['failed'].sum()), 'job')} (first: {first})"
        )
    elif (window := cell.done.window) is not None:
        if not row["unstable"] and row["jobs"] != window.jobs:
            failed.append(f"{row['jobs']:,} of {window.jobs:,} measured jobs were recorded")
    elif expected is not None and good_turns != expected:
        failed.append(f"{good_turns:,} of {expected:,} turns were recorded")
    if (errors := requests["error"][failed_turns(requests)]).size:
        failed.append(
            f"{counted(len(errors), 'failed request')} of the background"
            f" (first: {one_line(errors[0])})"
        )
    failed += _failed_engine_gates(cell)
    if row["residual"] > MAX_RESIDUAL:
        failed.append(f"the parts of a program's time differ from it by {row['residual']:.1%}")
    if row["lateness_ratio"] > MAX_LATENESS:
        stalls = cell.done.client_stalls
        where = f", with {counted(len(stalls), 'stall')} of the client machine" if stalls else ""
        whole, load = "the JCT", "rate"
        if cell.config.scenario is not None:
            whole, load = "the time of requests", "number of agents"
        failed.append(
            f"client lateness is {row['lateness_ratio']:.1%} of {whole}{where}: lower the {load},"
            " or give the client more cores"
        )
    return failed


def _failed_engine_gates(cell: CellRun) -> list[str]:
    """Check for faults of a live engine that raise no error. Virtual time cannot have them."""
    failed: list[str] = []
    if cell.done.external_hit_tokens == 0:
        failed.append("no token came from the offload tier: it does not work, or was not needed")
    if cell.done.prefix_caching is False:
        failed.append("prefix caching was off")
    idle = [k for k, turns in enumerate(cell.done.turns_per_replica or []) if not turns]
    if idle:
        failed.append(f"replica {listed([str(k) for k in idle])} received no turn")
    return failed
