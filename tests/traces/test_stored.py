"""Stored files of many programs, and reading files in parts."""

from __future__ import annotations

import gzip
import io
import json
import zipfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from harness.cli.commands.traces import app
from servers.basics.errors import InvalidTrace, TraceRejected
from tests.sentences import mentions
from tests.traces.samples import SAMPLES
from traces import Fork, Program, Provenance, SharedPrefix, Turn, packs, read_traces, streaming
from traces.stored import TURN, StoredTurns, Writer, read_stored

PACK = ("convert", "--to", "packed")

PROGRAMS = (
    Program(
        "a",
        (
            Turn(100, 10, 0, ("ls", "cat"), None, 1.5, Provenance.MEASURED),
            Turn(150, 10, 110, (), None, 0.0),
        ),
        SharedPrefix("system", 64),
        recorded_start_s=2.5,
        source="x.jsonl",
    ),
    Program("b", (Turn(80, 5, 0, ("ls", "cat")),), SharedPrefix("system", 64)),
    Program("a/1", (Turn(80, 5),), fork=Fork("a", 0, 0.5, 1, Provenance.INFERRED)),
)


def stored(folder: Path, programs: tuple[Program, ...] = PROGRAMS) -> bytes:
    with Writer(folder / "t.packed") as writer:
        for program in programs:
            writer.add(program)
    return (folder / "t.packed").read_bytes()


def test_programs_are_read_back_as_they_were_stored(tmp_path: Path) -> None:
    stored(tmp_path)
    loaded = read_traces(tmp_path)
    assert loaded.formats == {"t.packed": "packed"}
    assert loaded.programs == PROGRAMS
    assert isinstance(loaded.programs[0].turns, StoredTurns)
    assert loaded.programs[0].turns[-1] == PROGRAMS[0].turns[-1]
    assert loaded.programs[0].turns[:1] == PROGRAMS[0].turns[:1]


def test_a_pack_survives_storage(tmp_path: Path) -> None:
    original = read_traces("swe-bench").programs
    stored(tmp_path, original)
    assert read_traces(tmp_path / "t.packed").programs == original
    assert "swe-bench" in packs()


def test_the_shortest_length_of_a_prefix_is_stored(tmp_path: Path) -> None:
    first, second, _ = PROGRAMS
    longer = Program("c", second.turns, SharedPrefix("system", 70))
    programs = read_stored(stored(tmp_path, (longer, first)))
    assert {program.prefix for program in programs} == {SharedPrefix("system", 64)}


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("prompt", 0, "turn 1 of the file: prompt_tokens is out of range"),
        ("output", -5, "turn 1 of the file: output_tokens is out of range"),
        ("kept", 111, "turn 1 of the file: kept_tokens is out of range"),
        ("gap_s", float("nan"), "turn 1 of the file: tool_gap_s is out of range"),
        ("tools", 99, "turn 1 of the file: tools is out of range"),
        ("provenance", 9, "turn 1 of the file: gap_provenance is out of range"),
        ("prompt", 60, "a prompt is shorter than its prefix"),
    ],
)
def test_an_invalid_turn_is_refused(tmp_path: Path, field: str, value: float, message: str) -> None:
    data = stored(tmp_path)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    turns = np.frombuffer(members["turns"], TURN).copy()
    turns[1]["kept"] = 0
    turns[1][field] = value
    members["turns"] = turns.tobytes()
    changed = io.BytesIO()
    with zipfile.ZipFile(changed, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    with pytest.raises(TraceRejected, match=message):
        read_stored(changed.getvalue())


@given(st.data())
def test_a_damaged_file_is_refused_or_valid(data: st.DataObject) -> None:
    original = DAMAGED
    at = data.draw(st.integers(0, len(original) - 1))
    changed = bytearray(original)
    changed[at] = data.draw(st.integers(0, 255))
    cut = bytes(changed[: data.draw(st.integers(0, len(original)))])
    for content in (bytes(changed), cut):
        try:
            programs = read_stored(content)
        except TraceRejected:
            continue
        assert programs


def _damaged() -> bytes:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        return stored(Path(folder))


DAMAGED = _damaged()


@pytest.mark.parametrize("format", ["azure-copilot", "tracelab"])
@pytest.mark.parametrize("gz", [False, True])
def test_a_file_read_in_parts_has_the_same_turns(
    format: str, gz: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (data,) = SAMPLES[format].files.values()
    lines = data.splitlines(keepends=True)
    if format == "tracelab":  # the rounds of a session must be together
        lines.sort(key=lambda line: json.loads(line)["session_id"])
    data = b"".join(lines)
    path = tmp_path / ("t.jsonl.gz" if gz else "t.jsonl")
    path.write_bytes(gzip.compress(data) if gz else data)
    monkeypatch.setattr(streaming, "PART_BYTES", len(lines[0]) + 1)
    done = streaming.store([path], tmp_path / "out.packed")
    whole = read_traces(path)
    parts = read_traces(tmp_path / "out.packed")
    assert [(p.id, tuple(p.turns)) for p in parts.programs] == [
        (p.id, p.turns) for p in whole.programs
    ]
    assert (done.programs, done.turns) == (2, 3)


def test_a_session_whose_lines_are_not_together_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (data,) = SAMPLES["tracelab"].files.values()  # rounds of a, b, a
    (tmp_path / "t.jsonl").write_bytes(data)
    monkeypatch.setattr(streaming, "PART_BYTES", 1 + max(map(len, data.splitlines())))
    done = streaming.store([tmp_path / "t.jsonl"], tmp_path / "out.packed")
    (note,) = done.repairs
    assert note.file == "t.jsonl"
    assert mentions(note.reason, "a session", "lines are not together")
    assert not done.rejections


def test_files_of_any_format_are_stored_as_they_are_read(tmp_path: Path) -> None:
    for name in ("weka", "claude-code", "atif"):
        for file, data in SAMPLES[name].files.items():
            (tmp_path / "all" / name / file).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "all" / name / file).write_bytes(data)
    streaming.store([tmp_path / "all"], tmp_path / "out.packed")
    whole = read_traces(tmp_path / "all").programs
    assert [(p.id, bare(p.turns)) for p in read_traces(tmp_path / "out.packed").programs] == [
        (p.id, bare(p.turns)) for p in whole
    ]


def bare(turns: Sequence[Turn]) -> tuple[Turn, ...]:
    """Return the turns without what is not stored."""
    return tuple(replace(turn, command=None, prefixes=()) for turn in turns)


def test_files_that_cannot_be_read_are_named_and_the_others_stored(tmp_path: Path) -> None:
    (data,) = SAMPLES["azure-copilot"].files.values()
    (tmp_path / "good.jsonl").write_bytes(data)
    (tmp_path / "cut.jsonl.gz").write_bytes(gzip.compress(data)[:-20])
    (tmp_path / "cut.jsonl.zst").write_bytes(zstandard.compress(data)[:-20])
    (tmp_path / "other.json").write_text('{"some": "thing"}')
    done = streaming.store(sorted(tmp_path.iterdir()), tmp_path / "out.packed")
    assert done.programs == 2
    assert [note.file for note in done.rejections] == [
        "cut.jsonl.gz",
        "cut.jsonl.zst",
        "other.json",
    ]
    out = tmp_path / "again.packed"
    files = [str(path) for path in sorted(tmp_path.glob("*.json*"))]
    ran = CliRunner().invoke(app, [*PACK, *files, "--out", str(out)])
    assert mentions(ran.stderr, "rejected: cut.jsonl.gz", "to its end")
    assert "rejected: other.json: " in ran.stderr
    assert ran.stdout.endswith(": 2 programs, 3 turns, 0 repairs, 3 files rejected\n")


def test_a_file_that_ends_early_is_repaired_if_a_part_of_it_is_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (data,) = SAMPLES["tracelab"].files.values()
    lines = sorted(data.splitlines(keepends=True), key=lambda line: json.loads(line)["session_id"])
    longest = max(map(len, lines))
    monkeypatch.setattr(streaming, "PART_BYTES", longest + 1)
    monkeypatch.setattr(streaming, "MAX_SESSION_BYTES", 3 * longest)
    (tmp_path / "t.jsonl").write_bytes(b"".join([*lines, *lines[-1:] * 10]))
    done = streaming.store([tmp_path / "t.jsonl"], tmp_path / "out.packed")
    assert done.programs == 1
    assert not done.rejections
    (note,) = done.repairs
    assert note.file == "t.jsonl"
    assert mentions(note.reason, "rest is left out", "session is larger than")


def test_turns_whose_shared_prefixes_are_not_stored_are_counted(tmp_path: Path) -> None:
    for name, files in (("none", "atif"), ("shared", "mooncake")):
        (tmp_path / name).mkdir()
        for file, data in SAMPLES[files].files.items():
            (tmp_path / name / file).write_bytes(data)
    turns = [turn for p in read_traces(tmp_path / "shared").programs for turn in p.turns]
    affected = sum(bool(turn.prefixes) for turn in turns)
    assert affected > 1
    out = tmp_path / "o.packed"
    ran = CliRunner().invoke(
        app, ["convert", "--to", "packed", str(tmp_path / "shared"), "--out", str(out)]
    )
    assert mentions(ran.stderr, "differs", "only one prefix per program")
    assert f"is lost ({affected} times)" in ran.stderr
    done = streaming.store([tmp_path / "none"], out)
    assert done.losses.reasons() == []


def test_a_set_without_a_program_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text('{"some": "thing"}')
    with pytest.raises(InvalidTrace, match=r"no program in any file \(t.json: "):
        streaming.store([tmp_path / "t.json"], tmp_path / "o.packed")
    assert [path.name for path in tmp_path.iterdir()] == ["t.json"]


def test_pack_prints_what_it_has_stored(tmp_path: Path) -> None:
    (data,) = SAMPLES["azure-copilot"].files.values()
    (tmp_path / "t.jsonl").write_bytes(data)
    out = tmp_path / "o.packed"
    ran = CliRunner().invoke(
        app, ["convert", "--to", "packed", str(tmp_path / "t.jsonl"), "--out", str(out)]
    )
    assert ran.exit_code == 0, ran.output
    assert ran.stdout == f"{out}: 2 programs, 3 turns, 0 repairs, 0 files rejected\n"
    wrong = CliRunner().invoke(
        app, ["convert", "--to", "packed", str(tmp_path / "t.jsonl"), "--out", "x.jsonl"]
    )
    assert "must end in .packed" in wrong.stderr


def test_a_packed_file_that_is_read_is_not_overwritten(tmp_path: Path) -> None:
    before = stored(tmp_path)
    out = tmp_path / "t.packed"
    for path in (out, tmp_path):
        ran = CliRunner().invoke(app, [*PACK, str(path), "--out", str(out)])
        assert ran.exit_code == 2
        assert f"--out {out}: " in ran.stderr
    assert out.read_bytes() == before


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidTrace, match="no such file"):
        streaming.store([tmp_path / "no.jsonl"], tmp_path / "o.packed")
