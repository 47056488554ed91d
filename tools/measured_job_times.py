"""Collects job completion times of many sweeps at two or three loads.

In: run folders of sweeps with two rates, `--jps LOW,HIGH`, or three. Out: a JSON file
(docs/reference/job-times.json), a `LoadedSweep` per workload and machine.
"""

from __future__ import annotations

import csv
import tomllib
from collections.abc import Container, Iterable, Iterator, Mapping
from pathlib import Path

import msgspec
import orjson

from reports.answer.document import ANSWER
from reports.statistics.bootstrap import Estimate
from reports.statistics.over_seeds import geometric_mean, paired_ratio
from tools.measured_capacities import Measured, code_of, unchanged, with_seeds_of

CELLS = "cells.csv"


class JobTimes(msgspec.Struct, frozen=True, array_like=True):
    """Of the measured jobs of a cell in steady state."""

    mean_s: float
    p95_s: float
    p99_s: float
    slowdown_max: float
    """The largest completion time ÷ that of the same job alone on an idle machine."""


class Load(msgspec.Struct, frozen=True):
    """The cells of all variants at one rate."""

    jobs_per_s: float
    by_seed: dict[str, dict[str, JobTimes | None]]
    """By variant and seed; None if the cell is unstable: its job times grow with the run."""

    def stable(self, variant: str, metric: str) -> dict[int, float]:
        """Return a metric of `JobTimes` by seed, for seeds with a steady state."""
        return {
            int(seed): getattr(times, metric)
            for seed, times in self.by_seed.get(variant, {}).items()
            if times is not None
        }

    def unstable(self, variant: str) -> int:
        """Return with how many seeds there is no steady state."""
        return sum(times is None for times in self.by_seed.get(variant, {}).values())

    def estimate(self, variant: str, metric: str = "mean_s") -> Estimate | None:
        """Return the mean over seeds; None unless all of them have a steady state."""
        values = self.stable(variant, metric)
        return geometric_mean(values.values()) if values and not self.unstable(variant) else None

    def ratio(self, variant: str, to: str, metric: str = "mean_s") -> Estimate | None:
        """Return the metric of one variant ÷ that of another, paired by seed; None unless both
        have a steady state with all seeds."""
        if self.unstable(variant) or self.unstable(to):
            return None
        return paired_ratio(self.stable(variant, metric), self.stable(to, metric))


class LoadedSweep(Measured, frozen=True, kw_only=True, omit_defaults=True):
    """Two or three loads of one workload on one machine."""

    low: Load
    high: Load
    middle: Load | None = None
    """Between the two: high for policies without an offload tier, if those with one sustain far
    more."""

    @property
    def high_without_tier(self) -> Load:
        return self.middle or self.high

    @property
    def rates(self) -> list[float]:
        loads = [self.low, *([self.middle] if self.middle else []), self.high]
        return [load.jobs_per_s for load in loads]


def loaded_sweep(folder: Path) -> LoadedSweep:
    """Read the run folder of a sweep with two or three rates, in ascending order."""
    answer = orjson.loads((folder / ANSWER).read_bytes())
    sweep = orjson.loads((folder / "sweep.json").read_bytes())
    workload = sweep["workload"]
    settings = tomllib.loads((folder / "sweep.toml").read_text(encoding="utf-8"))
    rows = list(_rows(folder))
    low, *middle, high = [_load(rows, float(rate)) for rate in settings["jps"].split(",")]
    return LoadedSweep(
        workload=workload.get("recipe") or workload["name"],
        recorded="recipe" not in workload,
        hardware=answer["provenance"]["hardware"],
        code_sha256=code_of(sweep),
        references=answer["references"],
        low=low,
        high=high,
        middle=middle[0] if middle else None,
    )


def _rows(folder: Path) -> Iterator[Mapping[str, str]]:
    with (folder / CELLS).open(newline="") as file:
        yield from csv.DictReader(file)


def _load(rows: Iterable[Mapping[str, str]], jobs_per_s: float) -> Load:
    by_seed: dict[str, dict[str, JobTimes | None]] = {}
    for row in rows:
        if row["jps"] and float(row["jps"]) == jobs_per_s:
            by_seed.setdefault(row["variant"], {})[row["seed"]] = _times(row)
    return Load(jobs_per_s, by_seed)


def _times(row: Mapping[str, str]) -> JobTimes | None:
    if row["steady"] != "True":
        return None
    names = ("jct_mean_s", "jct_p95_s", "jct_p99_s", "slowdown_max")
    return JobTimes(*(float(f"{float(row[name]):.4g}") for name in names))


def read_loaded(path: Path) -> list[LoadedSweep]:
    return msgspec.json.decode(path.read_bytes(), type=list[LoadedSweep])


def merged_loads(old: Iterable[LoadedSweep], new: Iterable[LoadedSweep]) -> list[LoadedSweep]:
    """Return the sweeps of both in the order of their keys. A new one replaces the same variants of
    an old one with the same loads, or adds seeds to them if they ran with the same code; it
    replaces all of one with other loads."""
    by_key: dict[tuple[str, bool, str], LoadedSweep] = {}
    for sweep in (*old, *new):
        before = by_key.get(sweep.key)
        by_key[sweep.key] = sweep if before is None else _updated(before, sweep)
    return [by_key[key] for key in sorted(by_key)]


def _updated(old: LoadedSweep, new: LoadedSweep) -> LoadedSweep:
    if old.rates != new.rates:
        return new
    same = unchanged(old, new)
    return msgspec.structs.replace(
        new,
        code_sha256=old.code_sha256 | new.code_sha256,
        references=sorted({*old.references, *new.references}),
        low=_joined(old.low, new.low, same),
        high=_joined(old.high, new.high, same),
        middle=_joined(old.middle, new.middle, same) if old.middle and new.middle else None,
    )


def _joined(old: Load, new: Load, unchanged: Container[str]) -> Load:
    return Load(new.jobs_per_s, with_seeds_of(old.by_seed, new.by_seed, unchanged))
