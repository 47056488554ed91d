import tracemalloc
from pathlib import Path

import pytest

from reports.run_folder.lines import PIECE_BYTES
from reports.run_folder.read import load_run
from reports.run_folder.turns import read_columns, read_turns
from servers.basics.errors import InvalidRunFolder
from tests.reports.make_run import seal, turn, write_cell, write_sweep


def test_cells_are_ordered_by_rate_then_as_the_sweep_lists_its_variants(tmp_path: Path) -> None:
    run = write_sweep(tmp_path, ["fcfs", "autellix"], jps=[0.5, 0.1])
    for variant in ("autellix", "fcfs"):
        for jps in (0.5, 0.1):
            write_cell(run, variant, [turn()], jps=jps)
    keys = [cell.key for cell in load_run(run).cells]
    assert keys == [("fcfs", 0.1, 1), ("autellix", 0.1, 1), ("fcfs", 0.5, 1), ("autellix", 0.5, 1)]


def test_unfinished_failed_and_missing_cells_are_listed_with_their_reason(tmp_path: Path) -> None:
    run = write_sweep(tmp_path, ["fcfs", "continuum", "autellix", "infercept"])
    write_cell(run, "fcfs", [turn()])
    write_cell(run, "continuum", [turn(), turn("p1")], done=False)
    failed = write_cell(run, "autellix", [], done=False)
    (failed / "failed.json").write_text('{"error": "no memory"}')
    loaded = load_run(run)
    assert [cell.key[0] for cell in loaded.cells] == ["fcfs"]
    assert loaded.missing == (
        ("autellix_jps0.5_seed1", "failed: no memory"),
        ("continuum_jps0.5_seed1", "not finished: 2 turns recorded"),
        ("infercept_jps0.5_seed1", "not run yet"),
    )


def test_a_cell_that_a_resumed_sweep_set_aside_does_not_count(tmp_path: Path) -> None:
    run = write_sweep(tmp_path, ["fcfs"])
    cell = write_cell(run, "fcfs", [turn()])
    cell.rename(cell.with_name(f"{cell.name}.aside-1"))
    write_cell(run, "fcfs", [turn()])
    assert len(load_run(run).cells) == 1
    assert load_run(run).missing == ()


def test_a_truncated_last_line_is_left_out(tmp_path: Path) -> None:
    run = write_sweep(tmp_path, ["fcfs"])
    cell = write_cell(run, "fcfs", [turn(), turn("p1")])
    with (cell / "turns.jsonl").open("a") as file:
        file.write('{"program_id": "p2", "turn')
    seal(cell)
    assert list(read_turns(load_run(run).cells[0])["program_id"]) == ["p0", "p1"]


def test_an_invalid_line_in_the_middle_is_an_error_with_its_number(tmp_path: Path) -> None:
    run = write_sweep(tmp_path, ["fcfs"])
    cell = write_cell(run, "fcfs", [turn(), turn("p1")])
    lines = (cell / "turns.jsonl").read_text().splitlines()
    (cell / "turns.jsonl").write_text(f"{lines[0]}\nnonsense\n{lines[1]}\n")
    seal(cell)
    with pytest.raises(InvalidRunFolder, match=r"turns\.jsonl, line 2: not .*JSON"):
        read_turns(load_run(run).cells[0])


def test_a_turn_without_a_required_field_is_an_error_with_its_line(tmp_path: Path) -> None:
    run = write_sweep(tmp_path, ["fcfs"])
    lacking = turn("p1")
    del lacking["queue_s"]
    write_cell(run, "fcfs", [turn(), lacking])
    with pytest.raises(InvalidRunFolder, match="line 2: a turn lacks queue_s"):
        read_turns(load_run(run).cells[0])


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRunFolder, match="no such folder"):
        load_run(tmp_path / "nowhere")
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidRunFolder, match="file: is a file; give"):
        load_run(tmp_path / "file")
    with pytest.raises(InvalidRunFolder, match=r"not a run: .* sweep\.json"):
        load_run(tmp_path)
    cell = write_cell(tmp_path, "fcfs", [turn()])
    with pytest.raises(InvalidRunFolder, match="is a cell of a run"):
        load_run(cell)
    (tmp_path / "sweep.json").write_text('{"format": "turnstile-sweep-9"}')
    with pytest.raises(InvalidRunFolder, match="format is 'turnstile-sweep-9'"):
        load_run(tmp_path)
    (tmp_path / "sweep.json").write_text('{"format": ')
    with pytest.raises(InvalidRunFolder, match=r"sweep\.json: not JSON"):
        load_run(tmp_path)


def test_a_file_of_many_pieces_is_read_completely_with_right_line_numbers(
    tmp_path: Path,
) -> None:
    run = write_sweep(tmp_path, ["fcfs"])
    count = 3 * PIECE_BYTES // 400
    cell = write_cell(run, "fcfs", [turn(f"p{n}") for n in range(count)])
    path = cell / "turns.jsonl"
    assert path.stat().st_size > 2 * PIECE_BYTES
    assert list(read_turns(load_run(run).cells[0])["program_id"]) == [f"p{n}" for n in range(count)]
    lines = path.read_bytes().splitlines()
    lines[count - 7] = b"[]"
    path.write_bytes(b"\n".join(lines) + b"\n")
    seal(cell)
    with pytest.raises(
        InvalidRunFolder, match=rf"turns\.jsonl, line {count - 6}: not a JSON object"
    ):
        read_turns(load_run(run).cells[0])


def test_reading_a_turn_takes_little_more_memory_than_its_line(tmp_path: Path) -> None:
    """A number takes a double, and another during checks; a program's texts are stored once."""

    def peak_bytes(name: str, count: int) -> tuple[int, int]:
        run = write_sweep(tmp_path / name, ["fcfs"])
        cell = write_cell(run, "fcfs", [turn("p0", n) for n in range(count)])
        loaded = load_run(run).cells[0]
        tracemalloc.start()
        try:
            read_columns(loaded)
            return tracemalloc.get_traced_memory()[1], (cell / "turns.jsonl").stat().st_size
        finally:
            tracemalloc.stop()

    few, small = peak_bytes("few", 2 * PIECE_BYTES // 400)
    many, large = peak_bytes("many", 8 * PIECE_BYTES // 400)
    assert many - few < 1.5 * (large - small)
