"""Baselines: the settings and job completion times of a run, small enough for a repository.

In: a run folder, or a file that `bench compare --save` wrote. Out: a `Side` of a comparison.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Annotated, Any, Literal, cast

import orjson
import pandas as pd
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from reports.metrics.cells import collect
from reports.run_folder.atomic import write_file
from reports.run_folder.documents import Name
from reports.run_folder.read import Run, load_run
from reports.statistics.searched import searched
from servers.admission import Admission
from servers.errors import InvalidBaseline, TraceRejected
from traces.lenient import bounded, first_error, one_line

FORMAT = "turnstile-baseline-1"
SETTINGS = (
    *("engine", "hardware", "model", "profile", "server", "limits", "arrivals"),
    *("scheduling", "kv_cache_dtype", "steady_state"),
    *("jps", "seeds", "variants", "workload", "turnstile_version", "code_sha256"),
)
"""Fields of sweep.json that a baseline contains."""
JOBS = ["variant", "load", "seed", "job_id", "jct_s"]
DECIMALS = 9
"""Seconds are rounded to this many decimals, in runs and in files, so that both compare equal."""


class _Cell(BaseModel):
    model_config = ConfigDict(strict=True, allow_inf_nan=False)

    variant: Name
    load: Name
    seed: int
    jct_s: dict[str, Annotated[float, Field(ge=0)]]


class Capacities(BaseModel):
    """The capacities of a run, of variants and seeds for which one was found."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False, frozen=True)

    slo: Name
    jobs_per_s: dict[Name, dict[Annotated[int, Field(strict=False)], Annotated[float, Field(gt=0)]]]
    """By variant and seed."""


class _Saved(BaseModel):
    """The content of a baseline file. The fields of `SETTINGS` are extra fields."""

    model_config = ConfigDict(strict=True, extra="allow")

    format: Literal["turnstile-baseline-1"]
    cells: tuple[_Cell, ...]
    invalid: dict[str, str]
    capacities: Capacities | None = None


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two runs of a comparison."""

    name: str
    settings: dict[str, Any]
    jobs: pd.DataFrame
    """One row per finished job, with the columns `JOBS`."""
    invalid: dict[str, str]
    """Cells without a result or with a failed gate, and the reason."""
    capacities: Capacities | None = None
    """None if the run searched none."""

    @property
    def steady(self) -> bool:
        """Whether it measured a stream of jobs in steady state, not a fixed set of jobs."""
        return bool(self.settings.get("steady_state"))

    def refuse_invalid(self, what: str) -> None:
        """Raise InvalidBaseline if a cell is not valid. `what` names the side in the message."""
        for cell, why in self.invalid.items():
            raise InvalidBaseline(
                one_line(f"{self.name}: {cell}: {why}; every cell of {what} must be valid")
            )


def read_side(path: Path) -> Side:
    """Read a run folder or a baseline file. Raises InvalidBaseline or InvalidRunFolder."""
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
    return Side(str(folder), _settings(run.sweep), jobs, invalid, _capacities(run))


def _capacities(run: Run) -> Capacities | None:
    search = searched(run)
    if search is None:
        return None
    found = {each.variant: each.per_s for each in search.found if each.per_s}
    return Capacities(slo=str(search.slo), jobs_per_s=found)


def _settings(sweep: Mapping[str, Any]) -> dict[str, Any]:
    """Runs that do not record the rule of admission required the whole prompt to fit."""
    settings = {field: sweep.get(field) for field in SETTINGS}
    if background := sweep.get("background"):
        settings["background"] = background
    if settings["limits"]:
        settings["limits"] = {"admission": Admission.WHOLE_PROMPT.value, **settings["limits"]}
    return settings


def save(side: Side, path: Path) -> None:
    """Write gzipped JSON. The same run gives the same bytes."""
    cells = [
        {
            **jobs.iloc[0][["variant", "load", "seed"]].to_dict(),
            "jct_s": dict(zip(jobs["job_id"], jobs["jct_s"], strict=True)),
        }
        for _, jobs in side.jobs.groupby(["variant", "load", "seed"])
    ]
    saved = {"format": FORMAT, **side.settings, "cells": cells, "invalid": side.invalid}
    if side.capacities is not None:
        saved["capacities"] = side.capacities.model_dump(mode="json")
    options = orjson.OPT_SORT_KEYS | orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS
    content = orjson.dumps(saved, option=options)
    write_file(path, gzip.compress(content, mtime=0))


def _read(path: Path) -> Side:
    try:
        with gzip.open(path) as file:
            saved = _Saved.model_validate_json(bounded(cast(IO[bytes], file)))
    except (OSError, EOFError, zlib.error, TraceRejected, ValidationError) as error:
        why = one_line(_message(error) if isinstance(error, ValidationError) else str(error))
        raise InvalidBaseline(
            f"{path}: not a baseline ({why}); make one with bench compare RUN --save FILE"
        ) from None
    rows = [
        (cell.variant, cell.load, cell.seed, job, seconds)
        for cell in saved.cells
        for job, seconds in cell.jct_s.items()
    ]
    kept = saved.model_extra or {}
    invalid = {one_line(cell): one_line(why) for cell, why in saved.invalid.items()}
    jobs = pd.DataFrame(rows, columns=JOBS)
    return Side(path.name, _settings(kept), jobs, invalid, saved.capacities)


def _message(error: ValidationError) -> str:
    field, first = first_error(error)
    return f"{field}: {first['msg']}" if field else first["msg"]
