"""The results of sweeps that docs/reference/results.md shows: docs/data/results.json.

In: run folders of sweeps on one machine with a search for capacities. Out: a `TableResult` per
workload, machine and kind of load.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import orjson

from reports.answer.document import ANSWER
from reports.capacity.estimate import Kind
from reports.statistics.bootstrap import Estimate
from reports.statistics.capacities import capacity_ratio
from reports.statistics.over_seeds import geometric_mean
from servers.records.settings import HorizonRecord
from servers.variants import TUNED

NOT_LISTED = ("--traces", "--hardware", "--policies", "--seeds", "--workers", "--out", "--keep")
"""Options that other fields hold, or that affect no result."""
BASELINE = "fcfs"
AS_IT_COMES = f"{TUNED}(long_prefill=0)"
"""What a search names that found no better settings."""
STEADY, DAY, AGENTS = "steady", "day", "agents"
"""Kinds of load: jobs/s in steady state after a burst, jobs/s within a horizon, and agents."""


class TableResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The numbers of one workload on one machine."""

    workload: str
    """A recipe, or the folder of a recorded set."""
    recorded: bool
    hardware: str
    programs: int
    left_out: int
    """Recorded programs that exceed the longest context."""
    options: str
    """Options of `bench sweep`, except for those in `NOT_LISTED`."""
    code_sha256: list[str]
    references: list[str]
    """Policies that know the future."""
    capacities: dict[str, dict[str, float | Kind]] = {}
    """By variant and seed: jobs/s or agents, or the kind of a capacity that is no number."""
    tuned: str = ""
    """`fcfs-tuned` with the settings that were found; its capacities are those of `fcfs-tuned`."""
    load: str = STEADY
    horizon: str = ""
    """In words, of jobs/s within a horizon."""
    slo: str = ""
    """Of the capacities."""

    @property
    def key(self) -> tuple[str, bool, str, str, str, str]:
        """Results with the same key are of the same question."""
        return (
            *(self.workload, self.recorded, self.hardware),
            *(self.load, self.horizon, self.slo),
        )

    def per_s(self, variant: str) -> dict[int, float]:
        """Return capacities by seed; empty unless every seed has a capacity."""
        values = self.capacities.get(variant, {})
        found = {int(seed): each for seed, each in values.items() if isinstance(each, float)}
        return found if len(found) == len(values) else {}

    def capacity(self, variant: str) -> Estimate | None:
        values = self.per_s(variant)
        return geometric_mean(values.values()) if values else None

    def ratio(self, variant: str, baseline: str) -> Estimate | None:
        return capacity_ratio(self.per_s(variant), self.per_s(baseline))


def result_of(folder: Path) -> TableResult:
    answer = orjson.loads((folder / ANSWER).read_bytes())
    sweep = orjson.loads((folder / "sweep.json").read_bytes())
    workload = sweep["workload"]
    provenance = answer["provenance"]
    capacities = answer["capacities"]
    tuned = next((each for each in capacities if each.startswith(f"{TUNED}(")), "")
    if tuned == AS_IT_COMES:  # Its own search may have ended a step earlier or later.
        capacities[tuned] = capacities[BASELINE]
    return TableResult(
        workload=workload.get("recipe") or workload["name"],
        recorded="recipe" not in workload,
        hardware=provenance["hardware"],
        programs=workload["programs"],
        left_out=len(workload.get("left_out", ())),
        options=_options(provenance["made_by"]["argv"]),
        code_sha256=[provenance["code_sha256"]],
        references=answer["references"],
        capacities={
            TUNED if variant == tuned else variant: {
                seed: _capacity(each) for seed, each in found["by_seed"].items()
            }
            for variant, found in capacities.items()
        },
        tuned=tuned,
        load=_kind_of_load(sweep),
        horizon=_horizon(sweep),
        slo=(sweep.get("search") or {}).get("slo", ""),
    )


def _kind_of_load(sweep: Mapping[str, Any]) -> str:
    if sweep.get("arrivals", "").startswith(AGENTS):
        return AGENTS
    return DAY if sweep.get("horizon") else STEADY


def _horizon(sweep: Mapping[str, Any]) -> str:
    found = sweep.get("horizon")
    return msgspec.convert(found, HorizonRecord).in_words if found else ""


def _capacity(found: Mapping[str, Any]) -> float | Kind:
    value = found.get("jobs_per_s", found.get(AGENTS))
    return Kind(found["kind"]) if value is None else float(f"{value:.4g}")


def _options(argv: Sequence[str]) -> str:
    words = iter(argv[2:])
    return " ".join(
        f"{word} {next(words)}"
        for word in words
        if word.startswith("--") and (word not in NOT_LISTED or not next(words))
    )


def merged(old: Iterable[TableResult], new: Iterable[TableResult]) -> list[TableResult]:
    """Return both in the order of their keys. The variants of a new result replace the same ones of
    an old one."""
    by_key: dict[tuple[str, bool, str, str, str, str], TableResult] = {}
    for result in (*old, *new):
        if before := by_key.get(result.key):
            result = msgspec.structs.replace(
                result,
                code_sha256=sorted({*before.code_sha256, *result.code_sha256}),
                references=sorted({*before.references, *result.references}),
                capacities=before.capacities | result.capacities,
                tuned=result.tuned or before.tuned,
            )
        by_key[result.key] = result
    return [by_key[key] for key in sorted(by_key)]


def read_results(path: Path) -> list[TableResult]:
    return msgspec.json.decode(path.read_bytes(), type=list[TableResult])


def write_results(path: Path, results: Sequence[TableResult]) -> None:
    path.write_bytes(b"[\n" + b",\n".join(map(msgspec.json.encode, results)) + b"\n]\n")
