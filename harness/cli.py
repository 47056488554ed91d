"""`bench`: results to stdout, progress and complaints to stderr.

Exit code 0: fine; 1: the answer is bad (failed cells or gates); 2: the question is bad. Imports
within commands, so that `bench --help` and completion answer at once.
"""

from __future__ import annotations

import shlex
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from harness import options as opt

if TYPE_CHECKING:
    from harness.question import Asked, Question

app = typer.Typer(
    name="bench",
    help="Which scheduler finishes your agents' jobs first, and why.\n\n"
    "Start with [bold]bench sweep[/bold]: it replays 100 agent programs against every policy over "
    "a range of job rates, in virtual time, and writes a report.",
    epilog="Exit code: 0 fine, 1 the answer is bad (failed cells or gates), 2 the question is bad.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


class Terminated(KeyboardInterrupt):
    """SIGTERM: end as cleanly as on Ctrl-C."""


def main() -> None:
    signal.signal(signal.SIGTERM, _terminate)
    app()


def _terminate(_number: int, _frame: FrameType | None) -> NoReturn:
    raise Terminated


def complain(message: str) -> None:
    print(f"bench: {message}", file=sys.stderr)


@contextmanager
def one_line_errors(on_interrupt: str = "") -> Iterator[None]:
    """What is wrong with a question is one line and exit code 2."""
    try:
        yield
    except (ValueError, OSError) as error:
        complain(" ".join(str(error).split("\n")))
        raise typer.Exit(2) from None
    except KeyboardInterrupt as stop:
        complain("stopped" + on_interrupt)
        raise typer.Exit(143 if isinstance(stop, Terminated) else 130) from None


def _version(wanted: bool) -> None:
    if wanted:
        from importlib import metadata

        print(f"bench {metadata.version('turnstile-bench')}")
        raise typer.Exit


@app.callback()
def _bench(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Options before the command."""


SWEEP_HELP = """Run policies over job rates, and report which finishes the jobs first.

The same command resumes: finished cells are never run twice.

[bold]Examples[/bold]

  bench sweep

  bench sweep --jps 0.1,0.3 --policies fcfs,continuum

  bench sweep --jps 0.3 --seeds 1..5 --traces my-trajectories/ --hardware h100

  bench sweep --arrivals closed:32 --policies all --offload-gb 200
"""


@app.command(help=SWEEP_HELP)
def sweep(
    jps: opt.Jps = None,
    policies: opt.Policies = "all",
    traces: opt.Traces = None,
    programs: opt.Programs = None,
    arrivals: opt.Arrivals = "poisson",
    seeds: opt.Seeds = "1",
    overlong: opt.OverlongPrograms = opt.Overlong.DROP,
    engine: opt.Engine = "sim",
    hardware: opt.Hardware = "a100-80g",
    model: opt.Model = "llama-3.1-8b",
    gpus: opt.Gpus = None,
    offload_gb: opt.OffloadGb = 100.0,
    ssd_gb: opt.SsdGb = 0.0,
    max_num_seqs: opt.MaxNumSeqs = 256,
    step_tokens: opt.StepTokens = 2048,
    max_model_len: opt.MaxModelLen = None,
    kv_blocks: opt.KvBlocks = None,
    baseline: opt.Baseline = None,
    out: opt.Out = None,
    workers: opt.Workers = None,
    on_error: opt.OnErrorOption = opt.OnError.CONTINUE,
) -> None:
    from harness.question import Asked

    asked = Asked(
        jps=jps,
        policies=policies,
        traces=tuple(traces or ()),
        engine=engine,
        hardware=hardware,
        model=model,
        gpus=gpus,
        programs=programs,
        seeds=seeds,
        arrivals=arrivals,
        offload_gb=offload_gb,
        ssd_gb=ssd_gb,
        max_num_seqs=max_num_seqs,
        step_tokens=step_tokens,
        max_model_len=max_model_len,
        kv_blocks=kv_blocks,
        baseline=baseline,
        refuse_overlong=overlong is opt.Overlong.REFUSE,
    )
    folder, failed = _answer(asked, out, workers, on_error)
    with one_line_errors():
        _report(folder, failed)


@app.command()
def run(
    policy: opt.OnePolicy,
    jps: opt.OneJps = None,
    seed: Annotated[int, typer.Option(min=0, help="Draw of the arrivals.")] = 1,
    traces: opt.Traces = None,
    programs: opt.Programs = None,
    arrivals: opt.Arrivals = "poisson",
    overlong: opt.OverlongPrograms = opt.Overlong.DROP,
    engine: opt.Engine = "sim",
    hardware: opt.Hardware = "a100-80g",
    model: opt.Model = "llama-3.1-8b",
    gpus: opt.Gpus = None,
    offload_gb: opt.OffloadGb = 100.0,
    ssd_gb: opt.SsdGb = 0.0,
    max_num_seqs: opt.MaxNumSeqs = 256,
    step_tokens: opt.StepTokens = 2048,
    max_model_len: opt.MaxModelLen = None,
    kv_blocks: opt.KvBlocks = None,
    out: opt.Out = None,
) -> None:
    """Run one cell and show everything about it: bench run --policy continuum --jps 0.3"""
    from harness.question import Asked
    from harness.show import show_cell

    asked = Asked(
        jps=jps,
        policies=policy,
        traces=tuple(traces or ()),
        engine=engine,
        hardware=hardware,
        model=model,
        gpus=gpus,
        programs=programs,
        seeds=str(seed),
        arrivals=arrivals,
        offload_gb=offload_gb,
        ssd_gb=ssd_gb,
        max_num_seqs=max_num_seqs,
        step_tokens=step_tokens,
        max_model_len=max_model_len,
        kv_blocks=kv_blocks,
        refuse_overlong=overlong is opt.Overlong.REFUSE,
    )
    folder, failed = _answer(asked, out, 1, opt.OnError.STOP, one_cell=True)
    if failed:
        raise typer.Exit(1)
    with one_line_errors():
        show_cell(folder)


def _answer(
    asked: Asked,
    out: Path | None,
    workers: int | None,
    on_error: opt.OnError,
    one_cell: bool = False,
) -> tuple[Path, bool]:
    """Runs what is asked; the folder, and whether cells failed."""
    with one_line_errors():
        if workers is not None and workers < 1:
            raise ValueError(f"--workers {workers}: at least 1")
        from harness.doctor import PACKAGES, cpu_cores, package
        from harness.question import resolve
        from harness.sweep import default_folder, run_sweep

        for check in map(package, PACKAGES):
            if not check.good:
                raise ValueError(f"{check.name} is {check.finding}; {check.remedy}")
        question = resolve(asked)
        if one_cell and len(question.cells()) != 1:
            raise ValueError(f"that is {len(question.cells())} cells; bench sweep runs many")
        folder = out or default_folder(question)
    with one_line_errors(f"; finished cells are kept, go on with: {_same_command()}"):
        outcome = run_sweep(
            question,
            folder,
            workers=workers or cpu_cores(),
            stop_on_error=on_error is opt.OnError.STOP,
            on_begin=lambda: _say_what_runs(question),
        )
    if outcome.found_done:
        complain(f"{outcome.found_done} of {outcome.cells} cells were finished already")
    if outcome.failed:
        first = folder / next(iter(outcome.failed)) / "failed.json"
        complain(
            f"{len(outcome.failed)} of {outcome.cells} cells failed, see {first}; "
            f"run them again with: {_same_command()}"
        )
    return folder, bool(outcome.failed)


def _same_command() -> str:
    return shlex.join(["bench", *sys.argv[1:]])


def _say_what_runs(question: Question) -> None:
    profile, load = question.profile, question.workload
    print(
        f"engine sim: virtual time, {profile.provenance} profile of {profile.model} "
        f"on {profile.hardware}, nothing measured on a GPU"
    )
    shape = [
        _count(len(question.variants), "policy", "policies"),
        _count(len(question.rates), "load"),
        _count(len(question.seeds), "seed"),
    ]
    print(
        f"{load.name}: {_count(len(load.programs), 'program')}, {_count(load.turns, 'turn')}; "
        + " x ".join(shape),
        flush=True,
    )
    _some("left out", [left.reason for left in load.left_out])
    _some("rejected", [f"{note.file}: {note.reason}" for note in load.rejected_files])
    _some("repaired", [f"{note.file}: {note.reason}" for note in load.repairs], most=0)


def _count(number: int, one: str, many: str = "") -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"


def _some(what: str, reasons: list[str], most: int = 5) -> None:
    for reason in reasons[:most]:
        complain(f"{what}: {reason}")
    if more := len(reasons) - most if len(reasons) > most else 0:
        complain(f"{what}: {more}{' more' if most else ''}, named in sweep.json")


def _report(folder: Path, failed: bool = False) -> None:
    """Prints the answer; exit code 1 if it is bad."""
    from rich.console import Console

    import reports

    report = reports.write_report(folder)
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 200)
    console.print("", *report.answer, "", sep="\n", markup=False)
    console.print(report.table)
    console.print(f"\nreport: {report.path}", markup=False, soft_wrap=True)
    for gate in report.failed_gates:
        complain(f"gate failed: {gate}")
    if failed or report.failed_gates:
        raise typer.Exit(1)


class Things(StrEnum):
    POLICIES = "policies"
    HARDWARE = "hardware"
    MODELS = "models"
    PACKS = "packs"


@app.command("list")
def list_(things: Annotated[Things, typer.Argument(help="What to list.")]) -> None:
    """List what can be named: policies, hardware, models, packs."""
    from harness import catalogue
    from harness.show import show_rows

    show_rows(getattr(catalogue, things.value)())


@app.command()
def doctor() -> None:
    """Is this machine set up, and what to do where it is not."""
    from harness.doctor import checks
    from harness.show import show_rows

    found = checks()
    show_rows([("ok" if c.good else "NOT OK", c.name, c.finding) for c in found])
    for check in found:
        if not check.good:
            complain(f"{check.name}: {check.remedy}")
    if not all(check.good for check in found):
        raise typer.Exit(1)
