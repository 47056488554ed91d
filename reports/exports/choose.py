"""Chooses the finished cells of a run by name.

In: a run and names. Out: the cells, and the reasons why others cannot be exported.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from reports.run_folder.cell_names import refuse_unknown
from reports.run_folder.read import Cell, Run


@dataclass(frozen=True, slots=True)
class Chosen:
    cells: tuple[Cell, ...]
    missing: tuple[tuple[str, str], ...]
    """The names of chosen cells that cannot be exported, and the reasons."""


def choose(run: Run, names: Sequence[str]) -> Chosen:
    """Choose cells by name, or all if there are no names. Raises UnknownCell."""
    if not names:
        return Chosen(run.cells, run.missing)
    known = [cell.folder.name for cell in run.cells] + [name for name, _ in run.missing]
    refuse_unknown("--cell", names, known, run.folder)
    return Chosen(
        tuple(cell for cell in run.cells if cell.folder.name in names),
        tuple((name, why) for name, why in run.missing if name in names),
    )
