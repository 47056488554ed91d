"""Which programs a sweep replays, and what it is called."""

from __future__ import annotations

from pathlib import Path

from harness.load.workload import load_workload
from tests.harness.small import programs
from traces import Program
from traces.formats.native import write_programs


def files(folder: Path, count: int) -> list[str]:
    """A program each."""
    made = []
    for number in range(count):
        path = folder / f"trace-{number}.jsonl"
        write_programs(path, [Program(f"p{number}", programs(1)[0].turns)])
        made.append(str(path))
    return made


def test_many_files_are_counted_and_not_all_named(tmp_path: Path) -> None:
    found = load_workload(files(tmp_path, 5), None, None, "", refuse=True)
    assert found.name == "trace-0.jsonl+trace-1.jsonl+trace-2.jsonl and 2 more"
    assert len(found.programs) == 5


def test_packing_turns_preserves_every_field(tmp_path: Path) -> None:
    found = load_workload(files(tmp_path, 2), None, None, "", refuse=True)
    assert found.packed().as_json() == found.as_json()
    assert found.packed().programs == found.programs
