"""`bench experiment list | run`: reproduces published figures, with a verdict each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli.errors import one_line_errors
from harness.console import complain
from harness.installation import cpu_cores
from servers.errors import InvalidInput

if TYPE_CHECKING:
    from harness.experiments.definition import Experiment
    from harness.load.settings import SweepSettings
    from reports.experiment.page import ExperimentReport

HELP = "Reproduce published figures: measured and published numbers, and a verdict."
app = typer.Typer(rich_markup_mode="rich", add_completion=False, no_args_is_help=True, help=HELP)
OUT = Path("runs/experiments")


@app.callback()
def experiment() -> None:
    pass


@app.command("list")
def list_command() -> None:
    """List experiments with their titles and sources. Run one with: bench experiment run NAME."""
    from harness.experiments.definition import load, names

    for name in names():
        found = load(name)
        why = f"; not testable here: {found.not_testable}" if found.not_testable else ""
        print(f"{name}\t{found.title} ({found.source}){why}")


RUN_HELP = """Run experiments and test their claims, in virtual time by default.

Writes a folder of sweeps and a page with the figure for each experiment. The same command resumes.
Exit code 1: a cell failed. A claim that fails is a valid result, with exit code 0.

[bold]Examples[/bold]

  bench experiment run fig16

  bench experiment run --all

  bench experiment run my-own.toml --engine vllm --model tiny --jps 0.5
"""


@app.command("run", help=RUN_HELP)
def run_command(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME…", help="A name of bench experiment list, or a TOML file."),
    ] = None,
    all_: Annotated[bool, typer.Option("--all", help="All experiments of Turnstile.")] = False,
    out: Annotated[
        Path, typer.Option("--out", help="Folder that contains a folder for each experiment.")
    ] = OUT,
    engine: Annotated[
        str, typer.Option("--engine", help="sim, vllm-virtual, vllm or a URL, as for bench sweep.")
    ] = "sim",
    model: Annotated[
        str | None,
        typer.Option("--model", help="Replaces the experiment's model, on a live engine."),
    ] = None,
    jps: Annotated[
        str | None, typer.Option("--jps", help="Replaces the experiment's job rates.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option("--workers", min=1, help="Parallel processes. Default: all cores.")
    ] = None,
) -> None:
    from harness.experiments import definition as experiment

    failed = False
    with one_line_errors("; finished cells are kept, resume with the same command"):
        chosen = experiment.names() if all_ else names or []
        if not chosen or (all_ and names):
            raise InvalidInput("name experiments (bench experiment list), or give --all")
        change = experiment.with_engine(engine, model, jps)
        for found in [experiment.load(name) for name in chosen]:
            report = _run(found, out / found.name, workers or cpu_cores(), change)
            failed |= bool(report.failed)
            _tell(found, report)
    if failed:
        raise typer.Exit(1)


def _run(
    found: Experiment, folder: Path, workers: int, change: Callable[[SweepSettings], SweepSettings]
) -> ExperimentReport:
    from harness.experiments.definition import arm_folder, plans
    from harness.experiments.special_kinds import MEASURES
    from harness.sweep.run import run_sweep
    from reports.experiment.page import ArmRun, ExperimentText, finish, write_experiment
    from servers.errors import MeasurementUnavailable

    about = ExperimentText(**{name: getattr(found, name) for name in ExperimentText.__slots__})
    if found.not_testable:
        return finish(about, (), folder)
    if found.kind in MEASURES:
        try:
            return finish(about, tuple(MEASURES[found.kind]()), folder)
        except MeasurementUnavailable as why:
            return finish(replace(about, not_testable=str(why)), (), folder)
    failed: list[str] = []
    for arm, plan in list(plans(found, folder, change)):
        outcome = run_sweep(plan, arm_folder(folder, arm), workers=workers)
        if outcome.found_done:
            done = f"{outcome.found_done} of {outcome.cells} cells were finished already"
            complain(f"{arm.name}: {done}")
        for cell, error in outcome.failed.items():
            failed.append(f"{arm.name}: {cell}: {error}".partition("\n")[0])
    arms = [ArmRun(arm.name, arm.x, arm_folder(folder, arm)) for arm in found.all_arms()]
    report = write_experiment(about, arms, found.checks, folder)
    return replace(report, failed=(*failed, *report.failed))


def _tell(found: Experiment, report: ExperimentReport) -> None:
    print(f"{found.name}: {found.title}\n  {report.verdict}")
    for finding in report.findings:
        mark = "holds" if finding.holds else "fails"
        published = f"; published {finding.published}" if finding.published else ""
        says = f"{finding.reading}: {finding.says}" if finding.reading else finding.says
        print(f"  {mark}: {says}: {finding.ours}{published}")
    print(f"  page: {report.path}", flush=True)
    for line in report.failed:
        complain(f"failed: {line}")
