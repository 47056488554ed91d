"""`bench experiment`: reproduce published figures and print a verdict for each."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli.errors import one_line_errors
from harness.cli.options import CommandApp
from harness.console import print_message
from harness.load.option import Option
from servers.admission import Admission
from servers.basics.cores import cpu_cores
from servers.basics.errors import InvalidInput, MeasurementUnavailable
from servers.profiles.cpu_time import Scheduling

if TYPE_CHECKING:
    from harness.experiments.definition import Change, Experiment
    from reports.experiment.page import ExperimentReport

app = CommandApp()
OUT = Path("runs/experiments")


def _complete_names(incomplete: str) -> list[str]:
    from harness.experiments.definition import names

    return [name for name in names() if name.startswith(incomplete)]


HELP = """Reproduce published figures and test their claims, in virtual time by default.

Writes a folder of sweeps and a page with the figure for each experiment. Run the same command again
to resume. Each seed draws its own programs and arrivals, and each claim is judged by its interval
over seeds: it holds, does not hold, or cannot be said. Exit code 1: a cell failed. A claim that
does not hold is a valid result with exit code 0, and 1 with --strict.

[bold]Examples[/bold]

  bench experiment fig16

  bench experiment --all

  bench experiment my-own.toml --engine vllm --model tiny --jps 0.5
"""


@app.command(help=HELP)
def experiment(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME…",
            help="A name from bench list experiments, or a TOML file.",
            autocompletion=_complete_names,
        ),
    ] = None,
    all_: Annotated[bool, Option("Run all built-in experiments.")] = False,
    out: Annotated[Path, Option("Parent of the experiments' folders.", "FOLDER")] = OUT,
    engine: Annotated[
        str, Option("sim, vllm-virtual, vllm or a URL, as for bench sweep.", "NAME")
    ] = "sim",
    model: Annotated[
        str | None, Option("Override the experiment's model on a live engine.", "NAME|PATH|ID")
    ] = None,
    jps: Annotated[str | None, Option("Override the experiment's job rates.", "RATES")] = None,
    admission: Annotated[
        Admission | None, Option("Override the experiment's admission rule.")
    ] = None,
    scheduling: Annotated[
        Scheduling | None, Option("Override the experiment's CPU time between steps.")
    ] = None,
    seeds: Annotated[
        str | None, Option("Override the experiment's seeds, which are 1..5.", "SEEDS")
    ] = None,
    strict: Annotated[bool, Option("Exit with 1 if an experiment's claims do not hold.")] = False,
    workers: Annotated[
        int | None, Option("Parallel processes. Default: all cores.", "N", min=1)
    ] = None,
) -> None:
    from harness.experiments import definition as experiments
    from reports.experiment.significance import ClaimOutcome

    failed = False
    with one_line_errors("; finished cells are kept, resume with the same command"):
        chosen = experiments.names() if all_ else names or []
        if not chosen or (all_ and names):
            raise InvalidInput("give names from bench list experiments, or --all")
        change = experiments.with_engine(engine, model, jps, admission, scheduling, seeds)
        for each in [experiments.load(name) for name in chosen]:
            report = _run(each, out / each.name, workers or cpu_cores(), change)
            failed |= bool(report.failed) or (strict and report.outcome is ClaimOutcome.FAILS)
            _print_report(each, report)
    if failed:
        raise typer.Exit(1)


def _run(experiment: Experiment, folder: Path, workers: int, change: Change) -> ExperimentReport:
    from harness.experiments.run import measure
    from reports.experiment.page import ExperimentText, finish

    about = ExperimentText(**{name: getattr(experiment, name) for name in ExperimentText.__slots__})
    if experiment.not_testable:
        return finish(about, (), folder)
    try:
        return measure(experiment, about, folder, change, workers, sys.argv[1:])
    except MeasurementUnavailable as missing:
        return finish(replace(about, not_testable=str(missing)), (), folder)


def _print_report(experiment: Experiment, report: ExperimentReport) -> None:
    from reports.experiment.setup import sentences

    print(f"{experiment.name}: {experiment.title}\n  {report.verdict}")
    if report.changed:
        print(f"  {report.changed}")
    for finding in report.findings:
        published = f"; published {finding.published}" if finding.published else ""
        reading = f"{finding.reading}: " if finding.reading else ""
        print(f"  {finding.outcome}: {reading}{finding.says}: {finding.ours}{published}")
    for line in sentences(report.setups):
        print(f"  run with: {line}")
    print(f"  page: {report.path}", flush=True)
    for line in report.failed:
        print_message(f"failed: {line}")
