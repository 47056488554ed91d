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
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Annotated, Any

import typer

from harness.cli.errors import exit_code, is_stdout_full, terminate
from harness.cli.help import PanelGroup
from harness.console import print_message
from harness.installation import overwritten_agents
from servers.processes.deferred import ENDING

UsageError: Any = typer.BadParameter.__base__
"""Raised for a command line that cannot be parsed; Typer does not export the class."""
COMMANDS = {
    "sweep": "Run policies over job rates, and report which policy finishes jobs first.",
    "plan": "Find the cheapest machines for a number of agents: bench plan TRACES --agents 40",
    "report": "Write and print the report of a run folder again: bench report runs/NAME",
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
    "list": "List policies, routers, hardware, models, packs, experiments, or runs: "
    "bench list policies",
    "open": "Open the report of a run in the browser. Without RUN, open the newest report.",
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


class CommandGroup(PanelGroup):
    """Load a command only when it is called or completed, not for `bench --help`."""

    def get_params(self, ctx: Any) -> list[Any]:
        flags = super().get_params(ctx)
        for flag in flags:  # Typer would import pydantic, 0.1 s, to convert None
            flag.default = flag.default or False
        return flags

    def make_context(self, *args: Any, **options: Any) -> Any:
        with _one_line_if_stopped():
            return super().make_context(*args, **options)

    def invoke(self, ctx: Any) -> Any:
        with _one_line_if_stopped():
            if warning := overwritten_agents():
                print_message(warning)
            return super().invoke(ctx)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        for former in () if ctx.resilient_parsing else (" ".join(args[:2]), args[0]):
            if former in MOVED:
                print(f"bench {former}: is now {MOVED[former]}", file=sys.stderr)
                raise typer.Exit(2)
        name, command, rest = super().resolve_command(ctx, args)
        if name in COMMANDS:
            module = import_module(f"harness.cli.commands.{name}")
            command = typer.main.get_command(module.app)
        return name, command, rest


app = typer.Typer(
    name="bench",
    cls=CommandGroup,
    help="Benchmark schedulers for LLM agents: which one finishes jobs first, and why.\n\n"
    "Start with [bold]bench sweep[/bold]: it finds how many jobs per second each policy "
    "sustains, in virtual time, and writes a report.",
    epilog="Exit codes: 0: success; 1: failed gates or cells without a result; 2: invalid input.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
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
    the name of a run folder. Arguments after `--` are for other programs."""
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
    if error.__cause__ is None:
        return str(error.format_message())
    from pydantic import ValidationError

    from servers.basics.text import brief, requirement

    if not isinstance(error.__cause__, ValidationError) or error.param is None:
        return str(error.format_message())
    first = error.__cause__.errors(include_url=False)[0]
    name = error.param.opts[0] if error.param.opts[0].startswith("-") else error.param.metavar
    reason = re.sub("^'.*' is not one of", "must be one of", requirement(first["msg"]))
    reason, unread, _ = reason.partition(", unable to parse")
    if unread and re.fullmatch(r"\d[\d.,]* ?[A-Za-z/]+", first["input"]):
        reason += " without a unit"
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


for _name, _help in COMMANDS.items():
    app.command(_name, help=_help)(lambda: None)  # `CommandGroup` replaces it by the module's app
