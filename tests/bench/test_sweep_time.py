"""How long the default sweep takes, lines written and all; the aim is a minute on two cores."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from pytest_benchmark.fixture import BenchmarkFixture

from harness.installation import cpu_cores
from harness.sweep.plan import SweepSettings, resolve
from harness.sweep.run import run_sweep


def test_the_default_sweep(benchmark: BenchmarkFixture, tmp_path: Path) -> None:
    """Every policy and nine rates, on all cores; two of each where nothing is timed."""
    plan = resolve(SweepSettings())
    if not benchmark.enabled:
        plan = replace(plan, variants=plan.variants[:2], rates=plan.rates[:2])

    def sweep() -> int:
        return len(run_sweep(plan, tmp_path / "run", workers=cpu_cores()).failed)

    failed: int = benchmark.pedantic(sweep, rounds=1, iterations=1)  # type: ignore[no-untyped-call]
    assert failed == 0
