from collections.abc import Sequence
from pathlib import Path
from typing import Any

from reports.figures.drawing import Figure
from reports.figures.tool_gaps import tool_gaps
from reports.run_folder.read import load_run
from tests.reports.make_run import turn, write_cell, write_sweep
from tests.sentences import mentions


def drawn(tmp_path: Path, turns: Sequence[dict[str, Any]]) -> Figure | None:
    write_cell(write_sweep(tmp_path, ["fcfs"]), "fcfs", turns)
    return tool_gaps(load_run(tmp_path).cells[0])


def program(name: str, *calls: tuple[list[str], float]) -> list[dict[str, Any]]:
    """Return turns that call tools, each followed by its gap, and a last turn."""
    turns = [turn(name, 0, tools=calls[0][0])]
    for k, (_, gap_s) in enumerate(calls):
        after = calls[k + 1][0] if k + 1 < len(calls) else []
        turns.append(turn(name, k + 1, gap_s=gap_s, tools=after))
    return turns


def test_a_gap_belongs_to_the_first_tool_of_the_turn_before(tmp_path: Path) -> None:
    turns = program("p0", (["grep", "cat"], 0.5), (["make"], 60.0), (["grep"], 0.25))
    figure = drawn(tmp_path, turns)
    assert figure is not None
    assert [entry.label for entry in figure.key] == ["make, 1 call", "grep, 2 calls"]
    make, grep = figure.spec["data"]
    assert (make["x"], make["y"]) == ([60.0], [1.0])
    assert (grep["x"], grep["y"]) == ([0.25, 0.5], [0.5, 1.0])


def test_turns_of_several_programs_may_alternate(tmp_path: Path) -> None:
    one, other = program("p0", (["ls"], 1.0)), program("p1", (["make"], 9.0))
    figure = drawn(tmp_path, [one[0], other[0], other[1], one[1]])
    assert figure is not None
    assert [t["x"] for t in figure.spec["data"]] == [[9.0], [1.0]]


def test_only_the_tools_with_the_most_time_are_drawn_and_the_note_counts_the_others(
    tmp_path: Path,
) -> None:
    calls = [([f"tool-{k}"], float(10 - k)) for k in range(10)]
    figure = drawn(tmp_path, program("p0", *calls))
    assert figure is not None
    assert [entry.label for entry in figure.key][::7] == ["tool-0, 1 call", "tool-7, 1 call"]
    assert "; 2 other tools took 5% of the time." in figure.spec["note"]  # 3 of 55 seconds


def test_a_gap_of_zero_counts_but_is_not_drawn_on_a_log_axis(tmp_path: Path) -> None:
    figure = drawn(tmp_path, program("p0", (["ls"], 0.0), (["ls"], 2.0)))
    assert figure is not None
    assert (figure.spec["data"][0]["x"], figure.spec["data"][0]["y"]) == ([2.0], [1.0])


def test_the_note_gives_the_provenance_of_gaps(tmp_path: Path) -> None:
    turns = program("p0", (["ls"], 1.0), (["ls"], 2.0), ([], 30.0))
    turns[1]["gap_provenance"] = "measured"
    figure = drawn(tmp_path, turns)
    assert figure is not None
    assert "1.50 s on average" in figure.spec["note"]
    assert "1 measured and 2 synthesised" in figure.spec["note"]
    assert mentions(figure.spec["note"], "1 gap", "without a tool")


def test_without_tools_there_is_no_figure(tmp_path: Path) -> None:
    assert drawn(tmp_path, [turn(tools=[]), turn(index=1, tools=[], gap_s=3.0)]) is None


def test_tools_that_take_no_time_are_no_figure(tmp_path: Path) -> None:
    assert drawn(tmp_path, program("p0", (["think"], 0.0), (["think"], 0.0))) is None
