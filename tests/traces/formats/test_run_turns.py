"""Traces from `turns.jsonl` of a stream of jobs, which ends before its last jobs have finished."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from servers.basics.errors import InvalidTrace
from tests.traces.sample import Sample, json_lines
from traces import Provenance, TraceSet, read_traces


def sample() -> Sample:
    def turn(program: str, number: int, at_s: float, **fields: Any) -> dict[str, Any]:
        return {
            "program_id": program, "turn": number, "job_id": program,
            "scheduled_at_s": at_s, "sent_at_s": at_s,
            "prompt_tokens": 100 + 50 * number, "output_tokens": 20,
            "kept_tokens": 120 * (number > 0), "tools": ["ls"], "error": None, **fields,
        }  # fmt: skip

    system = {"id": "system:1", "tokens": 64}
    lines = json_lines(
        turn("a", 0, 0.0, system=system),
        turn("b", 0, 1.0, system=system),
        turn("a", 1, 3.0, gap_s=1.5, gap_provenance="measured"),
    )
    return Sample({"turns.jsonl": lines}, (Provenance.MEASURED,))


SAMPLE = sample()


LEFT_OUT = "a turn of a job that had not finished, or of a later one: left out"


def read(folder: Path, turns: Sequence[tuple[int, str, int, int]]) -> TraceSet:
    """Read a trace of turns: job, program, turn, and the number of turns of the job."""
    lines = [
        {
            "program_id": program, "turn": turn, "job_id": f"job-{job}", "job_index": job,
            "job_turns": count, "scheduled_at_s": at, "sent_at_s": at, "finished_at_s": at + 1,
            "prompt_tokens": 100, "output_tokens": 10,
        }
        for at, (job, program, turn, count) in enumerate(turns)
    ]  # fmt: skip
    path = folder / "turns.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return read_traces(path)


def test_jobs_from_the_first_unfinished_one_on_are_left_out(tmp_path: Path) -> None:
    """Job 1 lacks its second turn. Job 2 has finished, because it is short."""
    found = read(
        tmp_path,
        [(0, "job-0", 0, 2), (1, "job-1", 0, 2), (2, "job-2", 0, 1), (0, "job-0", 1, 2)],
    )
    assert [(program.id, len(program.turns)) for program in found.programs] == [("job-0", 2)]
    assert [note.reason for note in found.repairs] == [f"{LEFT_OUT} (2 times)"]


def test_a_job_of_which_no_turn_has_ended_is_unfinished(tmp_path: Path) -> None:
    found = read(tmp_path, [(0, "job-0", 0, 1), (2, "job-2", 0, 1)])
    assert [program.id for program in found.programs] == ["job-0"]


def test_a_job_has_finished_if_the_turns_of_its_sub_agents_have(tmp_path: Path) -> None:
    whole = [(0, "job-0", 0, 2), (0, "job-0/agent", 0, 2)]
    found = read(tmp_path, [*whole, (1, "job-1", 0, 2)])
    assert [program.id for program in found.programs] == ["job-0", "job-0/agent"]


def test_a_trace_of_unfinished_jobs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidTrace, match="no job has finished"):
        read(tmp_path, [(0, "job-0", 0, 2)])
