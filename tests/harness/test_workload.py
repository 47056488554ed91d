"""The workload of a sweep: its programs and its name."""

from __future__ import annotations

from pathlib import Path

from harness.load.workload import Longest, load_workload
from tests.harness.small import programs
from traces import Program
from traces.formats.native import write_programs

ANY_LENGTH = Longest(None, "")


def files(folder: Path, count: int) -> list[str]:
    """Write trace files of one program each; return their paths."""
    paths = []
    for number in range(count):
        path = folder / f"trace-{number}.jsonl"
        write_programs(path, [Program(f"p{number}", programs(1)[0].turns)])
        paths.append(str(path))
    return paths


def test_a_workload_of_many_files_names_only_the_first_ones(tmp_path: Path) -> None:
    workload = load_workload(files(tmp_path, 5), None, ANY_LENGTH, refuse=True)
    assert workload.name == "trace-0.jsonl+trace-1.jsonl+trace-2.jsonl and 2 more"
    assert len(workload.programs) == 5


def test_packing_turns_preserves_every_field(tmp_path: Path) -> None:
    workload = load_workload(files(tmp_path, 2), None, ANY_LENGTH, refuse=True)
    assert workload.packed().as_json() == workload.as_json()
    assert workload.packed().programs == workload.programs
