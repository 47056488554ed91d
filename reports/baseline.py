"""What a run found, small enough to keep in a repository: its question, and each job's time.

In: a run folder, or a file of `bench compare --save`. Out: `Side`, one of two to compare.
"""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pandas as pd

from reports.load import load_run
from reports.metrics import collect

FORMAT = "turnstile-baseline-1"
QUESTION = (
    *("engine", "hardware", "model", "profile", "server", "limits", "arrivals"),
    *("jps", "seeds", "variants", "workload", "turnstile_version", "code_sha256"),
)
"""What is kept of sweep.json."""
JOBS = ["variant", "load", "seed", "job_id", "jct_s"]
DECIMALS = 9
"""Of seconds: a run is rounded as a file of it is, so that both are the same to the digit."""


class BadBaseline(ValueError):
    """A file that is no baseline."""


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
            raise BadBaseline(f"{self.name}: {cell}: {why}; {what} has to be whole")


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
    path.write_bytes(gzip.compress(content, mtime=0))


def _read(path: Path) -> Side:
    try:
        said = orjson.loads(gzip.decompress(path.read_bytes()))
        if said.get("format") != FORMAT:
            raise BadBaseline(f"{path}: its format is not {FORMAT}")
        rows = [
            (cell["variant"], cell["load"], cell["seed"], job, seconds)
            for cell in said["cells"]
            for job, seconds in cell["jct_s"].items()
        ]
        question = {field: said.get(field) for field in QUESTION}
        return Side(path.name, question, pd.DataFrame(rows, columns=JOBS), said["invalid"])
    except (OSError, EOFError, orjson.JSONDecodeError, KeyError, AttributeError) as error:
        why = f"{type(error).__name__}: {error}"
        raise BadBaseline(
            f"{path}: no baseline ({why}); make one with bench compare RUN --save FILE"
        ) from None
