"""Tables of calls: CSV and Parquet with a column map."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet
from typer.testing import CliRunner

from harness.cli.commands.traces import app
from servers.basics.errors import InvalidTrace
from tests.sentences import mentions
from tests.traces.sample import json_lines
from traces import Fork, Provenance, TraceSet, read_traces

MAP = "program=session_id,start_ms=ts,duration_ms=took,prompt_tokens=in,output_tokens=out,tool=t"
CSV = """session_id,ts,took,in,out,t
a,0,2000,100,10,bash
b,500,1000,90,9,
a,5000,1000,150,10,
"""


def read(folder: Path, content: str, columns: str | None = MAP, name: str = "t.csv") -> TraceSet:
    (folder / name).write_text(content)
    return read_traces(folder / name, columns=columns)


def refusal(folder: Path, content: str, columns: str | None = MAP) -> str:
    with pytest.raises(InvalidTrace) as error:
        read(folder, content, columns)
    return str(error.value)


def test_rows_of_a_program_are_its_turns_and_times_give_its_gaps(tmp_path: Path) -> None:
    loaded = read(tmp_path, CSV)
    a, b = loaded.programs
    assert (a.id, b.id, loaded.formats) == ("a", "b", {"t.csv": "csv"})
    # The first call ends at 2 s, and the next one starts at 5 s.
    assert (a.turns[0].tool_gap_s, a.turns[0].gap_provenance) == (3.0, "measured")
    assert a.turns[0].tools == ("bash",)
    assert [turn.kept_tokens for turn in a.turns] == [0, 110]
    assert b.recorded_start_s == 0.5
    (note,) = loaded.repairs
    assert mentions(note.reason, "no column kept_tokens", "(inferred)")


def test_cells_after_the_last_column_are_reported(tmp_path: Path) -> None:
    content = "program,prompt_tokens,output_tokens,kept_tokens\na,100,10,0,,\na,150,10,64,7,8\n"
    loaded = read(tmp_path, content, None)
    assert [turn.kept_tokens for turn in loaded.programs[0].turns] == [0, 64]
    reasons = [note.reason for note in loaded.repairs]
    assert mentions(reasons, "more cells than the header")


def test_columns_that_are_called_after_the_fields_need_no_map(tmp_path: Path) -> None:
    content = "program;prompt_tokens;output_tokens;kept_tokens;gap_ms;gap_provenance\n" \
              "a;100;10;0;1500;measured\na;150;10;64;;\n"  # fmt: skip
    (program,) = read(tmp_path, content, None).programs
    assert (program.turns[0].tool_gap_s, program.turns[0].gap_provenance) == (1.5, "measured")
    assert program.turns[1].kept_tokens == 64


@pytest.mark.parametrize(
    ("columns", "gap_s"),
    [("gap=pause", 1500), ("gap_ms=pause", 1.5), ("gap=p_ms", 1.5), ("gap_us=p_ms", 0.0015)],
)
def test_a_unit_is_a_suffix_of_the_field_or_of_the_column(
    tmp_path: Path, columns: str, gap_s: float
) -> None:
    name = columns.partition("=")[2]
    content = f"program,prompt_tokens,output_tokens,{name}\na,100,10,1500\na,150,10,\n"
    full = f"program=program,prompt_tokens=prompt_tokens,output_tokens=output_tokens,{columns}"
    (program,) = read(tmp_path, content, full).programs
    assert program.turns[0].tool_gap_s == pytest.approx(gap_s, abs=0.001)
    assert program.turns[0].gap_provenance == "unstated"


def test_a_start_can_be_a_date_and_an_end_be_estimated(tmp_path: Path) -> None:
    content = "program,start,prompt_tokens,output_tokens\n" \
              "a,2026-06-01 00:00:00,100,10\na,2026-06-01T00:00:05Z,150,10\n"  # fmt: skip
    (program,) = read(tmp_path, content, None).programs
    # 1.27 + 0.0149 · 10 + 1.47e-5 · 100 = 1.42 s of 5 s.
    assert program.turns[0].tool_gap_s == pytest.approx(3.58, abs=0.001)
    assert program.turns[0].gap_provenance == "inferred"


def test_a_parent_makes_a_sub_agent(tmp_path: Path) -> None:
    content = "program,parent,start,end,prompt_tokens,output_tokens\n" \
              "a,,0,2,100,10\nx,a,3,4,80,10\na,,5,6,150,10\n"  # fmt: skip
    _, child = read(tmp_path, content, None).programs
    assert child.fork == Fork("a", 0, 1.0, 1, Provenance.MEASURED)


def test_rows_without_a_program_are_single_turns(tmp_path: Path) -> None:
    loaded = read(tmp_path, "prompt_tokens,output_tokens\n100,10\n90,9\n", None)
    assert [len(program.turns) for program in loaded.programs] == [1, 1]
    assert mentions(loaded.repairs[0].reason, "without a session")


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ("prompt_tokens=inn,output_tokens=out", "no column inn for prompt_tokens; did you mean in"),
        ("program=session,prompt_tokens=in,output_tokens=out",
         "no column session for program; did you mean session_id?"),
        (None, "no column prompt_tokens; columns are session_id, ts, took, in, out, t; give "
               "--columns prompt_tokens=in"),
        ("promt_tokens=in", "no field is called promt_tokens; did you mean prompt_tokens?"),
        ("zzz=in", "no field is called zzz; fields are program, parent, tool"),
        ("prompt_tokens", "prompt_tokens must be FIELD=COLUMN"),
        ("gap=in,gap_ms=out", "gap is given twice; remove one"),
        (" ", "--columns: is empty"),
    ],
)  # fmt: skip
def test_a_missing_column_or_field_names_the_nearest_one(
    tmp_path: Path, columns: str | None, message: str
) -> None:
    assert message in refusal(tmp_path, CSV, columns)


TIMES = """session_id,ts,startTimeMs,when,text,took,in,out
a,1760000000000,1760000000000,2026-06-01,hello,500,100,10
a,1760000005000,1760000005000,2026-06-02,world,700,150,10
"""
"""Starts in milliseconds whose column does not say so, in one whose name says so, and in texts."""


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ("start=ts", "column ts as start: '1760000000000' is not a time in seconds; "
                     "give --columns start_ms=ts if it is in milliseconds"),
        ("start_us=ts,end=ts", "column ts as end: '1760000000000' is not a time in seconds; "
                               "give --columns end_ms=ts"),
        ("start=startTimeMs", "column startTimeMs as start: '1760000000000' is in milliseconds by "
                              "the column's name; give --columns start_ms=startTimeMs"),
        ("start=text", "column text as start: 'hello' is not a time in seconds; give a column of "
                       "numbers or ISO 8601 times (start_ms=COLUMN if in milliseconds)"),
        ("start=when,duration=text", "column text as duration: 'hello' is not a time in seconds; "
                                     "give a column of numbers (duration_ms=COLUMN"),
        ("gap=when", "column when as gap: '2026-06-01' is not a time in seconds"),
        ("durations_ms=took", "no field is called durations_ms; did you mean duration_ms?"),
        ("starts=ts", "no field is called starts; did you mean start?"),
    ],
)  # fmt: skip
def test_a_column_that_is_no_time_in_its_unit_is_refused(
    tmp_path: Path, columns: str, message: str
) -> None:
    given = f"program=session_id,prompt_tokens=in,output_tokens=out,{columns}"
    assert message in refusal(tmp_path, TIMES, given)


@pytest.mark.parametrize("columns", ["start_ms=startTimeMs", "start_ms=ts,duration_ms=took"])
def test_a_unit_that_is_given_is_used(tmp_path: Path, columns: str) -> None:
    given = f"program=session_id,prompt_tokens=in,output_tokens=out,{columns}"
    (program,) = read(tmp_path, TIMES, given).programs
    assert 3 < program.turns[0].tool_gap_s < 5


def test_a_single_value_that_is_no_time_is_left_out_and_reported(tmp_path: Path) -> None:
    content = CSV.replace("a,5000,1000", "a,5000,unknown")
    loaded = read(tmp_path, content)
    assert loaded.programs[0].turns[0].tool_gap_s == 3.0
    reasons = [note.reason for note in loaded.repairs]
    assert mentions(reasons, "a duration of 'unknown'")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("prompt_tokens,output_tokens\n", "a table without rows"),
        ("prompt_tokens,output_tokens\nmany,1\n", "no row with prompt tokens"),
        ("prompt_tokens,output_tokens\n,1,2,3\n", "no row with prompt tokens"),
        ('prompt_tokens,output_tokens\n"' + "x" * 200_000 + '",1\n', "not a CSV table"),
    ],
)
def test_a_table_without_usable_rows_is_refused(tmp_path: Path, content: str, message: str) -> None:
    assert message in refusal(tmp_path, content, None)


def test_a_table_in_a_folder_is_read_only_with_a_map(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(CSV)
    with pytest.raises(InvalidTrace, match="contains no trace file"):
        read_traces(tmp_path)
    assert len(read_traces(tmp_path, columns=MAP).programs) == 2


def test_the_map_is_part_of_the_hash_of_a_trace(tmp_path: Path) -> None:
    one = read(tmp_path, CSV)
    other = read(tmp_path, CSV, MAP.replace(",tool=t", ""))
    assert one.sha256 != other.sha256


def test_json_lines_can_be_read_as_a_table(tmp_path: Path) -> None:
    lines = json_lines({"s": "a", "in": 100, "out": 10}, {"s": "a", "in": 150, "out": 10})
    (tmp_path / "t.jsonl").write_bytes(lines)
    columns = "program=s,prompt_tokens=in,output_tokens=out"
    (program,) = read_traces(tmp_path, columns=columns).programs
    assert len(program.turns) == 2


def test_a_parquet_table_gives_the_same_programs_as_csv(tmp_path: Path) -> None:
    table = pa.table({
        "session_id": ["a", "b", "a"], "ts": [0, 500, 5000], "took": [2000, 1000, 1000],
        "in": [100, 90, 150], "out": [10, 9, 10], "t": ["bash", None, None],
    })  # fmt: skip
    parquet.write_table(table, tmp_path / "t.parquet")
    loaded = read_traces(tmp_path / "t.parquet", columns=MAP)
    csv = read(tmp_path, CSV)
    assert [(p.id, p.turns) for p in loaded.programs] == [(p.id, p.turns) for p in csv.programs]


def test_parquet_rows_of_a_known_format_need_no_map(tmp_path: Path) -> None:
    rows = [{"timestamp": 1_760_000_000_000_000, "input": "x" * 99, "output": "y",
             "session_id": "s"}]  # fmt: skip
    parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "t.parquet")
    assert read_traces(tmp_path / "t.parquet").formats == {"t.parquet": "lmcache-agent"}


def test_a_broken_parquet_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(InvalidTrace, match="not a Parquet table"):
        read_traces(tmp_path / "t.parquet")


def test_the_commands_take_a_map(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(CSV)
    shown = CliRunner().invoke(app, ["inspect", str(tmp_path / "t.csv"), "--columns", MAP])
    assert shown.exit_code == 0, shown.output
    assert "\ngaps: 1 measured" in shown.stdout
