"""Runs an experiment and writes its page.

In: an experiment. Out: a folder with a run for each arm and seed, `experiment.html` and
`experiment.json`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from harness.console import print_message
from harness.experiments.definition import Change, Experiment, changed_options, plans
from harness.experiments.scheduler_overhead import scheduler_overhead
from harness.load.settings import Execution
from harness.sweep.run import run_sweeps
from reports.experiment.arms import ArmRun
from reports.experiment.page import ExperimentReport, ExperimentText, finish, write_experiment


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
