"""Finds run folders below a folder such as `runs/` and summarises each of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from msgspec import to_builtins

from reports.loads import AGENTS, ladder_of
from reports.run_folder.members import has_members
from reports.run_folder.read import planned_amounts, read_sweep
from servers.admission import Limits
from servers.basics.errors import InvalidRunFolder
from servers.basics.phrasing import counted, gpus_in_words, listed
from servers.records.sweep import SweepRecord

DEFAULT_LIMITS = Limits()
RUNS = Path("runs")
"""Where runs are written, in the working directory, unless the user names another folder."""


class RunSummary(NamedTuple):
    folder: Path
    written: datetime
    """When the latest cell finished, in UTC; when the run started, if no cell has finished."""
    finished_cells: int
    cells: int
    load: str
    """Workload, model, hardware, profile, admission and engine: runs that share these can be
    compared."""
    plan: str
    """Policies, rates and seeds."""

    @property
    def report(self) -> Path | None:
        path = self.folder / "report.html"
        return path if path.is_file() else None


def run_folders(root: Path) -> Iterator[Path]:
    """Yield the folders below `root` that contain a `sweep.json`."""
    for folder, subfolders, files in os.walk(root):
        subfolders.sort()
        if "sweep.json" in files:
            subfolders.clear()
            yield Path(folder)


def find_runs(
    root: Path, on_damaged: Callable[[InvalidRunFolder], None] = lambda _: None
) -> list[RunSummary]:
    """Return the runs grouped by load, the load with the newest run first and the newest run first
    within a load. `on_damaged` is called for each run whose `sweep.json` cannot be read."""
    found: list[RunSummary] = []
    for folder in run_folders(root):
        try:
            found.append(_summary(folder))
        except InvalidRunFolder as error:
            on_damaged(error)
    newest: dict[str, datetime] = {}
    for run in found:
        newest[run.load] = max(newest.get(run.load, run.written), run.written)
    return sorted(found, key=lambda r: (newest[r.load], r.load, r.written), reverse=True)


def newest_report(root: Path) -> Path | None:
    runs = find_runs(root)
    overviews = {run.folder.parent for run in runs if has_members(run.folder.parent)}
    reports = [
        *(run.report for run in runs),
        *(path for folder in overviews if (path := folder / "report.html").is_file()),
    ]
    return max(filter(None, reports), key=lambda path: path.stat().st_mtime, default=None)


def _summary(folder: Path) -> RunSummary:
    sweep = read_sweep(folder)
    names = [variant.name for variant in sweep.variants]
    rates, seeds = planned_amounts(sweep), sweep.seeds
    done = [path.stat().st_mtime for path in folder.glob("*/done.json")]
    written_s = max(done, default=(folder / "sweep.json").stat().st_mtime)
    return RunSummary(
        folder,
        datetime.fromtimestamp(written_s, UTC),
        len(done),
        max(len(names) * len(rates) * len(seeds) * len(sweep.repeats), len(done)),
        _load(sweep),
        f"{listed(names, at_most=4)}; {_rates(sweep, rates)}; {_seeds(seeds)}",
    )


def _load(sweep: SweepRecord) -> str:
    name = sweep.workload.name
    gpus = gpus_in_words(sweep.hardware, sweep.gpus)
    return ", ".join([f"{name}, {sweep.model} on {gpus}, {sweep.engine}", *_settings(sweep)])


def _settings(sweep: SweepRecord) -> Iterator[str]:
    """Yield the settings that distinguish runs with the same model on the same hardware."""
    profile, limits = sweep.profile, sweep.limits
    if kind := profile.provenance:
        yield f"{kind} profile"
    if blocks := profile.kv_blocks:
        yield counted(blocks, "KV block")
    for name, value in to_builtins(limits).items():
        if value != getattr(DEFAULT_LIMITS, name):
            yield name.replace("_", " ") + ("" if value is True else f" {value}")
    if layout := sweep.layout:
        yield f"layout {layout}"
    if dtype := sweep.kv_cache_dtype:
        yield f"KV cache in {dtype}"


def _rates(sweep: SweepRecord, rates: Sequence[float | None]) -> str:
    if not rates:
        return "capacities"
    if rates == [None]:
        return str(sweep.arrivals)
    ladder = ladder_of(sweep.arrivals)
    names = [f"{rate:g}" for rate in rates if rate is not None]
    if len(names) > 3:
        what = "numbers" if ladder is AGENTS else "rates"
        return f"{len(names)} {what} from {names[0]} to {names[-1]} {ladder.unit}"
    return f"{listed(names)} {ladder.unit}"


def _seeds(seeds: Sequence[int]) -> str:
    return f"seed {seeds[0]}" if len(seeds) == 1 else counted(len(seeds), "seed")
