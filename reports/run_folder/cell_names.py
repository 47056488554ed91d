"""Checks names of cells from the command line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from servers.basics.errors import InvalidInput
from servers.basics.nearest import nearest
from servers.basics.phrasing import listed


def refuse_unknown(option: str, names: Sequence[str], known: Sequence[str], run: Path) -> None:
    """Raise InvalidInput for a name that is not in `known`. `option` was given the names."""
    for name in names:
        if name not in known:
            raise InvalidInput(f"{option} {name}: {run} has no such cell{_hint(name, known)}")


def _hint(name: str, known: Sequence[str]) -> str:
    if close := nearest(name, known):
        return f"; did you mean {close}?"
    return f"; choose from {listed(known)}" if known else ""
