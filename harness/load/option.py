"""Fields of settings dataclasses as command-line options and keys of a settings file.

In: a frozen dataclass whose fields are `Annotated[T, Option(help)] = default`, or nested ones of
this kind. Out: its options, flattened, and instances built from option values. A field, its option
and its key have the same name.
"""

from __future__ import annotations

import os.path
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache
from typing import Any, NamedTuple, TypeVar, get_args, get_type_hints

Group = TypeVar("Group")


@dataclass(frozen=True, slots=True)
class Option:
    help: str
    metavar: str | None = None
    panel: str | None = None
    """The heading under which `--help` shows the option. Default: `PANEL` of its dataclass."""
    min: float | None = None
    max: float | None = None
    """Only the command line checks it."""
    envvar: str | None = None
    exists: bool = False
    """The value is a path that must exist."""
    dir_okay: bool = True
    positional: bool = False
    opt_in: bool = False
    """Of a machine: engines refuse it unless they say that they take it, as all of a server."""
    in_file: bool = True
    """False: only the command line accepts it."""
    is_list: bool = False
    """The value is a comma-separated list (`elements`), or a list in a settings file. A file in the
    folder of the settings file may be named without the folder."""


class Setting(NamedTuple):
    """A field of a settings dataclass or of a nested one."""

    name: str
    kind: Any
    """The type of the field, without the annotation."""
    option: Option
    default: Any

    @property
    def flag(self) -> str:
        return option_name(self.name)


def option_name(name: str) -> str:
    """A name that is a keyword or a function of Python ends with an underscore."""
    return "--" + name.rstrip("_").replace("_", "-")


def elements(text: str | None) -> list[str]:
    """Return the elements of a comma-separated list. An existing path may contain commas."""
    if text is None:
        return []
    if "," not in text or os.path.exists(text):
        return [text]
    return [part.strip() for part in text.split(",")]


@cache
def settings_of(group: type) -> Mapping[str, Setting]:
    """Return the options of a settings dataclass and its nested ones, by name."""
    return {setting.name: setting for setting in _settings(group)}


def _settings(group: type) -> Iterator[Setting]:
    hints = get_type_hints(group, include_extras=True)
    for field in fields(group):
        hint = hints[field.name]
        if is_dataclass(hint):
            yield from _settings(hint)  # type: ignore[arg-type]
        else:
            kind, option = get_args(hint)
            own = replace(option, panel=option.panel or getattr(group, "PANEL", None))
            yield Setting(field.name, kind, own, field.default)


def build(group: type[Group], values: Mapping[str, Any]) -> Group:
    """Build a settings dataclass. Options that `values` lacks keep their defaults."""
    hints = get_type_hints(group)
    arguments = {}
    for field in fields(group):  # type: ignore[arg-type]
        if is_dataclass(hints[field.name]):
            arguments[field.name] = build(hints[field.name], values)
        elif field.name in values:
            arguments[field.name] = values[field.name]
    return group(**arguments)


def values_of(settings: Any) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for field in fields(settings):
        value = getattr(settings, field.name)
        values |= values_of(value) if is_dataclass(value) else {field.name: value}
    return values
