"""Baselines: the settings and job completion times of a run, small enough for a repository.

In: a run folder, or a file that `bench compare --save` wrote. Out: a `Side` of a comparison.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Annotated, Any, NamedTuple, cast

import msgspec
import orjson
import pandas as pd
from msgspec import Meta, Struct

from reports.capacity.estimate import Kind
from reports.loads import RATES
from reports.metrics.cell_numbers import ended_jobs_s
from reports.metrics.cells import collect
from reports.metrics.measure import load_label
from reports.metrics.steady import unstable_cells
from reports.run_folder.document import decode_document
from reports.run_folder.read import Run, load_run
from reports.statistics.searched import searched
from servers.admission import Admission
from servers.basics.atomic import write_file
from servers.basics.errors import InvalidInput, InvalidRunFolder, TraceRejected
from servers.basics.json_object import JsonObject
from servers.basics.text import MALFORMED, one_line
from servers.records.fields import MAX_VALUE, Count, Name, Rate
from servers.records.settings import RunSettings
from traces.lenient import bounded

FORMAT = "turnstile-baseline-1"
SETTINGS = (
    *("engine", "virtual_time", "hardware", "model", "profile", "server", "limits", "arrivals"),
    *("scheduling", "layout", "kv_cache_dtype", "steady_state", "horizon"),
    *("jps", "seeds", "variants", "workload", "turnstile_version", "code_sha256"),
)
"""Fields of sweep.json that a baseline contains."""
NO_JCTS = (
    "measures requests and no jobs (--scenario), so it has no JCTs to compare; compare the "
    "interactivity of the reports"
)
JOBS = ["variant", "load", "seed", "job_id", "jct_s"]
DECIMALS = 9
"""Seconds are rounded to this many decimals, in runs and in files, so that both compare equal."""


Time = Annotated[float, Meta(ge=0, le=MAX_VALUE)]


class _Cell(Struct, frozen=True):
    variant: Name
    load: Name
    seed: Count
    jct_s: dict[str, Time]


class Unstable(Struct, frozen=True):
    """A cell that has no steady state."""

    reason: Name
    finished_programs: int
    """Programs that finished before the cell ended."""
    jct_s: dict[str, Time]
    """By job, from its arrival to the end of the last turn that ended."""


class _UnstableCell(Unstable, frozen=True):
    variant: Name
    load: Name
    seed: Count


class Bounds(Struct, frozen=True):
    """What a search knows about a capacity that is no number."""

    kind: Kind
    sustained: Rate | None
    not_sustained: Rate | None


class Capacities(Struct, frozen=True):
    """The capacities of a run, by variant and seed."""

    slo: Name
    jobs_per_s: dict[Name, dict[int, Rate]]
    """Of seeds for which one was found, in `unit`."""
    bounds: dict[Name, dict[int, Bounds]] = {}
    """Of the other seeds. Files of earlier versions have none."""
    unit: Name = RATES.unit
    """Of the numbers, which are agents if the load is a number of agents."""


class _Saved(Struct, frozen=True, tag_field="format", tag=FORMAT):
    """The content of a baseline file, which has the fields of `SETTINGS` too."""

    cells: tuple[_Cell, ...]
    invalid: dict[str, str]
    unstable: tuple[_UnstableCell, ...] = ()
    """Apart from `cells`, so that earlier versions do not read them as results."""
    capacities: Capacities | None = None


class Place(NamedTuple):
    variant: str
    load: str
    seed: int


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two runs of a comparison."""

    name: str
    settings: JsonObject
    """The fields of sweep.json that are in `SETTINGS`, which are compared by name."""
    jobs: pd.DataFrame
    """One row per finished job, with the columns `JOBS`."""
    invalid: dict[str, str]
    """Cells without a result or with a failed gate, and the reason."""
    capacities: Capacities | None = None
    """None if the run searched none."""
    unstable: Mapping[Place, Unstable] = field(default_factory=dict)
    """Cells without a steady state, which have no rows in `jobs`."""
    valid: tuple[str, ...] = ()
    """Names of the cells that passed all checks; none if it was read from a file."""

    @property
    def steady(self) -> bool:
        """Whether it measured a stream of jobs in steady state, not a fixed set of jobs."""
        return bool(self.settings.get("steady_state"))

    @property
    def places(self) -> set[Place]:
        """Return the cells that have a result."""
        jobs = self.jobs[JOBS[:3]].drop_duplicates()
        return {Place(*row) for row in jobs.itertuples(index=False)} | self.unstable.keys()

    def refuse_invalid(self, what: str) -> None:
        """Raise InvalidInput if a cell is not valid. `what` names the side in the message."""
        for cell, why in self.invalid.items():
            raise InvalidInput(
                one_line(f"{self.name}: {cell}: {why}; every cell of {what} must be valid")
            )


def read_side(path: Path) -> Side:
    """Read a run folder or a baseline file. Raises InvalidInput or InvalidRunFolder."""
    return _read(path) if path.is_file() else _of_run(path)


def _of_run(folder: Path) -> Side:
    run = load_run(folder)
    found = collect(run)
    jobs = found.jobs if len(found.jobs) else pd.DataFrame(columns=JOBS)
    if "repeat" in jobs:
        jobs = jobs.groupby(JOBS[:-1], sort=False)["jct_s"].mean().reset_index()
    jobs = jobs[JOBS]
    jobs = jobs.assign(jct_s=jobs["jct_s"].astype(float).round(DECIMALS))
    invalid = {**dict(found.missing), **found.failed_gates}
    valid = tuple(cell.folder.name for cell in run.cells if cell.folder.name not in invalid)
    unstable = _unstable(run, dict(found.missing))
    settings = _settings(msgspec.json.decode(msgspec.json.encode(run.sweep)))
    return Side(str(folder), settings, jobs, invalid, _capacities(run), unstable, valid)


def _unstable(run: Run, missing: Mapping[str, str]) -> dict[Place, Unstable]:
    reasons = unstable_cells(run.cells)
    found = {}
    for cell in run.cells:
        reason = reasons.get(cell.folder.name)
        if reason is None or cell.folder.name in missing:
            continue
        jct_s = {job: round(value, DECIMALS) for job, value in ended_jobs_s(cell).items()}
        variant, jps, seed = cell.key
        place = Place(variant, load_label(jps, cell.config.arrivals), seed)
        found[place] = Unstable(reason, cell.done.finished_programs, jct_s)
    return found


def _capacities(run: Run) -> Capacities | None:
    search = searched(run)
    if search is None:
        return None
    found = {each.variant: each.loads for each in search.found if each.loads}
    bounds = {
        each.variant: {
            seed: Bounds(kind=one.kind, sustained=one.sustained, not_sustained=one.not_sustained)
            for seed, one in each.by_seed.items()
            if one.kind is not Kind.FOUND
        }
        for each in search.found
    }
    bounds = {variant: by_seed for variant, by_seed in bounds.items() if by_seed}
    return Capacities(slo=str(search.slo), jobs_per_s=found, bounds=bounds, unit=search.ladder.unit)


def _settings(sweep: Mapping[str, Any]) -> JsonObject:
    """Runs that do not record the rule of admission required the whole prompt to fit."""
    settings = {field: sweep.get(field) for field in SETTINGS}
    settings |= {name: sweep[name] for name in ("background", "scenario") if sweep.get(name)}
    if isinstance(settings["limits"], dict):
        settings["limits"] = {"admission": Admission.WHOLE_PROMPT.value, **settings["limits"]}
    return settings


def typed(settings: Mapping[str, Any]) -> RunSettings:
    """Return the settings of a side or of a history as a record. Raises InvalidInput."""
    known = {name: value for name, value in settings.items() if value is not None}
    try:
        return msgspec.convert(known, RunSettings)
    except msgspec.ValidationError as error:
        raise InvalidInput(one_line(f"settings: {error}")) from None


def save(side: Side, path: Path) -> None:
    """Write gzipped JSON. The same run gives the same bytes. Raises InvalidInput for a run
    without jobs, which would accept any other run."""
    if not side.places:
        if side.settings.get("scenario"):
            raise InvalidInput(f"{side.name}: {NO_JCTS}")
        raise InvalidInput(
            f"{side.name}: no job finished, so there is nothing to save as a baseline; run the "
            "sweep again"
        )
    cells = [
        {
            **jobs.iloc[0][["variant", "load", "seed"]].to_dict(),
            "jct_s": dict(zip(jobs["job_id"], jobs["jct_s"], strict=True)),
        }
        for _, jobs in side.jobs.groupby(["variant", "load", "seed"])
    ]
    saved = {"format": FORMAT, **side.settings, "cells": cells, "invalid": side.invalid}
    if side.unstable:
        saved["unstable"] = [
            place._asdict() | msgspec.to_builtins(cell)
            for place, cell in sorted(side.unstable.items())
        ]
    if side.capacities is not None:
        saved["capacities"] = msgspec.to_builtins(side.capacities)
    options = orjson.OPT_SORT_KEYS | orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS
    content = orjson.dumps(saved, option=options)
    write_file(path, gzip.compress(content, mtime=0))


def _read(path: Path) -> Side:
    try:
        with gzip.open(path) as file:
            content = bounded(cast(IO[bytes], file))
        saved = decode_document(content, _Saved)
        settings = msgspec.json.decode(content)
    except (OSError, EOFError, zlib.error, TraceRejected, InvalidRunFolder, *MALFORMED) as error:
        why = one_line(str(error))
        raise InvalidInput(
            f"{path}: not a baseline ({why}); make one with bench compare RUN --save FILE"
        ) from None
    rows = [
        (cell.variant, cell.load, cell.seed, job, seconds)
        for cell in saved.cells
        for job, seconds in cell.jct_s.items()
    ]
    invalid = {one_line(cell): one_line(why) for cell, why in saved.invalid.items()}
    jobs = pd.DataFrame(rows, columns=JOBS)
    unstable = {
        Place(cell.variant, cell.load, cell.seed): Unstable(
            cell.reason, cell.finished_programs, cell.jct_s
        )
        for cell in saved.unstable
    }
    return Side(path.name, _settings(settings), jobs, invalid, saved.capacities, unstable)
