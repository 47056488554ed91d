"""`bench traces anonymize` and `check`: what is removed, and what remains."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.sentences import mentions
from tests.traces.test_traces_cli import bench
from traces import read_traces
from traces.anonymize import anonymized, findings
from traces.formats.native import write_programs
from traces.program import Fork, Message, Program, Provenance, SharedPrefix, Turn
from traces.stored import Writer

JOB = Program(
    id="fix-payroll-of-jane",
    turns=(
        Turn(
            900,
            40,
            tools=("cd", "./deploy-payroll"),
            command="cd /home/jane && ./deploy-payroll",
            tool_gap_s=2.5,
            gap_provenance=Provenance.INFERRED,
        ),
        Turn(1000, 50, kept_tokens=940, tools=("mcp__payroll__raise", "./deploy-payroll")),
        Turn(1200, 60, kept_tokens=1050),
    ),
    prefix=SharedPrefix("system:payroll", 300),
    recorded_start_s=0.0,
    source="/home/jane/session.json",
    messages=(Message("user", "raise Jane's salary"),),
    prompt_messages=(1, 1, 1),
)
SUB_AGENT = Program(
    id="fix-payroll-of-jane/explore",
    turns=(Turn(500, 20), Turn(700, 30, kept_tokens=520)),
    fork=Fork("fix-payroll-of-jane", 0, 1.5, 1),
)
SECRETS = ("jane", "Jane", "payroll")


@pytest.fixture
def private(tmp_path: Path) -> Path:
    path = tmp_path / "private.jsonl"
    # A reader may give the sub-agent before its parent.
    write_programs(path, [SUB_AGENT, JOB])
    return path


def test_lengths_times_known_tools_and_structure_remain() -> None:
    sub_agent, job = anonymized([SUB_AGENT, JOB])
    assert [p.id for p in (job, sub_agent)] == ["p1", "p1/1"]
    assert sub_agent.fork == Fork("p1", 0, 1.5, 1)
    assert job.prefix == SharedPrefix("prefix-1", 300)
    assert [turn.tools for turn in job.turns] == [("cd", "tool-1"), ("tool-2", "tool-1"), ()]
    assert job.recorded_start_s == 0.0
    for old, new in ((JOB, job), (SUB_AGENT, sub_agent)):
        same = [replace(turn, tools=(), command=None) for turn in old.turns]
        assert [replace(turn, tools=()) for turn in new.turns] == same


def test_prefixes_of_turns_are_renamed_alike() -> None:
    path = (SharedPrefix("jane:0", 64), SharedPrefix("jane:1", 128))
    programs = [Program(id, (Turn(200, 10, prefixes=path),)) for id in ("a", "b")]
    expected = (SharedPrefix("prefix-1", 64), SharedPrefix("prefix-2", 128))
    assert [p.turns[0].prefixes for p in anonymized(programs)] == [expected, expected]


def test_a_file_of_anonymize_names_nothing_private_and_passes_check(
    private: Path, tmp_path: Path
) -> None:
    out = tmp_path / "shared.jsonl"
    made = bench("anonymize", private, "--out", out)
    assert made.exit_code == 0, made.output
    assert "2 programs, 0 files rejected" in made.stdout
    assert not [secret for secret in SECRETS if secret in out.read_text()]
    checked = bench("anonymize", "--check", out)
    assert checked.exit_code == 0, checked.output
    assert mentions(checked.stdout, "shared.jsonl", "lengths, times and well-known names only")
    assert "       1  well-known tools\n" in checked.stdout
    assert len(read_traces(out).programs) == 2


def test_a_recording_is_not_overwritten_by_its_anonymized_copy(private: Path) -> None:
    before = private.read_bytes()
    refused = bench("anonymize", private, "--out", private)
    assert refused.exit_code == 2
    assert mentions(refused.stderr, f"--out {private}", "files to read")
    assert private.read_bytes() == before


def test_check_counts_what_may_identify(private: Path) -> None:
    checked = bench("anonymize", "--check", private, "--json")
    assert checked.exit_code == 1
    found = json.loads(checked.stdout)
    assert not found["shareable"]
    assert {f["content"]: f["number"] for f in found["contents"] if f["identifies"]} == {
        "messages of a program": 1,
        "commands": 1,
        "names of programs": 2,
        "names of shared prefixes": 1,
        "names of sources": 1,
        "tools that are not well known": 2,
    }


def test_a_date_is_found() -> None:
    dated = replace(anonymized([JOB])[0], recorded_start_s=1.7e9)
    assert [f.content for f in findings([dated]) if f.identifies and f.number] == ["dates"]


def test_a_recording_of_another_format_is_not_shareable(tmp_path: Path) -> None:
    request = {"t": 0, "in": 90, "out": 3, "hash_ids": [1]}
    (tmp_path / "a.json").write_text(json.dumps({"id": "s", "requests": [request]}))
    checked = bench("anonymize", "--check", tmp_path / "a.json")
    assert checked.exit_code == 1
    assert mentions(checked.stdout, "format weka", "texts, commands and paths")
    assert "bench traces anonymize a.json --out FILE" in checked.stdout


def test_what_is_no_trace_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("{}")
    checked = bench("anonymize", "--check", tmp_path / "a.json")
    assert checked.exit_code == 2
    assert mentions(checked.stderr, "a.json: not a trace", "bench traces inspect")


def test_a_stored_set_is_checked_too(tmp_path: Path) -> None:
    path = tmp_path / "set.packed"
    with Writer(path) as writer:
        for program in anonymized([JOB]):
            writer.add(program)
    checked = bench("anonymize", "--check", path, "--json")
    assert json.loads(checked.stdout) == {
        "format": "packed", "shareable": True,
        "contents": [
            {"content": "well-known tools", "number": 1, "identifies": False},
            {"content": "starts in seconds after the first", "number": 1, "identifies": False},
        ],
    }  # fmt: skip


def test_a_folder_in_place_of_a_file_is_refused(tmp_path: Path) -> None:
    refused = bench("anonymize", "--check", tmp_path)
    assert refused.exit_code == 2
    assert f"{tmp_path.name}: is a folder; give " in refused.stderr
