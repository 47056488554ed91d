"""How long the report of a large sweep takes; the aim: half a minute on two cores, below 6 MB."""

from __future__ import annotations

from pathlib import Path

from pytest_benchmark.fixture import BenchmarkFixture

from reports import write_report
from tests.reports.make_run import VARIANTS, make_run


def test_the_report_of_two_thousand_cells(benchmark: BenchmarkFixture, tmp_path: Path) -> None:
    """Nine rates, fourteen variants, sixteen seeds, 100 programs; a few where nothing is timed."""
    if benchmark.enabled:
        run = make_run(tmp_path, seeds=range(1, 17))
    else:
        run = make_run(tmp_path, list(VARIANTS)[:3], jps=(0.1, 0.5), programs=10)
    path: Path = benchmark.pedantic(  # type: ignore[no-untyped-call]
        lambda: write_report(run).path, rounds=1, iterations=1
    )
    assert path.stat().st_size < 6_000_000
