"""Figures of single cells: memory over time, and programs as a Gantt chart."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from reports.figures.drawing import Spec
from reports.figures.gantt import gantt
from reports.figures.memory import memory
from reports.run_folder.read import CellRun, load_run
from servers.policies.unlimited_kv import KV_BLOCKS
from tests.reports.make_run import turn, write_cell, write_sweep


def cell(tmp_path: Path, turns: Sequence[dict[str, Any]], **fields: Any) -> CellRun:
    write_cell(write_sweep(tmp_path, ["fcfs"]), "fcfs", turns, **fields)
    return load_run(tmp_path).cells[0]


def drawn(tmp_path: Path, turns: Sequence[dict[str, Any]], **fields: Any) -> Spec:
    figure = gantt({"fcfs": cell(tmp_path, turns, **fields)})
    assert figure is not None
    return figure.spec


def segments(spec: Spec) -> dict[str, list[tuple[int, float, float]]]:
    """Return for each kind of segment its (row, begin, duration), in seconds."""
    return {
        t["meta"]["segment"]: list(zip(t["y"], t["base"], t["x"], strict=True))
        for t in spec["data"]
    }


def test_gaps_of_a_workload_with_pauses_are_labelled_so(tmp_path: Path) -> None:
    turns = [turn("p0", 0, 10.0, decode_s=4.0), turn("p0", 1, 20.0, gap_s=3.0, decode_s=5.0)]
    own = {"fcfs": cell(tmp_path, turns)}
    for pauses, label in ((False, "tool"), (True, "tool or pause")):
        figure = gantt(own, pauses=pauses)
        assert figure is not None
        assert label in [entry.label for entry in figure.key]
        assert label in [bars["name"] for bars in figure.spec["data"]]


def test_the_parts_of_a_turn_follow_one_another(tmp_path: Path) -> None:
    first = turn("p0", 0, 10.0, queue_s=1.0, prefill_s=2.0, decode_s=4.0)  # ends at 17
    second = turn(
        "p0", 1, 20.0, gap_s=3.0, queue_s=0.5, load_s=0.25, prefill_s=1.0,
        preempted_s=2.0, recompute_s=1.0, decode_s=5.0,
    )  # fmt: skip
    assert segments(drawn(tmp_path, [first, second])) == {
        "queue": [(1, 10.0, 1.0), (1, 20.0, 0.5)],
        "load": [(1, 20.5, 0.25)],
        "prefill": [(1, 11.0, 2.0), (1, 20.75, 1.0)],
        "preempted": [(1, 21.75, 3.0)],
        "decode": [(1, 13.0, 4.0), (1, 24.75, 5.0)],
        "tool": [(1, 17.0, 3.0)],
    }


def test_programs_are_rows_in_order_of_arrival_and_sub_agents_have_their_own(
    tmp_path: Path,
) -> None:
    turns = [
        turn("late", 0, 5.0),
        turn("root", 0, 1.0),
        turn("agent", 0, 2.0, job_id="root"),
        turn("root", 1, 9.0, gap_s=1.0, wait_s=6.0),
    ]
    found = segments(drawn(tmp_path, turns))
    assert found["decode"] == [(3, 5.0, 1.0), (1, 1.0, 1.0), (2, 2.0, 1.0), (1, 9.0, 1.0)]
    assert found["subagents"] == [(1, 2.0, 6.0)]
    assert found["tool"] == [(1, 8.0, 1.0)]


def test_unreported_parts_of_the_server_time_are_one_segment(tmp_path: Path) -> None:
    unreported = dict.fromkeys(("queue_s", "load_s", "prefill_s", "preempted_s", "recompute_s"))
    turns = [
        turn("p0", 0, 1.0, decode_s=3.0, finished_at_s=6.0, device_hit_tokens=None, **unreported)
    ]
    spec = drawn(tmp_path, turns, engine="http://127.0.0.1:8000")
    assert segments(spec) == {"server": [(1, 1.0, 2.0)], "decode": [(1, 3.0, 3.0)]}


def test_a_failed_turn_is_not_drawn(tmp_path: Path) -> None:
    turns = [turn("p0", 0, 1.0), turn("p1", 0, 2.0, error="refused", decode_s=0.0)]
    assert segments(drawn(tmp_path, turns)) == {"decode": [(1, 1.0, 1.0)]}


def test_the_first_programs_are_shown_and_the_note_counts_the_others(tmp_path: Path) -> None:
    spec = drawn(tmp_path, [turn(f"p{k:03d}", 0, float(k)) for k in range(70)])
    assert max(row for row, _, _ in segments(spec)["decode"]) == 60
    assert spec["note"].startswith("The first 60 of 70 programs.")


@pytest.mark.parametrize(
    ("programs", "turns_each", "note", "bars"),
    [
        (3, 600, "The first 2 of 3 programs.", 1200),
        (1, 1600, "The first 1,500 of 1,600 turns.", 1500),
    ],
)
def test_long_programs_are_truncated_with_a_note(
    tmp_path: Path, programs: int, turns_each: int, note: str, bars: int
) -> None:
    turns = [
        turn(f"p{p}", k, p + 2.0 * k, gap_s=1.0 if k else 0.0)
        for p in range(programs)
        for k in range(turns_each)
    ]
    spec = drawn(tmp_path, turns)
    assert spec["note"].startswith(note)
    assert len(segments(spec)["decode"]) == bars


def test_memory_is_split_into_blocks_of_turns_and_blocks_of_pins(tmp_path: Path) -> None:
    usage = [[1.0, 10, 0, 0, 2], [2.0, 12, 5, 3, 1]]
    recorded = cell(tmp_path, [turn()], usage=usage, profile={"kv_blocks": 40})
    figure = memory({"fcfs": recorded})
    assert figure is not None
    assert [t["y"] for t in figure.spec["data"]] == [[10, 7], [0, 5], [0, 3], [2, 1]]
    assert all(t["x"] == [1.0, 2.0] for t in figure.spec["data"])
    assert figure.spec["layout"]["shapes"][0]["y0"] == 40
    assert "at most 12 of 40" in figure.spec["alt"]


def test_unlimited_memory_has_no_size(tmp_path: Path) -> None:
    unlimited = cell(tmp_path, [turn()], usage=[[0.0, 80, 0, 1, 2]], kv_blocks=2 * KV_BLOCKS)
    figure = memory({"unlimited-kv": unlimited})
    assert figure is not None
    assert figure.spec["layout"]["yaxis"]["range"] == [0, 1.04 * 80]
    assert "at most 80;" in figure.spec["alt"]


def test_long_memory_curves_are_thinned_and_keep_their_ends(tmp_path: Path) -> None:
    usage = [[float(k), k, 0, 0, 1] for k in range(500)]
    figure = memory({"fcfs": cell(tmp_path, [turn()], usage=usage)})
    assert figure is not None
    times = figure.spec["data"][0]["x"]
    assert len(times) <= 150
    assert (times[0], times[-1]) == (0.0, 499.0)


def test_a_live_engine_without_memory_records_has_no_memory_figure(tmp_path: Path) -> None:
    assert memory({"fcfs": cell(tmp_path, [turn()], engine="vllm")}) is None


def test_blocks_off_the_device_have_a_separate_axis_if_there_are_any(
    tmp_path: Path,
) -> None:
    usage = [[0.0, 4, 1, 0, 1, 0, 0], [1.0, 6, 2, 3, 2, 40, 0]]
    figure = memory({"fcfs": cell(tmp_path, [turn()], usage=usage)})
    assert figure is not None
    away = [t for t in figure.spec["data"] if t.get("yaxis") == "y3"]
    assert [t["y"] for t in away] == [[0, 40]]
    assert "blocks in DRAM, at most 40" in figure.spec["alt"]
    assert "blocks in DRAM" in [entry.label for entry in figure.key]


def test_without_blocks_off_the_device_there_is_no_separate_axis(tmp_path: Path) -> None:
    usage = [[0.0, 4, 1, 0, 1, 0, 0], [1.0, 6, 2, 3, 2, 0, 0]]
    figure = memory({"fcfs": cell(tmp_path, [turn()], usage=usage)})
    assert figure is not None
    assert "yaxis3" not in figure.spec["layout"]
    assert len(figure.key) == 4
