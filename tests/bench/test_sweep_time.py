"""Duration of a sweep of fixed sets of jobs, with its files; the goal is a minute on two cores."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from pytest_benchmark.fixture import BenchmarkFixture

from harness.load.settings import Load, SweepSettings
from harness.sweep.resolve import resolve
from servers.basics.cores import cpu_cores
from tests.harness.small import run_sweep


def test_duration_of_a_sweep_of_fixed_sets(benchmark: BenchmarkFixture, tmp_path: Path) -> None:
    """Every policy at nine rates on all cores; if nothing is timed, two of each."""
    plan = resolve(SweepSettings(load=Load(once=True)))
    if not benchmark.enabled:
        plan = replace(plan, variants=plan.variants[:2], amounts=plan.amounts[:2])

    def sweep() -> int:
        return len(run_sweep(plan, tmp_path / "run", workers=cpu_cores()).failed)

    failed: int = benchmark.pedantic(sweep, rounds=1, iterations=1)  # type: ignore[no-untyped-call]
    assert failed == 0
