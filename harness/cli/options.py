"""Convert settings dataclasses (`harness.load.settings`) to command-line options.

In: a command whose parameters are settings dataclasses, `Annotated[T, Option(help)]` as their
fields are, or Typer's. Out: a command with an option for each of these fields and parameters, with
its name, help, panel, default and completion.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import is_dataclass
from functools import wraps
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

import typer

from harness.cli import catalogue
from harness.cli.errors import one_line_errors, options_from_file
from harness.cli.help import Command as HelpCommand
from harness.cli.help import PanelGroup
from harness.load.option import Option, Setting, build, settings_of
from servers.basics.errors import InvalidInput
from servers.basics.registry import load_path

Command = Callable[..., None]


class Only:
    """The options of a group that a command has, in this order: `Annotated[Machine, Only("gpus",
    "model")]`. Keyword arguments override defaults."""

    def __init__(self, *names: str, **defaults: Any) -> None:
        self.names, self.defaults = names, defaults


def _complete(names: Callable[[], Iterable[str]]) -> Callable[[str], list[str]]:
    """Complete the last name of a comma-separated list."""

    def complete(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",")
        return [before + comma + name for name in names() if name.startswith(last)]

    return complete


complete_policies = _complete(lambda: ["all", *catalogue.policy_names()])
COMPLETIONS = {
    "policies": complete_policies,
    "baseline": complete_policies,
    "router": _complete(lambda: load_path("servers.routing:ROUTERS").names()),
    "hardware": _complete(lambda: load_path("servers.profiles:HARDWARE")),
    "model": _complete(lambda: load_path("servers.profiles:MODELS")),
    "agent": _complete(lambda: load_path("harness.load.agent_plan:AGENTS").names()),
}
ONCE = {"background": "a sweep has one; remove one", "slo": "give all limits in one, with commas"}
"""Options that are refused if they are given twice, where the first would be ignored otherwise."""
FILE_HELP = (
    "Settings of a sweep, like the sweep.toml of a run folder; other options override them. Or "
    "files and folders of traces, as with --traces."
)
FILE = inspect.Parameter(
    "file",
    inspect.Parameter.KEYWORD_ONLY,
    default=None,
    annotation=Annotated[
        str | None, typer.Argument(metavar="FILE.toml|TRACES", help=FILE_HELP, show_default=False)
    ],
)
EXPLICIT = ("COMMANDLINE", "ENVIRONMENT")
CONTEXT = inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)


class CommandApp(typer.Typer):
    """An application whose commands take settings."""

    def __init__(self, **options: Any) -> None:
        super().__init__(cls=PanelGroup, add_completion=False, **options)

    def command(  # type: ignore[override]
        self, name: str | None = None, *, help: str | None = None, file: bool = False
    ) -> Callable[[Command], Command]:
        """With `file`, the first argument of the command may be a settings file. Options on the
        command line and in the environment override it."""
        define = super().command(name, cls=HelpCommand, help=help)

        def decorate(command: Command) -> Command:
            define(_with_options(command, file))
            return command

        return decorate


def _with_options(command: Command, file: bool) -> Command:
    """Return the command with options instead of settings."""
    own = inspect.signature(command, eval_str=True).parameters
    groups = {name: _group(parameter.annotation) for name, parameter in own.items()}
    options = [*([] if "context" in own else [CONTEXT]), FILE] if file else []
    for parameter in own.values():
        options += _parameters(parameter)

    @wraps(command)
    def with_options(**given: Any) -> None:
        arguments = {name: given[name] for name in own if name in given}
        path = _settings_file(given) if file else None
        with one_line_errors():
            _refuse_repeated(given)
        with _option_values(path, given) as values, one_line_errors():
            values = {name: value for name, value in values.items() if name not in own}
            settings = {name: build(group, values) for name, group in groups.items() if group}
            command(**arguments, **settings)

    del with_options.__wrapped__  # Typer would read its signature
    with_options.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [option.replace(kind=inspect.Parameter.KEYWORD_ONLY) for option in options]
    )
    with_options.__annotations__ = {option.name: option.annotation for option in options}
    return with_options


def refuse_given(context: typer.Context, names: Container[str], why: str) -> None:
    """Raise InvalidInput for an option on the command line that is one of these."""
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if parameter.name in names and source is not None and source.name == "COMMANDLINE":
            option = parameter.opts[0] if parameter.opts[0].startswith("-") else "flags for vLLM"
            raise InvalidInput(f"{option}: {why}; remove it")


class AllBut:
    """All names but these: `name in AllBut("a", "b")`."""

    def __init__(self, *names: str) -> None:
        self.names = names

    def __contains__(self, name: object) -> bool:
        return name not in self.names


def _group(annotation: Any) -> Any:
    """Return the settings dataclass of a parameter; None for an option."""
    kind = get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation
    return kind if is_dataclass(kind) else None


def _parameters(parameter: inspect.Parameter) -> Iterator[inspect.Parameter]:
    group = _group(parameter.annotation)
    kind, note, *_ = (*get_args(parameter.annotation), None, None)
    if isinstance(note, Option):
        yield _parameter(Setting(parameter.name, kind, note, parameter.default), parameter.default)
    elif group is None:
        yield parameter
    elif isinstance(note, Only):
        settings = settings_of(group)
        for name in note.names:
            yield _parameter(settings[name], note.defaults.get(name, settings[name].default))
    else:
        for setting in settings_of(group).values():
            yield _parameter(setting, setting.default)


def _parameter(setting: Setting, default: Any) -> inspect.Parameter:
    option, kind, text = setting.option, setting.kind, setting.option.help
    if default != setting.default:  # which the help then states beside it
        text = text.partition(" Default:")[0]
    if get_origin(kind) is tuple or setting.name in ONCE:
        kind, default = list[(get_args(kind) or [kind])[0]] | None, None  # type: ignore[misc]
    info: Any
    if option.positional:
        info = typer.Argument(metavar=option.metavar, help=option.help, show_default=False)
    else:
        info = typer.Option(
            setting.flag,
            metavar=option.metavar,
            min=option.min,
            max=option.max,
            envvar=option.envvar,
            exists=option.exists,
            dir_okay=option.dir_okay,
            help=text,
            autocompletion=COMPLETIONS.get(setting.name),
            rich_help_panel=option.panel,
        )
    return inspect.Parameter(
        setting.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[kind, info],
    )


def _refuse_repeated(given: dict[str, Any]) -> None:
    """Replace the lists of options that may be given once by their only value."""
    for name, why in ONCE.items():
        if values := given.get(name):
            if len(values) > 1:
                raise InvalidInput(f"--{name} is given twice; {why}")
            given[name] = values[0]


def _settings_file(given: dict[str, Any]) -> Path | None:
    """Return the settings file. Other first arguments are traces, and then flags for vLLM."""
    first = given.pop("file")
    if first is None or first.endswith(".toml"):
        return first and Path(first)
    words = [first, *(given["vllm_flags"] or ())]
    paths = list(takewhile(_is_trace, words))
    given["traces"] = [*(given["traces"] or ()), *paths] or None
    given["vllm_flags"] = words[len(paths) :] or None
    return None


def _is_trace(word: str) -> bool:
    """Return whether an argument is a pack, or a file or a folder, but neither an option nor a run
    folder."""
    from traces.files import packs  # slow to import; a command without arguments does not need it

    path = Path(word)
    is_file = path.exists() and not (path / "sweep.toml").exists()
    return not word.startswith("-") and (is_file or word in packs())


@contextmanager
def _option_values(path: Path | None, given: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the values of options by name. Inside the context, errors name the settings file."""
    context = given.pop("context", None)
    values = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in given.items()
        if value is not None
    }
    if path is None:
        yield values
        return
    from harness.load.settings_file import read_settings

    explicit = {name for name in values if context.get_parameter_source(name).name in EXPLICIT}
    with one_line_errors():
        from_file = read_settings(path, explicit)
    reset = options_from_file.set((path, from_file.keys() - explicit))
    try:
        yield {**from_file, **{name: values[name] for name in explicit}}
    finally:
        options_from_file.reset(reset)
