"""Makes command-line options of settings dataclasses (`harness.load.settings`).

In: a command with parameters that are settings dataclasses. Out: a command with an option for each
field of those dataclasses: its name, help, panel, default and completion.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import is_dataclass
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

import typer

from harness.cli import catalogue
from harness.cli.errors import one_line_errors, options_from_file
from harness.load.option import Setting, build, settings_of

Command = Callable[..., None]


class Only:
    """`Annotated[Machine, Only("gpus", "model")]`: the command has these options of the group, in
    this order. Keyword arguments replace defaults."""

    def __init__(self, *names: str, **defaults: Any) -> None:
        self.names, self.defaults = names, defaults


class Without:
    """`Annotated[SweepSettings, Without("seeds")]`: the command lacks these options."""

    def __init__(self, *names: str) -> None:
        self.names = names


def complete_policies(incomplete: str) -> list[str]:
    """Completes the last name of a comma list."""
    before, comma, last = incomplete.rpartition(",")
    names = ["all", *catalogue.policy_names()]
    return [before + comma + name for name in names if name.startswith(last)]


def _complete(names: Callable[[], list[str]]) -> Callable[[str], list[str]]:
    return lambda incomplete: [name for name in names() if name.startswith(incomplete)]


COMPLETIONS = {
    "policies": complete_policies,
    "baseline": complete_policies,
    "hardware": _complete(catalogue.hardware_names),
    "model": _complete(catalogue.model_names),
    "agent": _complete(catalogue.agent_names),
}
FILE_HELP = (
    "Settings of a sweep, as in the sweep.toml of each run folder; options given here override it."
)
FILE = inspect.Parameter(
    "file",
    inspect.Parameter.KEYWORD_ONLY,
    default=None,
    annotation=Annotated[
        str | None, typer.Argument(metavar="FILE.toml", help=FILE_HELP, show_default=False)
    ],
)
EXPLICIT = ("COMMANDLINE", "ENVIRONMENT")
CONTEXT = inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)


def takes_settings(*, file: bool = False) -> Callable[[Command], Command]:
    """Replaces each parameter of a command that is a settings dataclass by options for its fields.
    With `file`, the first argument of the command may be a settings file, which options on the
    command line and in the environment override."""

    def decorate(command: Command) -> Command:
        own = inspect.signature(command, eval_str=True).parameters
        groups = {name: _group(each.annotation) for name, each in own.items()}
        options = [CONTEXT, FILE] if file else []
        for name, each in own.items():
            options += [each] if groups[name] is None else _parameters(each.annotation)

        @wraps(command)
        def with_options(**given: Any) -> None:
            values = {name: given[name] for name in own if name in given}
            path = _settings_file(given) if file else None
            with _values(path, given) as found:
                built = {name: build(group, found) for name, group in groups.items() if group}
                command(**values, **built)

        del with_options.__wrapped__  # or Typer would read its options
        with_options.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in options]
        )
        with_options.__annotations__ = {each.name: each.annotation for each in options}
        return with_options

    return decorate


def _group(annotation: Any) -> Any:
    """The settings dataclass of a parameter; None for an option of Typer."""
    kind = get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation
    return kind if is_dataclass(kind) else None


def _parameters(annotation: Any) -> Iterator[inspect.Parameter]:
    settings = settings_of(_group(annotation))
    chosen = next(iter(get_args(annotation)[1:]), Without())
    if isinstance(chosen, Only):
        for name in chosen.names:
            yield _parameter(settings[name], chosen.defaults.get(name, settings[name].default))
        return
    for name, setting in settings.items():
        if name not in chosen.names:
            yield _parameter(setting, setting.default)


def _parameter(setting: Setting, default: Any) -> inspect.Parameter:
    option, kind = setting.option, setting.kind
    if get_origin(kind) is tuple:
        kind, default = list[get_args(kind)[0]] | None, None  # type: ignore[misc]
    info: Any
    if option.positional:
        info = typer.Argument(metavar=option.metavar, help=option.help, show_default=False)
    else:
        info = typer.Option(
            setting.flag,
            *option.also,
            metavar=option.metavar,
            min=option.min,
            envvar=option.envvar,
            exists=option.exists,
            dir_okay=option.dir_okay,
            help=option.help,
            autocompletion=COMPLETIONS.get(setting.name),
            rich_help_panel=option.panel,
        )
    return inspect.Parameter(
        setting.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[kind, info],
    )


def _settings_file(given: dict[str, Any]) -> Path | None:
    """The first word is a flag for vLLM if it is not the name of a TOML file."""
    word = given.pop("file")
    if word is None or word.endswith(".toml"):
        return word and Path(word)
    given["vllm_flags"] = [word, *(given["vllm_flags"] or ())]
    return None


@contextmanager
def _values(path: Path | None, given: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The value of each option that has one. While a command runs on a settings file, its errors
    name the file."""
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
        found = read_settings(path, explicit)
    reset = options_from_file.set((path, found.keys() - explicit))
    try:
        yield {**found, **{name: values[name] for name in explicit}}
    finally:
        options_from_file.reset(reset)
