"""The memory that pins retained, and the share of it that was never reused."""

from pathlib import Path
from typing import Any

import pytest

from reports.metrics.cells import collect
from reports.run_folder.read import load_run
from tests.reports.make_run import seal, turn, write_cell, write_lines, write_sweep
from tests.sentences import mentions


def event(t: float, name: str, program: str = "p", **fields: Any) -> dict[str, Any]:
    return {"t": t, "event": name, "program_id": program, "turn": 0, **fields}


def row_of(run: Path, events: list[dict[str, Any]], **config: Any) -> dict[str, Any]:
    """Return the results of a cell that lasts from 0 to 10 s."""
    write_sweep(run, ["fcfs"])
    cell = write_cell(run, "fcfs", [turn("p", decode_s=10.0)], **config)
    write_lines(cell / "engine.jsonl", events)
    (row,) = collect(load_run(run)).cells.to_dict("records")
    return {str(k): v for k, v in row.items()}


def test_a_pin_counts_blocks_times_seconds_and_is_used_only_if_reused(tmp_path: Path) -> None:
    row = row_of(
        tmp_path,
        [
            event(2.0, "pinned", blocks=10, ttl_s=5.0, why={}),
            event(3.0, "pinned", "q", blocks=4, ttl_s=None, why={}),
            event(5.0, "unpinned", reason="reused"),  # 30 block-seconds
            event(6.0, "pinned", blocks=10, ttl_s=2.0, why={}),
            event(8.0, "unpinned", reason="expired"),  # 20, not reused
        ],
        profile={"kv_blocks": 100},
    )
    # q stays pinned to the end: 4 blocks for 7 s, not reused.
    assert (row["pin_block_s"], row["pin_unused_block_s"]) == (78.0, 48.0)
    assert row["pinned_ratio"] == pytest.approx(78 / (100 * 10))


def test_an_engine_that_pins_nothing_has_zeros_and_one_without_events_has_none(
    tmp_path: Path,
) -> None:
    with_events = row_of(tmp_path / "a", [event(0.0, "arrival")], profile={"kv_blocks": 100})
    assert (with_events["pin_block_s"], with_events["pinned_ratio"]) == (0.0, 0.0)
    without_events = row_of(tmp_path / "b", [])
    assert without_events["pin_block_s"] != without_events["pin_block_s"]


def test_the_end_of_a_pin_that_was_not_recorded_counts_nothing(tmp_path: Path) -> None:
    row = row_of(
        tmp_path,
        [
            event(1.0, "unpinned", "unknown", reason="expired"),
            event(2.0, "pinned", blocks=10),
            event(3.0, "unpinned", reason="reused"),  # 10 block-seconds
            event(9.0, "unpinned", reason="expired"),  # its pin has ended
        ],
    )
    assert (row["pin_block_s"], row["pin_unused_block_s"]) == (10.0, 0.0)


@pytest.mark.parametrize("reason", ["replaced", "ended", "expired", "review", "pressure"])
def test_a_pin_that_ended_for_any_reason_but_its_reuse_was_not_used(
    tmp_path: Path, reason: str
) -> None:
    events = [event(2.0, "pinned", blocks=10), event(3.0, "unpinned", reason=reason)]
    row = row_of(tmp_path, events)
    assert (row["pin_block_s"], row["pin_unused_block_s"]) == (10.0, 10.0)


def test_only_the_time_between_the_first_arrival_and_the_last_departure_counts(
    tmp_path: Path,
) -> None:
    # A job from 5 to 15 s. Of 3 blocks from 2 to 8 s count 3 s, of 2 blocks from 14 on 1 s.
    write_sweep(tmp_path, ["fcfs"])
    cell = write_cell(
        tmp_path, "fcfs", [turn("p", 0, 5.0, decode_s=10.0)], profile={"kv_blocks": 10}
    )
    events = [
        event(2.0, "pinned", blocks=3),
        event(8.0, "unpinned", reason="expired"),
        event(14.0, "pinned", "q", blocks=2),
        event(16.0, "pinned", "r", blocks=7),
    ]
    write_lines(cell / "engine.jsonl", events)
    (row,) = collect(load_run(tmp_path)).cells.to_dict("records")
    assert (row["pin_block_s"], row["pin_unused_block_s"]) == (11.0, 11.0)
    assert row["pinned_ratio"] == pytest.approx(11 / (10 * 10))


def test_a_pin_without_its_number_of_blocks_costs_the_cell(tmp_path: Path) -> None:
    write_sweep(tmp_path, ["fcfs"])
    cell = write_cell(tmp_path, "fcfs", [turn()])
    write_lines(cell / "engine.jsonl", [event(1.0, "pinned", blocks=3), event(2.0, "pinned")])
    ((_, why),) = collect(load_run(tmp_path)).missing
    assert "engine.jsonl: a pinned event lacks blocks" in why


def test_a_line_that_was_cut_when_the_process_was_killed_is_ignored(tmp_path: Path) -> None:
    write_sweep(tmp_path, ["fcfs"])
    cell = write_cell(tmp_path, "fcfs", [turn("p", decode_s=10.0)])
    write_lines(cell / "engine.jsonl", [event(4.0, "pinned", blocks=2)])
    with (cell / "engine.jsonl").open("a") as lines:
        lines.write('{"t": 5.0, "event": "unpinned", "program')
    seal(cell)
    (row,) = collect(load_run(tmp_path)).cells.to_dict("records")
    assert row["pin_block_s"] == 2 * 6.0


def test_a_program_may_have_the_name_of_an_event(tmp_path: Path) -> None:
    row = row_of(tmp_path, [event(0.0, "arrival", "pinned"), event(1.0, "finished", 'un"pinned"')])
    assert row["pin_block_s"] == 0.0


def test_the_number_of_blocks_of_a_live_engine_comes_from_its_own_record(tmp_path: Path) -> None:
    events = [event(0.0, "pinned", blocks=5), event(10.0, "unpinned", reason="reused")]
    row_of(tmp_path, events, engine="vllm", profile=None)
    cell = tmp_path / "fcfs_jps0.5_seed1"
    (cell / "done.json").write_text('{"finished_programs": 1, "failed_turns": 0, "kv_blocks": 10}')
    seal(cell)
    (row,) = collect(load_run(tmp_path)).cells.to_dict("records")
    assert row["pinned_ratio"] == pytest.approx(0.5)


def test_a_broken_event_of_a_pin_costs_the_cell_with_a_clear_line(tmp_path: Path) -> None:
    write_sweep(tmp_path, ["fcfs"])
    cell = write_cell(tmp_path, "fcfs", [turn()])
    (cell / "engine.jsonl").write_text('{"t": 1, "event": "pinned", "prog\n{}\n')
    seal(cell)
    ((name, why),) = collect(load_run(tmp_path)).missing
    assert name == cell.name
    assert mentions(why, "engine.jsonl, line 1", "JSON")
