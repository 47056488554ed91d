"""Tool gaps that are drawn from a recipe where a file does not record them."""

from __future__ import annotations

from pathlib import Path
from statistics import mean

import pytest

from servers.basics.errors import InvalidTrace
from tests.sentences import mentions
from tests.traces.span_samples import bfcl
from tests.traces.test_traces_cli import bench
from traces import read_traces
from traces.synthesis.gaps import gap_source


def test_gaps_depend_on_the_tool() -> None:
    # In execution-note, pytest takes 2 to 5 s and cat 0.05 to 0.10 s.
    draw = gap_source("execution-note")
    slow = draw("a", [("pytest",)] * 200)
    fast = draw("a", [("cat",)] * 200)
    assert all(2 <= gap_s <= 5 for gap_s in slow)
    assert mean(slow) == pytest.approx(3.5, abs=0.25)
    assert all(0.05 <= gap_s <= 0.1 for gap_s in fast)


def test_the_first_known_tool_of_a_turn_decides() -> None:
    (gap_s,) = gap_source("execution-note")("a", [("unheard_of", "pytest", "cat")])
    assert 2 <= gap_s <= 5


def test_a_turn_without_a_known_tool_has_a_gap_of_any_call() -> None:
    # One of the seven calls of execution-note is pytest.
    gaps_s = gap_source("execution-note")("a", [("unheard_of",)] * 700)
    assert sum(gap_s >= 2 for gap_s in gaps_s) == pytest.approx(100, abs=30)


def test_gaps_of_a_program_depend_only_on_its_id_and_tools() -> None:
    tools = [("cd", "pytest"), (), ("sed",)]
    first, second = gap_source("swe-bench"), gap_source("swe-bench")
    first("another", tools)
    assert first("a", tools) == second("a", tools)
    assert first("a", tools) != first("b", tools)


def test_a_fitted_recipe_gives_gaps_by_tool() -> None:
    gaps_s = gap_source("mini-swe-agent")("a", [("python",)] * 50 + [("ls",)] * 50)
    assert mean(gaps_s[:50]) > mean(gaps_s[50:])


def test_an_unknown_recipe_is_refused() -> None:
    with pytest.raises(InvalidTrace, match=r"no recipe 'nothing'; known are swe-bench,"):
        gap_source("nothing")


def test_convert_draws_missing_gaps_only_when_asked(tmp_path: Path) -> None:
    (tmp_path / "result.json").write_bytes(bfcl())
    out = tmp_path / "out.jsonl"
    refused = bench("convert", tmp_path / "result.json", "--out", out)
    assert refused.exit_code == 2
    assert mentions(refused.stderr, "1 of 1 tool times", "--synthesise-gaps")
    drawn = bench("convert", tmp_path / "result.json", "--out", out, "--synthesise-gaps", "bfcl")
    assert drawn.exit_code == 0, drawn.output
    first = read_traces(out).programs[0].turns[0]
    assert first.gap_provenance == "synthesised"
    assert first.tool_gap_s > 0


def test_commands_say_if_no_gap_was_drawn(tmp_path: Path) -> None:
    (tmp_path / "result.json").write_bytes(bfcl())
    out, packed = tmp_path / "out.jsonl", tmp_path / "out.packed"
    unused = "--synthesise-gaps bfcl has no effect: no tool time had to be drawn"
    drawn = bench("convert", tmp_path / "result.json", "--out", out, "--synthesise-gaps", "bfcl")
    assert unused not in drawn.stderr
    for command in (("inspect", out), ("convert", out, "--to", "packed", "--out", packed)):
        recorded = bench(*command, "--synthesise-gaps", "bfcl")
        assert recorded.exit_code == 0, recorded.output
        assert recorded.stderr.count(unused) == 1


def test_stats_name_the_provenance_of_drawn_gaps(tmp_path: Path) -> None:
    (tmp_path / "result.json").write_bytes(bfcl())
    shown = bench("inspect", tmp_path / "result.json", "--synthesise-gaps", "bfcl")
    assert "gaps: 1 synthesised" in shown.stdout
