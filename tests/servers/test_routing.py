"""`--router` and `--replicas`: names, arguments, and what is refused before the first cell."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from harness.cli.main import app
from servers.errors import InvalidPlugin, InvalidPolicy, TurnstileError, UnknownName
from servers.routing import ROUTERS, named_router
from servers.variants import behind_routers, variants


def test_each_policy_runs_behind_each_router() -> None:
    chosen = behind_routers(variants("fcfs,continuum(k=50)"), "sticky,least-loaded(load=kv)")
    assert [each.name for each in chosen] == [
        "fcfs@sticky",
        "fcfs@least-loaded(load=kv)",
        "continuum(k=50)@sticky",
        "continuum(k=50)@least-loaded(load=kv)",
    ]


def test_without_a_name_the_router_is_sticky() -> None:
    assert [each.name for each in behind_routers(variants("fcfs"), None)] == ["fcfs@sticky"]


@pytest.mark.parametrize("name", ROUTERS.built_in)
def test_the_registered_name_is_that_of_the_class(name: str) -> None:
    assert named_router(name).router.name == name


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("stiky", "no router is called 'stiky'. Did you mean sticky?"),
        ("sticky(", "write NAME or NAME(argument=value, …)"),
        ("sticky(k=1)", "k is not an argument of sticky, which takes none"),
        ("least-loaded(load=gpu)", "load must be turns or kv, not gpu"),
        ("least-loaded(report_s=-1)", "report_s must be at least 0, not -1"),
        ("thunderagent(interval_s=0)", "interval_s and resume_after_s are seconds"),
        ("program-scheduling(stats_window_size=0)", "stats_window_size must be at least 1, not 0"),
        ("program-scheduling(low_watermark_ratio=2)", "the low one must not exceed the high one"),
        ("pathlib:Path", "is not a router; derive a class from servers.routers.base.Router"),
        ("sticky,sticky", "sticky is given twice; give it once"),
    ],
)
def test_a_wrong_router_is_refused_with_the_remedy(text: str, message: str) -> None:
    with pytest.raises((UnknownName, InvalidPlugin, InvalidPolicy)) as refused:
        behind_routers(variants("fcfs"), text)
    assert isinstance(refused.value, TurnstileError)
    assert message in str(refused.value)


def test_a_sweep_compares_routers_with_the_same_jobs(tmp_path: Path) -> None:
    """Round-robin moves programs between replicas, so that they find less of their KV."""
    command = "sweep --policies fcfs --replicas 2 --router round-robin,sticky --jps 0.2 --once"
    options = ["--programs", "8", "--out", str(tmp_path / "run")]
    result = CliRunner().invoke(app, [*command.split(), *options])
    assert result.exit_code == 0, result.stderr
    rows = {
        name: [json.loads(line) for line in (folder / "turns.jsonl").read_text().splitlines()]
        for name in ("round-robin", "sticky")
        for folder in (tmp_path / "run").glob(f"fcfs*{name}_jps0.2_seed1")
    }
    scattered, stuck = rows["round-robin"], rows["sticky"]
    assert {row["replica"] for row in scattered} == {row["replica"] for row in stuck} == {0, 1}
    starts = [
        [(r["job_id"], r["sent_at_s"]) for r in each if not r["turn"]] for each in rows.values()
    ]
    assert sorted(starts[0]) == sorted(starts[1])
    hits = [sum(row["device_hit_tokens"] for row in each) for each in (scattered, stuck)]
    assert hits[0] < 0.8 * hits[1]
    cell = json.loads(next((tmp_path / "run").glob("*sticky*/cell.json")).read_text())
    assert (cell["replicas"], cell["router"]["name"]) == (2, "sticky")
