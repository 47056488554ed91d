"""`bench sweep --until`: how many seeds each round has, when it ends, and what it refuses."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from in_process import bench
from msgspec.json import encode
from small import programs

from harness.cli.until import (
    NotYet,
    Rule,
    narrow,
    parse_until,
    run_until,
    separated,
    with_default,
    within,
)
from harness.load.option import build
from harness.load.settings import Execution, SweepSettings
from reports.statistics.best import MAX_SEEDS, seeds_for
from servers.basics.errors import InvalidInput
from servers.records.sweep import SweepRecord
from tests.crash.trials import bytes_of
from tests.sentences import mentions
from traces.formats.native import write_programs


def rounds(folder: Path, widths: Sequence[float | None], share: float = 0.05) -> list[str]:
    """Return the seeds of each round. `widths` are the half widths after the rounds."""
    left = iter(widths)
    return ran_with(folder, narrow(share, lambda _: next(left)))


def ran_with(folder: Path, rule: Rule) -> list[str]:
    """Return the seeds of each round."""
    ran: list[str] = []

    def run(settings: SweepSettings, *, continues: bool) -> tuple[Path, dict[str, str]]:
        seeds = str(settings.seeds)
        assert continues == bool(ran)
        folder.mkdir(exist_ok=True)
        stored = SweepRecord(
            variants=(), jps=(), seeds=tuple(map(int, seeds.split(","))), baseline="fcfs"
        )
        (folder / "sweep.json").write_bytes(encode(stored))
        ran.append(seeds)
        return folder, {}

    run_until(SweepSettings(), rule, folder, run)
    return ran


def test_seeds_are_added_until_the_intervals_are_narrow(tmp_path: Path) -> None:
    """±6% with 3 seeds suggests 3 · (6/5)² = 4.3 seeds, so 5."""
    assert rounds(tmp_path / "run", [0.06, 0.05]) == ["1,2,3", "1,2,3,4,5"]


def test_a_repeated_command_continues_with_the_seeds_of_its_folder(tmp_path: Path) -> None:
    """The second command finds the state in which a killed one left the folder."""
    assert rounds(tmp_path / "run", [0.06, None]) == ["1,2,3", "1,2,3,4,5"]
    assert rounds(tmp_path / "run", [0.04]) == ["1,2,3,4,5"]


def test_a_round_at_most_doubles_the_seeds_and_the_last_one_has_24() -> None:
    assert [seeds_for(n, 1.0, 0.05) for n in (1, 3, 6, 12, 20)] == [2, 6, 12, 24, 24]
    assert seeds_for(1, math.inf, 0.05) == 2
    assert seeds_for(10, 0.0501, 0.05) == 11


def test_it_ends_with_24_seeds_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ran = rounds(tmp_path / "run", [0.5] * 4)
    assert [len(seeds.split(",")) for seeds in ran] == [3, 6, 12, MAX_SEEDS]
    assert mentions(capsys.readouterr().err, "±50% with 24 seeds", "--until")


@pytest.mark.parametrize(
    ("minutes_per_seed", "seeds"),
    [(0.04, [3, 6, 12, 24]), (0.06, [3, 6, 12]), (0.13, [3, 6]), (0.19, [3, 5]), (0.25, [3])],
)
def test_a_time_limits_the_seeds_and_each_round_has_half_as_many_again(
    tmp_path: Path, minutes_per_seed: float, seeds: list[int]
) -> None:
    """In a minute 25, 16, 7, 5 and 4 seeds are possible. 12 · 1.5, 6 · 1.5 and 3 · 1.5 are more
    than 16, 7 and 4, so the second, third and last sweep end there."""
    rule = within(
        1,
        lambda run: len(run.sweep.seeds) * minutes_per_seed,
        lambda run: NotYet("undecided", min(MAX_SEEDS, 2 * len(run.sweep.seeds))),
    )
    assert [len(each.split(",")) for each in ran_with(tmp_path / "run", rule)] == seeds


def test_a_time_does_not_go_on_once_the_schedulers_are_separated(tmp_path: Path) -> None:
    assert ran_with(tmp_path / "run", within(5, lambda _: 0.1, lambda *_: None)) == ["1,2,3"]


@pytest.mark.parametrize(
    "options",
    [
        *({"seeds": "1..3"}, {"jps": "0.1"}, {"until": "separated"}, {"no_capacity": True}),
        *({"once": True}, {"agents": "4"}, {"arrivals": "closed:4"}, {"hardware": "h100,b200"}),
        *({"engine": "vllm"}, {"engine": "vllm-virtual"}, {"scenario": "agentx"}),
    ],
)
def test_only_a_search_without_seeds_and_loads_gets_a_minute(options: dict[str, Any]) -> None:
    given = build(SweepSettings, options)
    assert with_default(given, Execution()) == given
    assert with_default(SweepSettings(), Execution(shard="1/2")) == SweepSettings()
    assert with_default(SweepSettings(), Execution()).until == "1min"
    assert with_default(SweepSettings(jps="auto"), Execution()).until == "1min"


def test_without_a_ratio_there_is_nothing_to_narrow(tmp_path: Path) -> None:
    assert rounds(tmp_path / "run", [None]) == ["1,2,3"]


def test_rules_are_a_share_a_time_or_separated() -> None:
    assert parse_until("separated") is separated
    assert callable(parse_until("5%"))
    assert callable(parse_until("0.05"))
    assert callable(parse_until("5min"))
    for text in ("five", "0", "150%", "nan", "0min", "-1min", "1 h"):
        with pytest.raises(InvalidInput, match="give a share from 0"):
            parse_until(text)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ("--once", "--until 5%: needs a search for capacities; remove --once"),
        ("--jps 0.1 --no-capacity", "--until 5%: needs a search for capacities; remove --no-cap"),
        ("--arrivals closed:4", "--until 5%: needs a search for capacities; remove --arrivals clo"),
        ("--hardware h100,b200", "--until 5%: works on one machine at a time; give one --hardware"),
    ],
)
def test_settings_without_a_search_on_one_machine_are_refused(options: str, line: str) -> None:
    code, out, err = bench("sweep", "--until", "5%", *options.split())
    assert (code, out) == (2, "")
    assert line in err


@pytest.mark.acceptance
def test_schedulers_get_more_seeds_in_the_same_folder_until_they_are_separated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """InferCept has 0.92x the capacity of fcfs here, which six seeds show and three do not. The
    same command, without seeds, repeats none."""
    monkeypatch.chdir(tmp_path)
    write_programs(Path("t.jsonl"), programs(3))
    load = ("--traces", "t.jsonl", "--horizon", "steady", "--kv-blocks", "300")
    options = ("--policies", "fcfs,infercept", "--workers", "1")
    command = ("sweep", *load, *options, "--out", "run")
    code, _, err = bench(*command)
    assert code == 0, err
    reason = "infercept is not yet separated from fcfs, nor shown to be equal"
    rounds = [line for line in err.splitlines() if reason in line]
    answer = "for the answer with 3, stop and add --seeds 1,2,3 in another folder"
    assert rounds == [f"bench: {reason}; continuing with 6 seeds ({answer})"]
    sweep = json.loads(Path("run/sweep.json").read_text())
    assert sweep["seeds"] == [1, 2, 3, 4, 5, 6]
    assert sweep["search"]["until"] == "1min"
    before = bytes_of(Path("run"))
    code, _, err = bench(*command)
    assert (code, reason in err) == (0, False)
    assert bytes_of(Path("run")) == before
