"""Finds policies, trace formats, engines and agents by name or by dotted path.

In: the text of an option, such as `continuum` or `my_module:MyPolicy`. Out: the object that it
names. A name is one of ours, or an entry point of an installed package in the registry's group:

    [project.entry-points."turnstile.policies"]
    short-first = "my_package.policies:ShortFirst"

A module is imported when one of its objects is loaded, never to list names. vLLM loads this file,
so it needs the standard library only.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import pkgutil
import re
import sys
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from servers.basics.errors import InvalidPlugin, UnknownName
from servers.basics.nearest import did_you_mean, nearest

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

OURS = "turnstile-bench"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
"""Names that an entry point may have: folders of a run are named after them."""


@dataclass(frozen=True, slots=True)
class Registry:
    kind: str
    """What messages call one of its objects: "policy"."""
    group: str
    """Group of the entry points of installed packages: "turnstile.policies"."""
    built_in: Mapping[str, str]
    """Dotted path of each name of ours: `package.module:attribute`, or a module."""
    remedy: str
    """What messages suggest instead of an unknown name."""
    option: str = ""
    """The option that accepts these names, for messages."""

    def names(self) -> list[str]:
        """Return our own names, then installed packages'. Raise InvalidPlugin for a
        duplicate."""
        return [*self.built_in, *self.installed()]

    def installed(self) -> dict[str, EntryPoint]:
        found: dict[str, EntryPoint] = {}
        for entry in _entry_points(self.group, tuple(sys.path)):
            if entry.name in self.built_in or entry.name in found:
                first = _package(found[entry.name]) if entry.name in found else OURS
                raise InvalidPlugin(
                    f"the {self.kind} {entry.name!r} is registered twice, by {first} and by "
                    f"{_package(entry)}; uninstall one of them"
                )
            if not NAME.fullmatch(entry.name):
                raise InvalidPlugin(
                    f"{_package(entry)} registers a {self.kind} named {entry.name!r}: use letters, "
                    "digits, dots, dashes and underscores"
                )
            found[entry.name] = entry
        return found

    def load(self, text: str) -> Any:
        """Return the object with this name or dotted path."""
        installed = self.installed()
        if text in self.built_in:
            return load_path(self.built_in[text])
        if text in installed:
            entry = installed[text]
            try:
                return load_path(entry.value)
            except (Exception, SystemExit) as error:
                raise InvalidPlugin(
                    f"the {self.kind} {text!r} of {_package(entry)} cannot be loaded from "
                    f"{entry.value}: {_one_line(error)}; repair or uninstall that package"
                ) from error
        if is_path(text):
            return self._load_from_user(text)
        raise UnknownName(self.unknown(text, self.names()))

    def source(self, text: str) -> str | None:
        """Return the package that registered this name, with its version; None for other texts."""
        entry = self.installed().get(text)
        return None if entry is None else _package(entry)

    def unknown(self, text: str, known: Sequence[str]) -> str:
        option = f"{self.option} {text}: " if self.option else ""
        return (
            f"{option}no {self.kind} is called {text!r}{did_you_mean(text, known)} "
            f"(known: {', '.join(known)}; or {self.remedy})"
        )

    def _load_from_user(self, path: str) -> Any:
        """Load a dotted path, also from modules in the working directory."""
        here = os.getcwd()
        if here not in sys.path:
            sys.path.append(here)
        option = f"{self.option} " if self.option else ""
        try:
            return load_path(path)
        except AttributeNotFound as missing:
            raise InvalidPlugin(f"{option}{path}: {missing}") from None
        except (Exception, SystemExit) as error:
            raise InvalidPlugin(
                f"{option}{path}: the import failed with {_one_line(error)}; "
                f"{_remedy(error, path, here)}"
            ) from error


class AttributeNotFound(AttributeError):
    """A module has no such attribute."""


def is_path(text: str) -> bool:
    return bool(re.search("[.:]", text))


def load_path(path: str) -> Any:
    """Return the attribute `b` for `a:b`. For `a.b` return the module of that name, or else the
    attribute. Raise whatever the import raises."""
    module_name, colon, attributes = path.partition(":")
    if not colon:
        if _is_module(path):
            return importlib.import_module(path)
        module_name, _, attributes = path.rpartition(".")
    found: Any = importlib.import_module(module_name)
    for attribute in attributes.split("."):
        if not hasattr(found, attribute):
            where = getattr(found, "__file__", None) or "built in"
            close = did_you_mean(attribute, dir(found))
            raise AttributeNotFound(f"{module_name} ({where}) has no {attributes}{close}")
        found = getattr(found, attribute)
    return found


def _is_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # the part before the last dot is a module but not a package
        return False


@cache
def _entry_points(group: str, _path: tuple[str, ...]) -> tuple[EntryPoint, ...]:
    """Return the entry points of packages on this path, in the same order on every machine."""
    from importlib.metadata import entry_points  # slow to import

    found = entry_points(group=group)
    return tuple(sorted(found, key=lambda entry: (entry.name, _package(entry))))


def _package(entry: EntryPoint) -> str:
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist else "a package without a name"


def _remedy(error: BaseException, path: str, here: str) -> str:
    """Return what a user can do about a dotted path that cannot be imported."""
    install = "run where it can be imported, or install it into this environment"
    if not isinstance(error, ModuleNotFoundError) or not error.name:
        return "correct that line" if _place(error) else install
    package, _, module = error.name.rpartition(".")
    folders = getattr(sys.modules.get(package), "__path__", ()) if package else [here]
    close = nearest(module, [found.name for found in pkgutil.iter_modules(folders)])
    hint = f"did you mean {close}? " if close else ""
    if not re.match(rf"{re.escape(error.name)}([.:]|$)", path):
        correct = f"{hint}Correct" if hint else "correct"
        return f"{correct} that line, or install {package or module} into this environment"
    return f"{hint}Otherwise, {install}" if hint else install


def _one_line(error: BaseException) -> str:
    """Return the error and, if a module of the user raised it, the file and line there."""
    text = error.msg if isinstance(error, SyntaxError) else error
    return " ".join(f"{type(error).__name__}: {text}".split()) + _place(error)


def _place(error: BaseException) -> str:
    """Return the line of the user that raised the error, as " at mine.py:3"."""
    if isinstance(error, SyntaxError) and error.filename:
        return f" at {error.filename}:{error.lineno}" if error.lineno else f" in {error.filename}"
    steps = [
        step
        for step in traceback.extract_tb(error.__traceback__)
        if step.filename not in (__file__, importlib.__file__) and step.filename[0] != "<"
    ]
    folder = os.path.dirname(steps[0].filename) if steps else ""
    own = [f" at {s.filename}:{s.lineno}" for s in steps if s.filename.startswith(folder)]
    return own[-1] if own else ""
