"""The workload of a sweep: its programs and its name."""

from __future__ import annotations

from pathlib import Path

from harness.load.settings import Load
from harness.load.workload import Longest, Workload, count, load_workload
from tests.harness.small import programs
from tests.sentences import mentions
from traces import Fork, Program, Turn
from traces.formats.native import write_programs

ANY_LENGTH = Longest(None, "")


def files(folder: Path, count: int) -> tuple[str, ...]:
    """Write trace files of one program each; return their paths."""
    paths = []
    for number in range(count):
        path = folder / f"trace-{number}.jsonl"
        write_programs(path, [Program(f"p{number}", programs(1)[0].turns)])
        paths.append(str(path))
    return tuple(paths)


def test_a_workload_of_many_files_names_only_the_first_ones(tmp_path: Path) -> None:
    workload = load_workload(Load(traces=files(tmp_path, 5)), ANY_LENGTH)
    assert workload.name == "trace-0.jsonl+trace-1.jsonl+trace-2.jsonl and 2 more"
    assert len(workload.programs) == 5


def test_packing_turns_preserves_every_field(tmp_path: Path) -> None:
    workload = load_workload(Load(traces=files(tmp_path, 2)), ANY_LENGTH)
    assert workload.packed().record() == workload.record()
    assert workload.packed().programs == workload.programs


def test_means_are_those_of_jobs_their_later_turns_and_their_tool_calls() -> None:
    job = Program("a", (
        Turn(100, 10, 0, ("ls",), tool_gap_s=3.0),  # the next turn adds 150 - 110 = 40 tokens
        Turn(150, 10, 110, (), tool_gap_s=99.0),  # a pause; the next turn adds 260 - 160 = 100
        Turn(260, 10, 160, ("ls",), tool_gap_s=7.0),  # the last gap does not count
    ))  # fmt: skip
    short = Program("b", (Turn(50, 5),))
    agent = Program("a/x", (Turn(9, 9, tool_gap_s=8.0), Turn(9000, 9)), fork=Fork("a", 0))
    workload = Workload("w", (job, short, agent), "0" * 64, ())
    assert count(workload.programs).means == {
        "turns": 2, "new_tokens_per_later_turn": 70, "tool_gap_s": 3,
        "pause_share": 0.9706,  # 99 of 102 s
    }  # fmt: skip
    assert workload.record().means == count(workload.programs).means


def test_a_workload_of_one_turn_per_job_has_no_means_of_later_turns() -> None:
    workload = Workload("w", (Program("b", (Turn(50, 5),)),), "0" * 64, ())
    assert count(workload.programs).means == {"turns": 1}


def test_only_a_pack_says_what_it_is(tmp_path: Path) -> None:
    pack = load_workload(Load(traces=("swe-bench-sum",), programs=3), ANY_LENGTH)
    assert mentions(pack.about or "", "Table 2 of Continuum v3 (SWE-Bench)")
    assert load_workload(Load(traces=files(tmp_path, 1)), ANY_LENGTH).about is None
    both = load_workload(Load(traces=("swe-bench", "bfcl"), programs=3), ANY_LENGTH)
    assert both.about is None
