"""Checks names of cells from the command line."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path

from reports.phrasing import listed
from servers.errors import UnknownCell


def refuse_unknown(option: str, names: Sequence[str], known: Sequence[str], run: Path) -> None:
    """Raise UnknownCell for a name that is not in `known`. `option` was given the names."""
    for name in names:
        if name not in known:
            raise UnknownCell(f"{option} {name}: {run} has no such cell{_hint(name, known)}")


def _hint(name: str, known: Sequence[str]) -> str:
    if close := get_close_matches(name, known, n=1):
        return f"; did you mean {close[0]}?"
    return f"; choose from {listed(known)}" if known else ""
