"""The numbers of a cell in virtual time, which the process that runs it computes and stores.

In: what a cell recorded. Out: `numbers.json.zst`, from which reports are written without the turns.
Numbers that other code computed are computed again from the turns, or by a sweep that runs the cell
again if its turns were not kept.
"""

from __future__ import annotations

import ast
import hashlib
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import zstandard

from reports.metrics.jct import job_columns
from reports.metrics.measure import JOB_COLUMNS, MeasuredCell, Recorded, Row, measure
from reports.metrics.metric import Value
from reports.run_folder.lines import CELL_NUMBERS, RERUN
from reports.run_folder.read import CellRun
from reports.run_folder.turns import Turns, has_turns, read_columns
from servers.basics.errors import InvalidRunFolder
from servers.basics.text import MALFORMED, one_line

ROOT = Path(__file__).parents[2]
CODE = ("reports/metrics", "reports/run_folder", "servers/records")
"""Folders whose code decides the numbers of given turns."""
UNSTABLE = "unstable"


class CellNumbers(msgspec.Struct):
    code_sha256: str
    row: Row
    """Columns of `cells.csv`, by the cell's own verdict on its steady state. None is NaN."""
    jobs: dict[str, list[Value | None]]
    """Columns with a value per job that has ended without an error."""
    latencies: dict[str, list[Value | None]]
    """Columns with a value per turn of the measured jobs that ended without an error."""
    ended_jobs_s: dict[str, float]
    """By id of all jobs: seconds from the arrival to the end of the last turn that ended."""
    unstable_row: Row | None = None
    """The columns if a cell at a lower rate makes a stable one count as unstable."""

    @property
    def is_current(self) -> bool:
        return self.code_sha256 == code_sha256()

    def latency_columns(self) -> Turns:
        kinds = {"job": int, "first": bool}
        return {
            name: np.array(values, dtype=kinds.get(name, float))
            for name, values in self.latencies.items()
        }

    def of(self, unstable: str | None) -> tuple[Row, Turns]:
        """Return the row and the jobs. `unstable`: why the cell is unstable, if it is."""
        row, jobs = self.row, {name: _column(name, self.jobs[name]) for name in self.jobs}
        if unstable is not None and self.unstable_row is not None:
            row, jobs = self.unstable_row, {name: values[:0] for name, values in jobs.items()}
        found: Row = {name: np.nan if value is None else value for name, value in row.items()}
        return (found if unstable is None else found | {UNSTABLE: unstable}), jobs


def compute_numbers(cell: CellRun, recorded: Recorded) -> CellNumbers:
    """Raises InvalidRunFolder."""
    measured = measure(recorded, cell, cell.done.unstable)
    is_steady = cell.done.window is not None and cell.done.unstable is None
    return CellNumbers(
        code_sha256(),
        _plain(measured),
        {name: values.tolist() for name, values in measured.done.items()},
        {name: values.tolist() for name, values in measured.latencies.items()},
        _ended_jobs_s(recorded.turns),
        _plain(measure(recorded, cell, UNSTABLE)) if is_steady else None,
    )


def _plain(measured: MeasuredCell) -> Row:
    return {
        name: value.item() if isinstance(value, np.generic) else value
        for name, value in measured.row.items()
    }


def _column(name: str, values: list[Value | None]) -> Any:
    return np.array(values, dtype=float if name in JOB_COLUMNS else object)


def _ended_jobs_s(turns: Turns) -> dict[str, float]:
    jobs = job_columns(turns, None)
    return dict(zip(jobs["job_id"], jobs["jct_s"].astype(float).tolist(), strict=True))


def ended_jobs_s(cell: CellRun) -> dict[str, float]:
    """Return by id of all jobs, also of an unstable cell, the seconds from the arrival to the end
    of the last turn that ended. Raises InvalidRunFolder."""
    stored = read_numbers(cell)
    return _ended_jobs_s(read_columns(cell)) if stored is None else stored.ended_jobs_s


def encode_numbers(numbers: CellNumbers) -> bytes:
    return zstandard.ZstdCompressor().compress(msgspec.json.encode(numbers))


def read_numbers(cell: CellRun) -> CellNumbers | None:
    """Return the stored numbers; None if there are none, or if other code computed them and the
    turns were kept. Raises InvalidRunFolder."""
    path = cell.folder / CELL_NUMBERS
    try:
        with zstandard.open(path, "rb") as file:
            numbers = msgspec.json.decode(file.read(), type=CellNumbers)
    except FileNotFoundError:
        return None
    except (OSError, zstandard.ZstdError, *MALFORMED) as error:
        if isinstance(error, msgspec.ValidationError) and has_turns(cell.folder):
            return None  # other code stored other fields
        raise InvalidRunFolder(one_line(f"{path}: {error}; {RERUN}")) from None
    return numbers if numbers.is_current or not has_turns(cell.folder) else None


def has_current_numbers(cell: CellRun) -> bool:
    """Return whether the present code computed the stored numbers."""
    try:
        numbers = read_numbers(cell)
        return numbers is not None and numbers.is_current
    except InvalidRunFolder:
        return False


@cache
def code_sha256() -> str:
    """Return a hash of the code that computes the numbers, without comments and docstrings."""
    digest = hashlib.sha256()
    for path in sorted(path for folder in CODE for path in (ROOT / folder).glob("*.py")):
        tree = ast.parse(path.read_bytes())
        for node in ast.walk(tree):
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                node.value.value = ""  # a docstring
        digest.update(path.name.encode() + ast.dump(tree).encode())
    return digest.hexdigest()[:12]
