"""A run folder in; `report.html`, `cells.csv` and `cells.json` in it out, and what to print.

No byte depends on the clock or the machine: the same folder gives the same files.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import orjson
import pandas as pd

from reports.answer import answer
from reports.figures import figures, styles
from reports.html import page
from reports.load import load_run
from reports.metrics import collect
from reports.statistics import points
from reports.table import ResultTable
from reports.whole_file import write_file


@dataclass(frozen=True, slots=True)
class Report:
    path: Path
    """The HTML file."""
    answer: list[str]
    """Sentences, the most important first."""
    table: ResultTable
    failed_gates: list[str]
    """`cell: why`, and cells that failed; saturation is not among them."""


def write(run_folder: Path) -> Report:
    run = load_run(run_folder)
    results = collect(run)
    baseline = str(run.sweep["baseline"])
    found = points(results, baseline)
    told = answer(found, results, run.sweep)
    best = told.winner.variant if told.winner is not None else baseline
    style = styles(run.sweep["variants"], baseline)
    drawn = figures(found, style, list(dict.fromkeys([baseline, best])))
    html = page(run, results, found, told, drawn, style)
    write_file(run_folder / "cells.csv", _csv(results.cells))
    write_file(run_folder / "cells.json", _json(results.cells))
    write_file(run_folder / "report.html", html.encode())
    failed = [f"{cell}: {gates}" for cell, gates in results.failed_gates.items()]
    failed += [f"{name}: {why}" for name, why in results.missing if why.startswith("failed")]
    return Report(run_folder / "report.html", told.sentences, ResultTable(found, baseline), failed)


def _csv(cells: pd.DataFrame) -> bytes:
    return cells.to_csv(index=False, float_format="%.6g", lineterminator="\n").encode()


def _json(cells: pd.DataFrame) -> bytes:
    """Values that are not numbers become null."""
    return orjson.dumps(
        cells.to_dict("records"), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
    )
