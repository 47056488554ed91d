"""Collects the capacities of many sweeps: workloads on machines (docs/reference/capacities.json).

In: run folders with `answer.json`. Out: a JSON file, a `Sweep` per workload and machine.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import orjson

from reports.answer.document import ANSWER
from reports.capacity.estimate import Kind
from reports.statistics.bootstrap import Estimate
from reports.statistics.capacities import capacity_ratio
from reports.statistics.over_seeds import geometric_mean

NOT_LISTED = ("--traces", "--hardware", "--policies", "--seeds", "--workers", "--out")
"""Options of which the file has the values in other fields, or that affect no result."""

T = TypeVar("T")


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured of one workload on one machine."""

    workload: str
    """A recipe, or the folder of a recorded set."""
    recorded: bool
    hardware: str
    code_sha256: dict[str, str]
    """By variant: the code with which its cells ran."""
    references: list[str]
    """Bounds, which know the future."""

    @property
    def key(self) -> tuple[str, bool, str]:
        return self.workload, self.recorded, self.hardware


class Sweep(Measured, frozen=True, kw_only=True):
    """The capacities of one workload on one machine."""

    options: str
    """Of `bench sweep`, except for those in `NOT_LISTED`."""
    programs: int
    left_out: int
    """Recorded programs that exceed the longest context."""
    by_seed: dict[str, dict[str, float | Kind]]
    """By variant and seed: jobs per second, or the kind of a capacity that is no number."""

    def per_s(self, variant: str) -> dict[int, float]:
        """Return jobs per second by seed; empty unless the capacity is found with each of them."""
        values = self.by_seed.get(variant, {})
        found = {int(seed): each for seed, each in values.items() if isinstance(each, float)}
        return found if len(found) == len(values) else {}

    def kinds(self, variant: str) -> set[Kind]:
        """Return why a capacity is no number with some seeds."""
        return {each for each in self.by_seed.get(variant, {}).values() if isinstance(each, Kind)}

    def estimate(self, variant: str) -> Estimate | None:
        values = self.per_s(variant)
        return geometric_mean(values.values()) if values else None

    def ratio(self, variant: str, baseline: str) -> Estimate | None:
        return capacity_ratio(self.per_s(variant), self.per_s(baseline))


def sweep_of(folder: Path) -> Sweep:
    """Read the run folder of a sweep that searched capacities."""
    answer = orjson.loads((folder / ANSWER).read_bytes())
    sweep = orjson.loads((folder / "sweep.json").read_bytes())
    workload = sweep["workload"]
    provenance = answer["provenance"]
    return Sweep(
        workload=workload.get("recipe") or workload["name"],
        recorded="recipe" not in workload,
        hardware=provenance["hardware"],
        options=_options(provenance["made_by"]["argv"]),
        programs=workload["programs"],
        left_out=len(workload["left_out"]),
        code_sha256=code_of(sweep),
        references=answer["references"],
        by_seed={
            variant: {seed: _value(each) for seed, each in found["by_seed"].items()}
            for variant, found in answer["capacities"].items()
        },
    )


def code_of(sweep: Mapping[str, Any]) -> dict[str, str]:
    """Return what ran each variant: the hash of the common code, and that of the policy."""
    common = sweep["code_sha256"]
    return {each["name"]: f"{common}/{each['policy_sha256']}" for each in sweep["variants"]}


def _value(found: Mapping[str, Any]) -> float | Kind:
    value = found["jobs_per_s"]
    return Kind(found["kind"]) if value is None else float(f"{value:.4g}")


def _options(argv: Sequence[str]) -> str:
    words = iter(argv[2:])
    return " ".join(
        f"{word} {next(words)}" for word in words if word not in NOT_LISTED or not next(words)
    )


def read_sweeps(path: Path) -> list[Sweep]:
    return msgspec.json.decode(path.read_bytes(), type=list[Sweep])


def merged(old: Iterable[Sweep], new: Iterable[Sweep]) -> list[Sweep]:
    """Return the sweeps of both in the order of their keys. Of a workload and machine in both, the
    variants of the new sweep replace the same ones of the old, or add seeds to them if they ran
    with the same code."""
    by_key: dict[tuple[str, bool, str], Sweep] = {}
    for sweep in (*old, *new):
        before = by_key.get(sweep.key, sweep)
        by_key[sweep.key] = msgspec.structs.replace(
            sweep,
            code_sha256=before.code_sha256 | sweep.code_sha256,
            references=sorted({*before.references, *sweep.references}),
            by_seed=with_seeds_of(before.by_seed, sweep.by_seed, unchanged(before, sweep)),
        )
    return [by_key[key] for key in sorted(by_key)]


def unchanged(old: Measured, new: Measured) -> set[str]:
    """Return the variants that ran with the same code in both."""
    return {variant for variant, _ in old.code_sha256.items() & new.code_sha256.items()}


def with_seeds_of(
    old: Mapping[str, dict[str, T]], new: Mapping[str, dict[str, T]], unchanged: Container[str]
) -> dict[str, dict[str, T]]:
    """Return both, by variant and seed. A variant of the new one replaces that of the old, unless
    it is unchanged: then the seeds that only the old one has stay."""
    replaced = {variant for variant in new if variant not in unchanged}
    kept = {variant: by_seed for variant, by_seed in old.items() if variant not in replaced}
    found = {variant: kept.get(variant, {}) | new.get(variant, {}) for variant in {**old, **new}}
    return {
        variant: {seed: by_seed[seed] for seed in sorted(by_seed, key=int)}
        for variant, by_seed in found.items()
    }


def write_sweeps(path: Path, sweeps: Sequence[Measured]) -> None:
    lines = b",\n".join(msgspec.json.encode(sweep) for sweep in sweeps)
    path.write_bytes(b"[\n" + lines + b"\n]\n")
