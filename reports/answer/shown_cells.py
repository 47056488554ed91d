"""Chooses the cells that a page shows in detail: the cells of the answer or of --gantt."""

from __future__ import annotations

from collections.abc import Sequence

from reports.answer.verdict import Answer
from reports.metrics.cells import Results
from reports.run_folder.cell_names import refuse_unknown
from reports.run_folder.read import CellRun, Run
from reports.run_folder.turns import refuse_without_turns
from servers.basics.errors import InvalidInput, InvalidRunFolder

MAX_CELLS = 20
"""At most this many cells have a memory figure, which limits the size of the page."""


def answer_cells(run: Run, results: Results, answer: Answer) -> dict[str, CellRun]:
    """Return cells of the first seed at the answer's load, by label.

    The baseline and the winner come first, then the others by mean JCT.
    """
    cells = results.cells
    if cells.empty or answer.load is None:
        return {}
    here = cells[cells["load"] == answer.load]
    here = here[here["seed"] == here["seed"].min()].sort_values("jct_mean_s", kind="stable")
    strong = [p.variant for p in (answer.winner, answer.baseline) if p is not None]
    first = here[here["variant"].isin(strong)]["cell"].tolist()
    return _labelled(run, results, list(dict.fromkeys([*first, *here["cell"]]))[:MAX_CELLS])


def named_cells(run: Run, results: Results, names: Sequence[str]) -> dict[str, CellRun]:
    """Return the named cells by label. Raises InvalidInput."""
    known = [*_finished(results), *dict(results.missing)]
    refuse_unknown("--gantt", names, known, run.folder)
    for name, why in results.missing:
        if name in names:
            raise InvalidInput(f"--gantt {name}: {why}")
    found = _labelled(run, results, names)
    for cell in found.values():
        try:
            refuse_without_turns(cell)
        except InvalidRunFolder as error:
            raise InvalidInput(f"--gantt: {error}") from None
    return found


def _finished(results: Results) -> list[str]:
    return [] if results.cells.empty else results.cells["cell"].tolist()


def _labelled(run: Run, results: Results, names: Sequence[str]) -> dict[str, CellRun]:
    if not names:
        return {}
    folders = {cell.folder.name: cell for cell in run.cells}
    rows = results.cells.set_index("cell")
    return {
        f"{rows['variant'][name]}, {rows['load'][name]}, seed {rows['seed'][name]}": folders[name]
        for name in names
    }
