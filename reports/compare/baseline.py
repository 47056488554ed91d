"""What a run found, small enough to keep in a repository: its question, and each job's time.

In: a run folder, or a file of `bench compare --save`. Out: `Side`, one of two to compare.
"""

from __future__ import annotations

import gzip
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Annotated, Any, Literal, cast

import orjson
import pandas as pd
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from reports.metrics.cells import collect
from reports.run_folder.atomic import write_file
from reports.run_folder.documents import Name
from reports.run_folder.read import load_run
from servers.errors import InvalidBaseline, TraceRejected
from traces.lenient import bounded, first_error, one_line

FORMAT = "turnstile-baseline-1"
QUESTION = (
    *("engine", "hardware", "model", "profile", "server", "limits", "arrivals"),
    *("jps", "seeds", "variants", "workload", "turnstile_version", "code_sha256"),
)
"""What is kept of sweep.json."""
JOBS = ["variant", "load", "seed", "job_id", "jct_s"]
DECIMALS = 9
"""Of seconds: a run is rounded as a file of it is, so that both are the same to the digit."""


class _Cell(BaseModel):
    model_config = ConfigDict(strict=True, allow_inf_nan=False)

    variant: Name
    load: Name
    seed: int
    jct_s: dict[str, Annotated[float, Field(ge=0)]]


class _Saved(BaseModel):
    """With the fields of `QUESTION`."""

    model_config = ConfigDict(strict=True, extra="allow")

    format: Literal["turnstile-baseline-1"]
    cells: tuple[_Cell, ...]
    invalid: dict[str, str]


@dataclass(frozen=True, slots=True)
class Side:
    name: str
    question: dict[str, Any]
    jobs: pd.DataFrame
    """One row per finished job: `JOBS`."""
    invalid: dict[str, str]
    """Cells without a result or with a failed gate, and why."""

    def refuse_invalid(self, what: str) -> None:
        for cell, why in self.invalid.items():
            raise InvalidBaseline(one_line(f"{self.name}: {cell}: {why}; {what} has to be whole"))


def read_side(path: Path) -> Side:
    return _read(path) if path.is_file() else _of_run(path)


def _of_run(folder: Path) -> Side:
    run = load_run(folder)
    found = collect(run)
    jobs = found.jobs[JOBS] if len(found.jobs) else pd.DataFrame(columns=JOBS)
    jobs = jobs.assign(jct_s=jobs["jct_s"].astype(float).round(DECIMALS))
    question = {field: run.sweep.get(field) for field in QUESTION}
    return Side(str(folder), question, jobs, {**dict(found.missing), **found.failed_gates})


def save(side: Side, path: Path) -> None:
    """Gzipped JSON; the same run gives the same bytes."""
    cells = [
        {
            **jobs.iloc[0][["variant", "load", "seed"]].to_dict(),
            "jct_s": dict(zip(jobs["job_id"], jobs["jct_s"], strict=True)),
        }
        for _, jobs in side.jobs.groupby(["variant", "load", "seed"])
    ]
    said = {"format": FORMAT, **side.question, "cells": cells, "invalid": side.invalid}
    content = orjson.dumps(said, option=orjson.OPT_SORT_KEYS | orjson.OPT_SERIALIZE_NUMPY)
    write_file(path, gzip.compress(content, mtime=0))


def _read(path: Path) -> Side:
    try:
        with gzip.open(path) as file:
            said = _Saved.model_validate_json(bounded(cast(IO[bytes], file)))
    except (OSError, EOFError, zlib.error, TraceRejected, ValidationError) as error:
        why = one_line(_told(error) if isinstance(error, ValidationError) else str(error))
        raise InvalidBaseline(
            f"{path}: no baseline ({why}); make one with bench compare RUN --save FILE"
        ) from None
    rows = [
        (cell.variant, cell.load, cell.seed, job, seconds)
        for cell in said.cells
        for job, seconds in cell.jct_s.items()
    ]
    kept = said.model_extra or {}
    invalid = {one_line(cell): one_line(why) for cell, why in said.invalid.items()}
    question = {field: kept.get(field) for field in QUESTION}
    return Side(path.name, question, pd.DataFrame(rows, columns=JOBS), invalid)


def _told(error: ValidationError) -> str:
    field, first = first_error(error)
    return f"{field}: {first['msg']}" if field else first["msg"]
