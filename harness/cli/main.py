"""The `bench` application. Results go to stdout, progress and errors to stderr.

Exit codes: 0: success; 1: failed gates or cells without a result; 2: invalid input. Commands defer
their imports until they run, to keep `bench --help` and completion fast.
"""

from __future__ import annotations

import io
import os
import re
import signal
import sys
from contextlib import contextmanager
from dataclasses import replace
from enum import StrEnum
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from harness.cli.errors import exit_code, is_stdout_full, one_line_errors, terminate
from harness.cli.options import refuse_given, takes_settings
from harness.cli.run_from_settings import resume_hint, run_from_settings
from harness.console import print_message
from harness.load.settings import RUN as RUN_PANEL
from harness.load.settings import Execution, SweepSettings
from servers.processes.deferred import ENDING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from reports.answer.condition import Condition

UsageError: Any = typer.BadParameter.__base__
"""Raised for a command line that cannot be parsed; Typer does not export the class."""
SUB_APPS = {
    "compare": "Test whether a run is slower than another: bench compare runs/before runs/after",
    "export": "Export a run as files for other tools: bench export runs/NAME --format parquet",
    "serve": "Run vLLM with a policy of Turnstile, until Ctrl-C: bench serve --policy continuum",
    "profile": "Measure how fast vLLM is here, for virtual time and policies: "
    "bench profile --model tiny",
    "fidelity": "Compare virtual time with a live vLLM: "
    "bench fidelity --jps 0.2,0.5,2 --kv-blocks 400",
    "gateway": "Run an OpenAI-compatible proxy that identifies and records programs: "
    "bench gateway URL",
    "record": "Record a trace of any OpenAI client: bench record [URL] -- COMMAND",
    "experiment": "Reproduce a published figure, with a verdict: bench experiment fig16",
    "traces": "Inspect, convert, synthesize and anonymize traces.",
    "doctor": "Check whether this machine is set up, and print what to do if it is not.",
}
"""Help of the commands whose Typer `app` is in `harness.cli.commands.NAME`."""
MOVED = {
    "run": "bench sweep --one",
    "history": "bench compare, with files of bench compare --save",
    "verify": "bench doctor --pins",
    "profile show": "bench profile --show",
    "fidelity --silicon": "make silicon",
    "experiment list": "bench list experiments",
    "experiment run": "bench experiment",
    "traces stats": "bench traces inspect",
    "traces report": "bench traces inspect --html FILE",
    "traces distance": "bench traces fit --check RECIPE",
    "traces check": "bench traces anonymize --check",
    "traces pack": "bench traces convert --to packed",
}
"""Former commands, and what replaces them."""


@contextmanager
def _one_line_if_stopped() -> Iterator[None]:
    """Print one line if a signal arrives outside `one_line_errors`; Typer would print none."""
    try:
        yield
    except KeyboardInterrupt as stop:
        print_message("stopped")
        raise typer.Exit(exit_code(stop)) from None


class Group(TyperGroup):
    """Load a sub-app only when it is called or completed, not for `bench --help`."""

    def make_context(self, *args: Any, **options: Any) -> Any:
        with _one_line_if_stopped():
            return super().make_context(*args, **options)

    def invoke(self, ctx: Any) -> Any:
        with _one_line_if_stopped():
            return super().invoke(ctx)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        for former in () if ctx.resilient_parsing else (" ".join(args[:2]), args[0]):
            if former in MOVED:
                print(f"bench {former}: is now {MOVED[former]}", file=sys.stderr)
                raise typer.Exit(2)
        name, command, rest = super().resolve_command(ctx, args)
        if name in SUB_APPS:
            module = import_module(f"harness.cli.commands.{name}")
            command = typer.main.get_command(module.app)
        if command is not None:  # None: completion of an unknown command
            _join_lines(command)
        return name, command, rest


def _join_lines(command: Any) -> None:
    """Join the lines of each paragraph of the help, because Typer prints single line breaks."""
    command.help = re.sub(r"(?<!\n)\n(?!\n)", " ", command.help or "")
    for inner in getattr(command, "commands", {}).values():
        _join_lines(inner)


app = typer.Typer(
    name="bench",
    cls=Group,
    help="Benchmark schedulers for LLM agents: which one finishes jobs first, and why.\n\n"
    "Start with [bold]bench sweep[/bold]: it finds how many jobs per second each policy "
    "sustains, in virtual time, and writes a report.",
    epilog="Exit codes: 0: success; 1: failed gates or cells without a result; 2: invalid input.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main() -> None:
    _install_handlers()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal without UTF-8 cannot print dashes
            stream.reconfigure(errors="replace")
    _refuse_control_characters(sys.argv[1:])
    try:
        code = app(standalone_mode=False)
        sys.stdout.flush()
    except UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            error.show()
            sys.exit(2)
        hint = f"; {error.ctx.command_path} --help" if error.ctx else ""
        print_message(" ".join(_usage_message(error).split()).rstrip(".") + hint)
        sys.exit(2)
    except OSError as error:
        if not is_stdout_full(error):
            raise
        print_message("cannot write stdout: no space left on device; free some space")
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # Python flushes stdout at exit
        sys.exit(2)
    except KeyboardInterrupt as stop:
        print_message("stopped")
        sys.exit(exit_code(stop))
    finally:  # a signal during exit would print a traceback
        for number in (signal.SIGINT, *ENDING):
            signal.signal(number, signal.SIG_DFL)
    sys.exit(code)


def _refuse_control_characters(arguments: list[str]) -> None:
    """Exit if an argument would move the cursor or change colours wherever it is printed, such as
    the name of a run folder. Arguments after `--` are those of other programs."""
    own = arguments[: arguments.index("--")] if "--" in arguments else arguments
    for argument in own:
        if re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f]", argument):
            print_message(f"{argument}: contains a control character; remove it")
            sys.exit(2)


def _install_handlers() -> None:
    """Let signals raise KeyboardInterrupt, except those that nohup or a shell has ignored."""
    for number in (signal.SIGINT, *ENDING):
        if signal.getsignal(number) != signal.SIG_IGN:
            handler = signal.default_int_handler if number == signal.SIGINT else terminate
            signal.signal(number, handler)


def _usage_message(error: Any) -> str:
    """Return Typer's message, with the value added if its type or bounds are wrong."""
    from pydantic import ValidationError

    from servers.basics.text import brief, requirement

    if not isinstance(error.__cause__, ValidationError) or error.param is None:
        return str(error.format_message())
    first = error.__cause__.errors(include_url=False)[0]
    name = error.param.opts[0] if error.param.opts[0].startswith("-") else error.param.metavar
    reason = re.sub("^'.*' is not one of", "must be one of", requirement(first["msg"]))
    reason = reason.partition(", unable to parse")[0]
    return f"{name or error.param.name} {brief(first['input'])}: {reason}"


def _version(requested: bool) -> None:
    if requested:
        from importlib import metadata

        print(f"bench {metadata.version('turnstile-bench')}")
        raise typer.Exit


@app.callback()
def _bench(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Define the options that precede the command."""


class Tables(StrEnum):
    BRIEF = "brief"
    FULL = "full"


TableOption = Annotated[
    Tables,
    typer.Option(
        help="Printed tables. brief: policies by rates, and the numbers at the rate of the "
        "answer if they differ, in 80 columns. full: the numbers at all rates.",
        rich_help_panel=RUN_PANEL,
    ),
]
OF_SEVERAL_CELLS = (
    *("baseline", "slo", "aa", "repeats", "fail_unless", "until", "table"),
    *("workers", "on_error", "shard", "cluster"),
)
"""Options that `--one` does not support."""
SWEEP_HELP = """Run policies over job rates, and report which policy finishes jobs first.

Run the same command again to resume: finished cells are never run twice. With one more policy,
rate or seed, only the new cells run.

[bold]Examples[/bold]

Find the rate that each policy sustains, for the built-in trace on a simulated GPU:

  bench sweep

Compare job completion times at given rates, or those of your own traces on another GPU:

  bench sweep --jps 0.1,0.3 --policies fcfs,continuum

  bench sweep --traces my-trajectories/ --hardware h100 --jps 0.3 --seeds 1..5

Look at one cell: its settings, its result, and where the time went:

  bench sweep --one --policies continuum --jps 0.3

Keep 32 jobs in flight, with 200 GB of DRAM for the KV of policies that offload:

  bench sweep --arrivals closed:32 --policies all --offload-gb 200

Set the SLO that defines capacity, or fail unless one policy is better:

  bench sweep --slo 'mean<=3x,p95<=300s' --seeds 1..5

  bench sweep --fail-unless 'capacity(continuum) >= 1.3 * capacity(fcfs)'

Measure a live vLLM that bench starts for each policy, or a server that runs already:

  bench sweep --engine vllm --model tiny --kv-blocks 200 --policies fcfs,continuum --seeds 1..5

  bench sweep --engine http://127.0.0.1:8000 --jps 0.5

Run real agents instead of replaying recorded programs:

  bench sweep --agent mini-swe-agent --guided --traces my-trajectories/ --engine vllm --jps 0.2

Distribute the cells over machines:

  bench sweep --no-capacity --seeds 1..20 --out /shared/run --shard 3/16

  bench sweep --cluster head-node:6379
"""


@app.command(help=SWEEP_HELP)
@takes_settings(file=True)
def sweep(
    *,
    context: typer.Context,
    settings: SweepSettings,
    execution: Execution,
    one: Annotated[
        bool,
        typer.Option(
            "--one",
            help="Run one cell (one policy, rate and seed; default: seed 1), and print its "
            "settings, its result, and where the time went.",
            rich_help_panel=RUN_PANEL,
        ),
    ] = False,
    fail_unless: Annotated[
        str | None,
        typer.Option(
            metavar="CONDITION",
            help="Exit with code 1 unless this holds, in quotes: 'capacity(continuum) >= 1.3 * "
            "capacity(fcfs)' or 'mean_jct(continuum, at=0.3) <= 60'.",
            rich_help_panel=RUN_PANEL,
        ),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option(
            metavar="SHARE",
            help="Add seeds, up to 24, until the 95% interval of each capacity ratio is within "
            "plus or minus this share, such as 5%.",
            rich_help_panel=RUN_PANEL,
        ),
    ] = None,
    table: TableOption = Tables.BRIEF,
) -> None:
    if one:
        with one_line_errors():
            refuse_given(context, OF_SEVERAL_CELLS, "not supported with --one")
        _run_one(settings, execution)
        return
    from harness.cli.print_report import print_report

    with one_line_errors():
        condition = None if fail_unless is None else _condition(fail_unless)
        _check_shard(execution, fail_unless, until)
    if until is None:
        folder, failed = run_from_settings(settings, execution, sys.argv[1:], condition=condition)
    else:
        folder, failed = _until(until, settings, execution, condition)
    if execution.shard is not None:
        raise typer.Exit(1 if failed else 0)
    with one_line_errors(resume_hint(sys.argv[1:])):
        print_report(folder, failed, condition=condition, full=table is Tables.FULL)


def _run_one(settings: SweepSettings, execution: Execution) -> None:
    from harness.cli.tables import show_cell

    # A settings file of a whole sweep may have a baseline and an SLO.
    settings = replace(
        settings, seeds=settings.seeds or "1", baseline=None, slo=None, no_capacity=True
    )
    folder, failed = run_from_settings(
        settings, replace(execution, workers=1), sys.argv[1:], one_cell=True
    )
    if failed:
        raise typer.Exit(1)
    with one_line_errors(resume_hint(sys.argv[1:])):
        gates = show_cell(folder)
    if gates:
        print_message(f"failed: {gates}")
        raise typer.Exit(1)


def _check_shard(execution: Execution, fail_unless: str | None, until: str | None) -> None:
    """Raise InvalidInput if a shard is given with options that it cannot have."""
    if execution.shard is None:
        return
    from harness.load.shard import parse_shard
    from servers.basics.errors import InvalidInput

    shard = parse_shard(execution.shard)
    if execution.cluster is not None:
        raise InvalidInput(
            f"--shard {shard}: --cluster {execution.cluster} distributes all cells itself; remove "
            "one of the two"
        )
    if execution.out is None:
        raise InvalidInput(f"--shard {shard}: add --out with a folder that all shards share")
    for option, value in (("--fail-unless", fail_unless), ("--until", until)):
        if value is not None:
            raise InvalidInput(
                f"--shard {shard}: {option} needs the cells of all shards; give it to the same "
                "command without --shard, at the end"
            )


def _until(
    text: str, settings: SweepSettings, execution: Execution, condition: Condition | None
) -> tuple[Path, Mapping[str, str]]:
    from harness.cli.until import parse_until, refuse_until, run_until, widest_ratio
    from harness.sweep.folder import default_folder
    from harness.sweep.resolve import resolve

    with one_line_errors():
        share = parse_until(text)
        refuse_until(settings, text)
        folder = execution.out or default_folder(resolve(settings))
    run = partial(
        run_from_settings,
        execution=replace(execution, out=folder),
        arguments=sys.argv[1:],
        condition=condition,
    )
    return run_until(settings, share, folder, run, widest_ratio)


def _condition(text: str) -> Condition:
    from reports.answer.condition import parse_condition

    return parse_condition(text)


@app.command()
def report(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder of bench sweep.")],
    gantt: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CELL",
            help="Folder name of a cell whose programs are drawn individually; repeatable.",
        ),
    ] = None,
    evaluation: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CELL=FILE",
            help="SWE-bench's report on a cell's predictions.jsonl, for its pass rate; repeatable.",
        ),
    ] = None,
    table: TableOption = Tables.BRIEF,
) -> None:
    """Write and print the report of a run folder again: bench report runs/NAME

    [bold]Examples[/bold]

      bench report runs/NAME --table full

      bench report runs/NAME --gantt continuum_jps0.3_seed1
    """
    from harness.cli.print_report import print_report

    with one_line_errors():
        print_report(
            run, gantt=gantt or (), evaluations=evaluation or (), full=table is Tables.FULL
        )


for _name, _help in SUB_APPS.items():
    app.command(_name, help=_help)(lambda: None)  # `Group` replaces it by the module's app


class Listing(StrEnum):
    POLICIES = "policies"
    ROUTERS = "routers"
    HARDWARE = "hardware"
    MODELS = "models"
    PACKS = "packs"
    EXPERIMENTS = "experiments"
    RUNS = "runs"


@app.command("list")
def list_(
    listing: Annotated[Listing, typer.Argument(metavar="THING", help="What to list.")],
) -> None:
    """List policies, routers, hardware, models, packs, experiments, or runs: bench list policies

    Runs are those under runs/, by load and date. The option --hardware of other commands also takes
    a TOML file that describes another GPU: see docs/howto/my-gpu.md.
    """
    from harness.cli import catalogue
    from harness.cli.tables import show_rows

    show_rows(getattr(catalogue, listing.value)(), heads=catalogue.HEADS[listing.value])


@app.command("open")
def open_(
    run: Annotated[
        Path | None,
        typer.Argument(
            metavar="[RUN]", help="A run folder. Default: the run whose report is newest."
        ),
    ] = None,
) -> None:
    """Open the report of a run in the browser. Without RUN, open the newest report."""
    import webbrowser

    from harness.cli.commands.open import report_to_open

    with one_line_errors():
        path = report_to_open(run)
    print(path)
    if sys.stdout.isatty():
        webbrowser.open(path.resolve().as_uri())
