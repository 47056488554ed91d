"""How long the default sweep takes, lines written and all; the aim is a minute on two cores."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from pytest_benchmark.fixture import BenchmarkFixture

from harness.installation import cpu_cores
from harness.sweep.plan import Asked, resolve
from harness.sweep.run import run_sweep


def test_the_default_sweep(benchmark: BenchmarkFixture, tmp_path: Path) -> None:
    """Every policy and nine rates, on all cores; two of each where nothing is timed."""
    question = resolve(Asked())
    if not benchmark.enabled:
        question = replace(question, variants=question.variants[:2], rates=question.rates[:2])

    def sweep() -> int:
        return len(run_sweep(question, tmp_path / "run", workers=cpu_cores()).failed)

    failed: int = benchmark.pedantic(sweep, rounds=1, iterations=1)  # type: ignore[no-untyped-call]
    assert failed == 0
