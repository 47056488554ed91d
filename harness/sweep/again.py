"""Runs a cell of a finished sweep again, to keep turns that the sweep did not keep.

In: the plan of the sweep, its run folder, and the name of a cell. Out: the cell with its turns. In
virtual time, the settings of a cell determine every byte of it.
"""

from __future__ import annotations

from pathlib import Path

from harness.cells.locks import locked
from harness.load.settings import Execution, Keep
from harness.sweep.cell import PlannedCell, Work, run_cell
from harness.sweep.fingerprint import same_cell
from harness.sweep.plan import ONE, Cell, SweepPlan
from harness.sweep.run import run_cells
from reports.run_folder.read import read_config, refuse_unknown
from reports.run_folder.turns import has_turns
from servers.basics.errors import CellFailed, InvalidInput


def run_again(plan: SweepPlan, folder: Path, name: str) -> Path:
    """Return the folder of the cell, which has its turns. Raises InvalidInput for a cell that the
    plan does not have, and CellFailed."""
    if not folder.is_dir():
        raise InvalidInput(
            f"--show {name}: no run {folder} with these settings; give its sweep's: "
            f"bench sweep RUN/sweep.toml --out RUN --show {name}"
        )
    known = [path.parent.name for path in sorted(folder.glob("*/cell.json"))]
    refuse_unknown("--show", [name], known, folder)
    path = folder / name
    config = read_config(path)
    cell = Cell(config.variant, config.amount, config.seed, plan.arrivals_text, config.repeat)
    names = [variant.name for variant in plan.variants]
    if config.variant not in names or not same_cell(config, plan.cell_record(cell)):
        raise InvalidInput(
            f"--show {name}: other settings or other code ran this cell; give the settings of its "
            f"sweep, {folder / 'sweep.toml'}, or run the sweep again"
        )
    if has_turns(path):
        return path
    work = {ONE: Work(plan, folder, keep=Keep.TURNS)}
    with locked(folder):
        failed = run_cells([PlannedCell(ONE, cell)], run_cell, work, folder, Execution(workers=1))
    for error in failed.values():
        raise CellFailed(error)
    return path
