"""A run and names in; its finished cells of these names out, and why others are not there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from reports.load import Cell, Run
from reports.words import counted


class NoSuchCell(ValueError):
    """A name that no cell of the run has."""


@dataclass(frozen=True, slots=True)
class Chosen:
    cells: tuple[Cell, ...]
    missing: tuple[tuple[str, str], ...]
    """Of those asked for: name, and why it cannot be exported."""


def choose(run: Run, names: Sequence[str]) -> Chosen:
    """Without names, all."""
    if not names:
        return Chosen(run.cells, run.missing)
    known = [cell.folder.name for cell in run.cells] + [name for name, _ in run.missing]
    for name in names:
        if name not in known:
            raise NoSuchCell(f"--cell {name}: {run.folder} has no such cell; {_hint(name, known)}")
    return Chosen(
        tuple(cell for cell in run.cells if cell.folder.name in names),
        tuple((name, why) for name, why in run.missing if name in names),
    )


def _hint(name: str, known: Sequence[str]) -> str:
    if close := get_close_matches(name, known, n=1):
        return f"did you mean {close[0]}?"
    return f"it has {counted(len(known), 'cell')}, named as its folders"
