"""`bench sweep --until`: how many seeds each round has, when it ends, and what it refuses."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

import pytest
from in_process import bench
from msgspec.json import encode
from small import programs

from harness.cli.until import narrow, parse_until, run_until, separated
from harness.load.settings import SweepSettings
from reports.statistics.best import MAX_SEEDS, seeds_for
from servers.basics.errors import InvalidInput
from servers.records.sweep import SweepRecord
from tests.sentences import mentions
from traces.formats.native import write_programs


def rounds(folder: Path, widths: Sequence[float | None], share: float = 0.05) -> list[str]:
    """Return the seeds of each round. `widths` are the half widths after the rounds."""
    ran: list[str] = []

    def run(settings: SweepSettings) -> tuple[Path, dict[str, str]]:
        seeds = str(settings.seeds)
        folder.mkdir(exist_ok=True)
        stored = SweepRecord(
            variants=(), jps=(), seeds=tuple(map(int, seeds.split(","))), baseline="fcfs"
        )
        (folder / "sweep.json").write_bytes(encode(stored))
        ran.append(seeds)
        return folder, {}

    run_until(SweepSettings(), narrow(share, lambda _: widths[len(ran) - 1]), folder, run)
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


def test_without_a_ratio_there_is_nothing_to_narrow(tmp_path: Path) -> None:
    assert rounds(tmp_path / "run", [None]) == ["1,2,3"]


def test_rules_are_a_share_or_separated() -> None:
    assert parse_until("separated") is separated
    assert callable(parse_until("5%"))
    assert callable(parse_until("0.05"))
    for text in ("five", "0", "150%", "nan"):
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
    same command repeats none."""
    monkeypatch.chdir(tmp_path)
    write_programs(Path("t.jsonl"), programs(3))
    load = ("--traces", "t.jsonl", "--horizon", "steady", "--kv-blocks", "300")
    options = ("--policies", "fcfs,infercept", "--until", "separated", "--workers", "1")
    command = ("sweep", *load, *options, "--out", "run")
    code, _, err = bench(*command)
    assert code == 0, err
    reason = "infercept is not yet separated from fcfs, nor shown to be equal"
    rounds = [line for line in err.splitlines() if reason in line]
    assert rounds == [f"bench: {reason}; continuing with 6 seeds"]
    assert json.loads(Path("run/sweep.json").read_text())["seeds"] == [1, 2, 3, 4, 5, 6]
    before = sorted(Path("run").iterdir())
    code, _, err = bench(*command)
    assert (code, reason in err) == (0, False)
    assert sorted(Path("run").iterdir()) == before
