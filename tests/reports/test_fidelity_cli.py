"""`bench fidelity` on finished runs: its card, its output and its errors."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_report import EVIL, Page
from typer.testing import CliRunner

from harness.cli.main import app
from tests.harness.in_process import bench
from tests.reports.make_run import make_run, seal, turn, workload, write_cell, write_sweep
from tests.sentences import mentions

POLICIES = ("fcfs", "continuum")
MEASURED = {"provenance": "measured", "kv_blocks": 399, "block_tokens": 16}
VLLM = {"engine": "vllm", "server": {"vllm": "0.32.0"}}


@pytest.fixture
def runs(tmp_path: Path) -> Callable[..., list[str]]:
    """Write two runs and return the options: `runs(live={…}, sim={…})` changes their settings."""

    def build(live: dict[str, Any] | None = None, sim: dict[str, Any] | None = None) -> list[str]:
        base: dict[str, Any] = {"variants": POLICIES, "jps": (0.05, 0.3, 0.9), "programs": 30}
        make_run(tmp_path / "live", **{**base, **VLLM, **(live or {})})
        make_run(tmp_path / "sim", **{**base, "profile": MEASURED, **(sim or {})})
        return ["--live", str(tmp_path / "live"), "--sim", str(tmp_path / "sim")]

    return build


def test_two_runs_give_a_card(
    runs: Callable[..., list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    command = ["fidelity", *runs(), "--out", "card"]
    code, out, err = bench(*command)
    assert (code, err) == (0, "")
    # The same toy server made both: nothing differs.
    assert "fcfs\t0.05 jobs/s\t" in out
    assert "met\tKendall's tau" in out
    *_, summary, written = out.splitlines()
    assert mentions(summary, "vLLM 0.32.0, llama-3.1-8b", "a100-80g", "all targets are met.")
    assert written == "fidelity card: card/fidelity.html"
    card = json.loads((tmp_path / "card/fidelity.json").read_text())
    assert card["within_targets"] is True
    assert len(card["points"]) == len(card["cells"]) == 6
    assert {point["mean"]["value"] for point in card["points"]} == {0.0}
    assert [r["same_winner"] for r in card["rankings"]] == [True, True, True]
    assert card["rankings"][0]["tau_live"] is None  # one run of each cell

    page = Page(tmp_path / "card/fidelity.html")
    assert "Each live cell ran once" in page.text
    assert page.scripts == []
    assert (tmp_path / "card/fidelity.html").stat().st_size < 100_000
    assert not any(attrs.get("src") or tag == "link" for tag, attrs in page.tags)
    assert str(tmp_path) not in page.text

    before = (tmp_path / "card/fidelity.html").read_bytes()
    assert bench(*command)[0] == 0
    assert (tmp_path / "card/fidelity.html").read_bytes() == before


def test_outside_the_targets_the_exit_code_is_1_and_the_card_is_written(
    runs: Callable[..., list[str]], tmp_path: Path
) -> None:
    result = CliRunner().invoke(app, ["fidelity", *runs(live={"jps": (0.3,)}, sim={"jps": (0.3,)})])
    assert result.exit_code == 1
    assert mentions(result.stdout, "missed\t", "3 rates", "1 load")
    assert mentions(result.stdout, "not within its targets", "vLLM 0.32.0")
    assert (tmp_path / "live/fidelity.html").exists()  # beside its report


def test_a_cell_that_failed_is_named_and_makes_the_card_fail(
    runs: Callable[..., list[str]], tmp_path: Path
) -> None:
    options = runs()
    (tmp_path / "live/continuum_jps0.3_seed1/done.json").unlink()
    result = CliRunner().invoke(app, ["fidelity", *options])
    assert result.exit_code == 1
    assert re.search("bench: live, continuum_jps0.3_seed1: not finished", result.stderr)
    assert mentions(result.stdout, "missed\tevery cell", "1 cell did not")


def test_names_are_text_and_never_markup(tmp_path: Path) -> None:
    shape = workload([turn()]) | {"name": EVIL}
    for name, fields in (("live", {**VLLM, "server": {"vllm": EVIL}}), ("sim", {})):
        run = write_sweep(
            tmp_path / name, ["fcfs", EVIL], (0.5,), workload=shape, model=EVIL, **fields
        )
        for variant in ("fcfs", EVIL):
            write_cell(run, variant, [turn()])
    options = ["--live", str(tmp_path / "live"), "--sim", str(tmp_path / "sim")]
    CliRunner().invoke(app, ["fidelity", *options, "--out", str(tmp_path)])
    page = Page(tmp_path / "fidelity.html")
    assert page.scripts == []
    assert page.text.count(EVIL) >= 5


def refused(options: list[str], line: str) -> None:
    result = CliRunner().invoke(app, ["fidelity", *options])
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    (complaint,) = result.stderr.splitlines()
    assert re.search(line, complaint), complaint


@pytest.mark.parametrize(
    ("live", "sim", "line"),
    [
        ({"jps": (0.05,)}, {}, r"different settings: rates 0.05 instead of 0.05, 0.3 and 0.9$"),
        ({"seeds": (1, 2)}, {}, "different settings: seeds 1 and 2 instead of 1$"),
        ({"variants": ("fcfs",)}, {}, "policies fcfs instead of continuum and fcfs$"),
        ({"arrivals": "constant"}, {}, "arrivals constant instead of poisson$"),
        ({"programs": 10}, {}, "programs 10 instead of 30; turns "),
        (
            {"workload": workload([], trace_sha256="cd" * 32)},
            {},
            "traces cdcdcdcdcdcd instead of ab",
        ),
        (
            {"limits": {"max_num_seqs": 8}},
            {"limits": {"max_num_seqs": 256}},
            "max_num_seqs 8 instead of 256$",
        ),
        ({"engine": "sim"}, {}, "--live .*: ran in virtual time, not on a live engine$"),
        ({}, {"engine": "vllm"}, "--sim .*: ran on vllm, not in virtual time$"),
    ],
)
def test_runs_with_different_settings_are_refused_with_the_difference(
    runs: Callable[..., list[str]], live: dict[str, Any], sim: dict[str, Any], line: str
) -> None:
    refused(runs(live=live, sim=sim), line)


def test_different_kv_memory_is_refused_except_for_the_null_block(
    runs: Callable[..., list[str]], tmp_path: Path
) -> None:
    options = runs()

    def live_has(blocks: int) -> None:
        for done in (tmp_path / "live").glob("*/done.json"):
            held = {
                "finished_programs": 30,
                "failed_turns": 0,
                "kv_blocks": blocks,
                "block_tokens": 16,
            }
            done.write_text(json.dumps(held))
            seal(done.parent)

    live_has(300)
    refused(options, "KV blocks 300 instead of 399$")
    live_has(400)
    assert CliRunner().invoke(app, ["fidelity", *options]).exit_code == 0


def test_repeats_from_different_machines_or_given_twice_are_refused(
    runs: Callable[..., list[str]], tmp_path: Path
) -> None:
    options = runs()
    make_run(tmp_path / "other", POLICIES, (0.05, 0.3, 0.9), programs=30, **VLLM, hardware="h100")
    refused([*options, "--live", str(tmp_path / "other")], "hardware h100 instead of a100-80g")
    refused([*options, "--live", str(tmp_path / "live")], "live: is given twice$")


def test_missing_and_invalid_runs_are_refused(
    runs: Callable[..., list[str]], tmp_path: Path
) -> None:
    good = runs()
    refused(["--live", str(tmp_path), "--sim", good[3]], "is not a run: it has no sweep.json")
    refused(["--live", "nowhere", "--sim", good[3]], "nowhere: no such folder")
    refused(["--sim", good[3]], "give --live RUN, a live run of the same cells$")
    refused(good[:2], "give --sim RUN, a run in virtual time of the same cells$")
    refused([*good, "--jps", "0.5"], "--jps: not supported with --live and --sim; remove it")
    refused([*good, "--hardware", "a100-80g"], "a100-80g: No such file or directory; ")


def test_a_run_without_a_result_is_refused(runs: Callable[..., list[str]], tmp_path: Path) -> None:
    options = runs()
    for done in (tmp_path / "sim").glob("*/done.json"):
        done.unlink()
    refused(options, "sim: no cell has finished; run the sweep to its end first$")


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ("--hardware a100-80g", "--hardware a100-80g: not a measured profile; give a file"),
        ("--hardware nowhere.json --jps 0.1", "nowhere.json: No such file or directory; "),
        ("--policies continuum+", "--policies continuum.: policies with an offload tier are not"),
        ("--policies contineum", "no policy is called 'contineum'"),
        ("--jps 0", "--jps '0': a rate or step of zero"),
        ("--seeds 3..1", "the range is reversed"),
        ("--traces nowhere.jsonl", "nowhere.jsonl: no such file, folder or pack"),
        ("--out /dev/null --jps 0.1", "--out /dev/null: is a file"),
        ("--out . --jps 0.1", r"--out \.: contains files of something else"),
    ],
)
def test_invalid_input_starts_nothing(
    options: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.txt").write_text("")
    refused(options.split(), line)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
