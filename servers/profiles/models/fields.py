"""Reads fields of a config.json. Errors name the config, the field, its value and a remedy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from servers.basics.errors import InvalidInput

MOST = 2**31
MOST_LAYERS = 1024


class Fields:
    """The fields of a config, with defaults for missing ones."""

    def __init__(
        self,
        values: Mapping[str, Any],
        where: str,
        defaults: Mapping[str, Any] | None = None,
        written_as: Mapping[str, str] | None = None,
    ) -> None:
        self.values, self.where, self.defaults = values, where, defaults or {}
        self._written_as = written_as or {}

    def renamed(self, names: Mapping[str, str]) -> Fields:
        """Return the fields with the values of others that have one, by the names to replace.
        Errors give the names of the config."""
        found = {name: value for name in names if (value := self.get(names[name])) is not None}
        written_as = {name: names[name] for name in found}
        return Fields({**self.values, **found}, self.where, self.defaults, written_as)

    def get(self, *names: str) -> Any:
        """Return the first of these fields that has a value, or None."""
        return self._find(names)[1]

    def _find(self, names: Sequence[str]) -> tuple[str, Any]:
        for source in (self.values, self.defaults):
            for name in names:
                if source.get(name) is not None:
                    return name, source[name]
        return names[0], None

    def written_as(self, name: str) -> str:
        """Return the name that a field has in the config."""
        return self._written_as.get(name, name)

    def count(
        self, *names: str, default: int | None = None, least: int = 1, most: int = MOST
    ) -> int:
        name, value = self._find(names)
        if value is None:
            if default is None:
                raise InvalidInput(
                    f"{self.where}: lacks {name}, so that its sizes are unknown; give the "
                    "config.json of a text model as its authors published it"
                )
            return default
        if isinstance(value, str):
            raise self.problem(name, value, "must be a number, not text; remove the quotes")
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise self.problem(name, value, f"must be a whole number from {least} to {most}")
        return value

    def flag(self, name: str, default: bool = False) -> bool:
        value = self.get(name)
        if value is not None and not isinstance(value, bool):
            raise self.problem(name, value, "must be true or false")
        return default if value is None else value

    def inner(self, name: str) -> Mapping[str, Any]:
        value = self.get(name) or {}
        if not isinstance(value, Mapping):
            raise self.problem(name, value, "must be an object")
        return value

    def problem(self, name: str, value: object, reason: str) -> InvalidInput:
        named = self.written_as(name)
        return InvalidInput(f"{self.where}: {named} is {written(value)}: {reason}")


def written(value: object) -> str:
    """Return a field's value for an error, in at most 42 characters."""
    if isinstance(value, str):
        return repr(value[:40])
    return str(value).lower() if isinstance(value, bool) else str(value)[:40]
