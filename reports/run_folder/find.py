"""Finds run folders. In: a folder such as `runs/`. Out: a summary of each run below it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from reports.phrasing import counted, listed


class RunSummary(NamedTuple):
    folder: Path
    written: datetime
    """When the latest cell finished, in UTC; when the run started, if no cell has finished."""
    finished_cells: int
    cells: int
    load: str
    """Workload, model, hardware and engine: runs that share these can be compared."""
    plan: str
    """Policies, rates and seeds."""

    @property
    def report(self) -> Path | None:
        path = self.folder / "report.html"
        return path if path.is_file() else None


def find_runs(root: Path) -> list[RunSummary]:
    """Runs of the same load stand together, the load with the newest run first; within a load the
    newest run comes first."""
    found = [summary for folder in _run_folders(root) if (summary := _summary(folder)) is not None]
    newest: dict[str, datetime] = {}
    for run in found:
        newest[run.load] = max(newest.get(run.load, run.written), run.written)
    return sorted(found, key=lambda r: (newest[r.load], r.load, r.written), reverse=True)


def newest_report(root: Path) -> Path | None:
    """The most recently written report below `root`."""
    reports = [run.report for run in find_runs(root)]
    return max(filter(None, reports), key=lambda path: path.stat().st_mtime, default=None)


def _run_folders(root: Path) -> Iterator[Path]:
    for folder, subfolders, files in os.walk(root):
        if "sweep.json" in files:
            subfolders.clear()
            yield Path(folder)


def _summary(folder: Path) -> RunSummary | None:
    """None for a folder whose `sweep.json` is damaged; `bench report` shows the error."""
    try:
        sweep = orjson.loads((folder / "sweep.json").read_bytes())
        names = [str(variant["name"]) for variant in sweep["variants"]]
        rates, seeds = sweep["jps"], sweep["seeds"]
        cells = len(names) * len(rates) * len(seeds)
    except (OSError, ValueError, LookupError, TypeError):
        return None  # damaged
    done = [path.stat().st_mtime for path in folder.glob("*/done.json")]
    written_s = max(done, default=(folder / "sweep.json").stat().st_mtime)
    return RunSummary(
        folder,
        datetime.fromtimestamp(written_s, UTC),
        len(done),
        cells,
        _load(sweep),
        f"{listed(names, at_most=4)}; {_rates(sweep, rates)}; {_seeds(seeds)}",
    )


def _load(sweep: Mapping[str, Any]) -> str:
    workload = sweep.get("workload")
    name = workload.get("name") if isinstance(workload, Mapping) else None
    model, hardware, engine = (sweep.get(field) for field in ("model", "hardware", "engine"))
    return f"{name}, {model} on {hardware}, {engine}"


def _rates(sweep: Mapping[str, Any], rates: list[Any]) -> str:
    if rates == [None]:
        return str(sweep.get("arrivals"))
    if len(rates) > 3:
        return f"{len(rates)} rates from {rates[0]} to {rates[-1]} jobs/s"
    return f"{listed([str(rate) for rate in rates])} jobs/s"


def _seeds(seeds: list[Any]) -> str:
    return f"seed {seeds[0]}" if len(seeds) == 1 else counted(len(seeds), "seed")
