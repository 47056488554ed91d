"""`--router` and `--replicas`: names, arguments, and what is refused before the first cell."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from harness.cli.main import app
from harness.engines.foreign_router import find_routers
from harness.load.settings import Agents, SweepSettings
from servers.basics.errors import InvalidInput, InvalidRouter, UnknownName
from servers.routers.base import Replica, RoutedTurn
from servers.routers.prefix_aware import PrefixAware
from servers.routing import ROUTERS, ForeignRouter, NamedRouter, find_router, named_router
from servers.variants import behind_routers, variants
from tests.lines import read_lines
from tests.sentences import mentions
from tests.servers.substitute_vllm import substitute_vllm


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
        ("stiky", "no router is called 'stiky'; did you mean sticky?"),
        ("sticky(", "write NAME or NAME(argument=value, …)"),
        ("sticky(k=1)", "k is not an argument of sticky, which takes none"),
        ("least-loaded(load=gpu)", "load must be turns or kv, not gpu"),
        ("least-loaded(report_s=-1)", "report_s must be at least 0, not -1"),
        ("thunderagent(interval_s=0)", "interval_s and resume_after_s are seconds"),
        ("program-scheduling(stats_window_size=0)", "stats_window_size must be at least 1, not 0"),
        ("program-scheduling(low_watermark_ratio=2)", "the low one must not exceed the high one"),
        ("pathlib:Path", "is not a router; derive a class from servers.routers.base.Router"),
        ("vllm-router:kv_aware", "other policies: vllm-router:round_robin, vllm-router:consistent"),
        ("vllm-router", "vllm-router is offered with other policies: vllm-router:round_robin, "),
        ("sticky,sticky", "sticky is given twice; give it once"),
    ],
)
def test_a_wrong_router_is_refused_with_the_remedy(text: str, message: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        behind_routers(variants("fcfs"), text)
    assert message in str(refused.value)


def test_routers_of_others_are_variants_beside_ours() -> None:
    chosen = behind_routers(variants("fcfs"), "sticky,vllm-router:consistent_hash")
    assert [each.name for each in chosen] == ["fcfs@sticky", "fcfs@vllm-router:consistent_hash"]
    assert isinstance(chosen[0].router, NamedRouter)
    assert chosen[1].router == ForeignRouter("vllm-router", "consistent_hash")


def test_a_router_of_others_has_no_decisions_to_ask_for() -> None:
    with pytest.raises(InvalidRouter, match=r"only .* --engine vllm or sglang"):
        named_router("vllm-router:round_robin")


def test_virtual_time_refuses_a_router_of_others(tmp_path: Path) -> None:
    command = "sweep --policies fcfs --replicas 2 --router vllm-router:round_robin --jps 0.2"
    refused = CliRunner().invoke(app, [*command.split(), "--out", str(tmp_path / "run")])
    assert refused.exit_code == 2
    assert mentions(refused.stderr, "live servers", "--engine vllm or sglang")
    assert not (tmp_path / "run").exists()


def test_a_router_that_is_not_installed_is_refused_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The Python of these tests has no vllm-router."""
    monkeypatch.setenv("TURNSTILE_ROUTERS_PYTHON", sys.executable)
    python = substitute_vllm(tmp_path, "healthy")
    options = ["--engine", "vllm", "--vllm-python", python, "--policies", "fcfs", "--jps", "1"]
    options += ["--replicas", "2", "--router", "vllm-router:round_robin"]
    refused = CliRunner().invoke(app, ["sweep", *options, "--out", str(tmp_path / "run")])
    assert refused.exit_code == 2
    assert f"vllm-router is not installed in {sys.executable}; install it with: make routers" in (
        refused.stderr
    )
    assert not (tmp_path / "run").exists()


def test_sglang_router_refuses_token_ids_before_anything_starts() -> None:
    chosen = behind_routers(variants("fcfs"), "sglang-router:manual")
    with pytest.raises(InvalidInput, match=r"token ids; add --prompts text"):
        find_routers(chosen, SweepSettings())


def test_real_agents_behind_a_router_of_others_are_refused() -> None:
    settings = SweepSettings(agents=Agents(agent="mini-swe-agent"))
    chosen = behind_routers(variants("fcfs"), "vllm-router:round_robin")
    with pytest.raises(InvalidInput, match="only replays traces; remove --agent mini-swe-agent"):
        find_routers(chosen, settings)


def test_prefix_aware_gives_up_the_least_recently_used_prompts_every_two_minutes() -> None:
    router = PrefixAware([Replica(0, 1), Replica(1, 1)], max_tree_tokens=150)
    for number, run in enumerate("abc"):
        turn = RoutedTurn(number, run, 0, float(number), 100, None, ((run, 100),))
        assert router.route(turn, float(number)) == (0, 1, 0)[number]  # the smallest shadow
    assert router.period_s == 120.0
    router.tick(120.0)
    known = [shadow.known(((run, 100),)) for run in "abc" for shadow in router._shadows]
    assert known == [0, 0, 0, 100, 100, 0]


def test_a_sweep_compares_routers_with_the_same_jobs(tmp_path: Path) -> None:
    """Round-robin moves programs between replicas, so that they find less of their KV."""
    command = "sweep --policies fcfs --replicas 2 --router round-robin,sticky --jps 0.2 --once"
    options = ["--programs", "8", "--out", str(tmp_path / "run")]
    result = CliRunner().invoke(app, [*command.split(), *options])
    assert result.exit_code == 0, result.stderr
    rows = {
        name: read_lines(folder / "turns.jsonl")
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


def test_the_policy_of_a_router_of_another_project_names_the_project() -> None:
    with pytest.raises(UnknownName) as refused:
        find_router("kv")
    assert mentions(str(refused.value), "--router kv", "did you mean dynamo:kv?")
    with pytest.raises(UnknownName, match="did you mean sglang-router:manual"):
        find_router("manual")
