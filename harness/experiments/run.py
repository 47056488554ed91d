"""Runs an experiment, or measures the programs of its workloads, and writes its page.

In: an experiment. Out: a folder with a run for each arm and seed, `experiment.html` and
`experiment.json`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from harness.console import print_message
from harness.experiments.definition import Change, Experiment, Synthesis, changed_options, plans
from harness.experiments.scheduler_overhead import scheduler_overhead
from harness.load.rates import parse_seeds
from harness.load.settings import Execution
from harness.sweep.run import run_sweeps
from reports.experiment.arms import ArmRun
from reports.experiment.judge import judge
from reports.experiment.page import ExperimentReport, ExperimentText, finish, write_experiment
from traces import Program
from traces.stats import Statistics, statistics

SHORT_S = 1.0
EARLY_CALLS = 10
"""Number of calls of a tool after which its mean time is first estimated."""


def workload_frames(experiment: Experiment) -> dict[str, pd.DataFrame]:
    """Return the frames by the name of the arm."""
    frames = {}
    for arm in experiment.all_arms():
        workload, seeds = experiment.workload_of(arm), experiment.settings(arm).seeds
        rows = [row for seed in parse_seeds(seeds or "1") for row in _rows(workload, seed)]
        frames[arm.name] = pd.DataFrame(rows)
    return frames


def _rows(workload: Synthesis, seed: int) -> list[dict[str, Any]]:
    programs = workload.with_seed(seed).draw()
    found = statistics(programs)
    gaps = [t.tool_gap_s for p in programs for t in p.turns[:-1] if t.tools]
    whole = {
        "variant": workload.recipe,
        "turns_max": max(len(p.turns) for p in programs),
        "tool_within_1s_ratio": float(np.mean(np.asarray(gaps) <= SHORT_S)),
        "tokens_left_ratio": _tokens_left(programs),
        **_moments(workload, found),
    }
    tools = [
        {
            "variant": tool.tool,
            "tool_mean_ms": tool.mean_s * 1000,
            "tail_ratio": tool.slowest_tenth_share,
            **_mean_errors(programs, tool.tool),
        }
        for tool in found.tools
    ]
    return [{"jps": 0.0, "seed": seed, **row} for row in (whole, *tools)]


def _moments(workload: Synthesis, found: Statistics) -> dict[str, float]:
    is_sum = workload.tokens == "sum" or workload.recipe.endswith("-sum")
    tokens = found.summed_tokens if is_sum else found.final_context_tokens
    return {
        "turns_mean": found.turns.mean,
        "turns_sd": found.turns.sd,
        "tool_mean_ms": found.tool_gap_s.mean * 1000,
        "tool_sd_ms": found.tool_gap_s.sd * 1000,
        "tokens_mean": tokens.mean,
        "tokens_sd": tokens.sd,
    }


def _tokens_left(programs: Sequence[Program]) -> float:
    """Return the mean number of tokens that are still to be computed after the median number of
    turns, in programs that have more, ÷ that at the start of all programs."""
    middle = int(np.median([len(p.turns) for p in programs]))
    later = [_computed(p, middle) for p in programs if len(p.turns) > middle]
    start = float(np.mean([_computed(p, 0) for p in programs]))
    return float(np.mean(later)) / start if later else 0.0


def _computed(program: Program, first: int) -> int:
    return sum(t.new_tokens + t.output_tokens for t in program.turns[first:])


def _mean_errors(programs: Sequence[Program], tool: str) -> dict[str, float]:
    """Return the relative errors of the mean time of the first calls, and of half of the calls."""
    gaps = [
        turn.tool_gap_s
        for program in programs
        for turn in program.turns[:-1]
        if turn.tools and turn.tools[0] == tool
    ]
    mean = float(np.mean(gaps))
    if len(gaps) < 2 * EARLY_CALLS or not mean:
        return {}
    early, late = (
        abs(float(np.mean(gaps[:calls])) / mean - 1) for calls in (EARLY_CALLS, len(gaps) // 2)
    )
    return {
        "early_mean_error": early,
        "late_mean_error": late,
        "mean_error_fall": early - late,
    }


def measure(
    experiment: Experiment,
    about: ExperimentText,
    folder: Path,
    change: Change,
    workers: int,
    arguments: Sequence[str],
) -> ExperimentReport:
    """Raise MeasurementUnavailable if what it measures is not installed. `arguments` of the
    command are recorded."""
    if experiment.kind == "scheduler-overhead":
        return finish(about, tuple(scheduler_overhead()), folder)
    if experiment.kind == "workload":
        frames = workload_frames(experiment)
        return finish(about, tuple(judge(check, frames) for check in experiment.checks), folder)
    return _sweeps(experiment, about, folder, change, workers, arguments)


def _sweeps(
    experiment: Experiment,
    about: ExperimentText,
    folder: Path,
    change: Change,
    workers: int,
    arguments: Sequence[str],
) -> ExperimentReport:
    parts = list(plans(experiment, folder, change))
    by_folder = {part.folder: part.plan for part in parts}
    outcome = run_sweeps(by_folder, folder, Execution(workers=workers), arguments=arguments)
    if outcome.found_done:
        print_message(f"{outcome.found_done} of {outcome.cells} cells were finished already")
    arms = [
        ArmRun(
            arm.name,
            arm.x,
            tuple(folder / part.folder for part in parts if part.arm == arm),
            arm.axis or experiment.axis,
        )
        for arm in experiment.all_arms()
    ]
    changed = changed_options(experiment, change)
    report = write_experiment(about, arms, experiment.checks, folder, changed)
    failed = [f"{cell}: {why}".partition("\n")[0] for cell, why in outcome.failed.items()]
    return replace(report, failed=(*failed, *report.failed))
