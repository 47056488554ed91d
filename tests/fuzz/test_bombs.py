"""Files that unpack to a large size, never end, or have hostile names."""

from __future__ import annotations

import gzip
import json
import os
import resource
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from servers.basics.errors import InvalidTrace
from servers.basics.text import has_control
from tests.fuzz.target import bounded
from tests.growth import LINEAR, growth
from tests.sentences import mentions
from traces import Program, Turn, lenient, read_traces, stored, table
from traces.formats.native import program_line
from traces.formats.shared.calls import Call
from traces.formats.shared.sessions import Thread, make_programs
from traces.lenient import Repairs

GOOD = program_line(Program("p", (Turn(10, 2),)))


def refusal(path: Path) -> str:
    with pytest.raises(InvalidTrace) as refused, bounded():
        read_traces(path)
    return str(refused.value)


def test_a_gzip_bomb_is_unpacked_only_up_to_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """10 GiB are packed in 10 MB; a smaller limit keeps the test short."""
    monkeypatch.setattr(lenient, "MAX_BYTES", 1 << 27)
    bomb = tmp_path / "bomb.jsonl.gz"
    bomb.write_bytes(gzip.compress(b"\n" + bytes((1 << 24) - 1), 9) * 640)
    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(InvalidTrace, match=r"/bomb\.jsonl\.gz: larger than 128 MiB decompressed"):
        read_traces(bomb)
    growth_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb
    assert growth_kb < 2 * (lenient.MAX_BYTES >> 10)


LONG = 48 << 20
"""Bytes of a text that is three times too long."""


def _native(id: bytes = b"p", tool: bytes = b"bash") -> bytes:
    turn = b'{"prompt_tokens": 10, "output_tokens": 2, "tools": ["%b"]}' % tool
    return b'{"format": "turnstile-trace-1", "id": "%b", "turns": [%b]}' % (id, turn)


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.json.gz", "a.csv.gz"])
@pytest.mark.parametrize("unit", [b"x", b'\\"'])
def test_a_value_of_many_megabytes_is_refused_while_it_is_unpacked(
    name: str, unit: bytes, tmp_path: Path
) -> None:
    """Reading it whole would take its 48 MiB twice. The second text has quotes that do not end
    it."""
    path, long = tmp_path / name, unit * (LONG // len(unit))
    rows = b"program,prompt_tokens,output_tokens\n%b,10,2\n" % long
    path.write_bytes(gzip.compress(rows if ".csv" in name else _native(id=long), 1))
    del long, rows
    with pytest.raises(InvalidTrace) as refused, bounded(LONG):
        read_traces(path)
    assert mentions(str(refused.value), f"{path}", "more than 16 MiB", "shorten it")


def test_a_packed_file_with_an_id_of_many_megabytes_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.packed"
    with stored.Writer(path) as writer:
        writer.add(Program("p" * LONG, (Turn(10, 2),)))
    with pytest.raises(InvalidTrace, match="more than 16 MiB"), bounded(LONG):
        read_traces(path)


@pytest.mark.parametrize("is_nested", [False, True])
def test_a_text_that_many_rows_of_a_parquet_file_share_is_counted_for_each_of_them(
    is_nested: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """100 times 1 MiB are in the file once."""
    monkeypatch.setattr(table, "MAX_BYTES", 1 << 26)
    text = "x" * (1 << 20)
    rows = {"program": [[text] if is_nested else text] * 100, "prompt_tokens": [10] * 100}
    path = tmp_path / "a.parquet"
    parquet.write_table(pa.table(rows), path, compression="zstd")
    assert path.stat().st_size < 1 << 20
    assert refusal(path) == f"{path}: larger than 64 MiB decompressed; split it"


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.parquet", "a.packed"])
def test_long_names_are_cut_and_different_ones_remain_different(name: str, tmp_path: Path) -> None:
    ids = ["p" * 100_000 + end for end in "ab"]
    path = tmp_path / name
    rows = {"program": ids, "prompt_tokens": [10, 10], "output_tokens": [2, 2], "tool": ids}
    if name == "a.parquet":
        parquet.write_table(pa.table(rows), path)
    elif name == "a.packed":
        with stored.Writer(path) as writer:
            for id in ids:
                writer.add(Program(id, (Turn(10, 2, tools=(id,)),)))
    elif name == "a.csv":
        lines = [",".join(map(str, row)) for row in [list(rows), *zip(*rows.values(), strict=True)]]
        path.write_text("\n".join(lines))
    else:
        path.write_bytes(b"\n".join(_native(id.encode(), id.encode()) for id in ids))
    programs = read_traces(path).programs
    names = [program.id for program in programs] + [p.turns[0].tools[0] for p in programs]
    assert [len(each) for each in names] == [400] * 4
    assert names[0] != names[1]
    assert names[2:] == names[:2]


def test_too_many_values_are_refused_before_they_are_parsed(tmp_path: Path) -> None:
    bomb = tmp_path / "bomb.json.gz"
    bomb.write_bytes(
        gzip.compress(b"[" + (b"[]," * 1000 + b"\n") * (lenient.MAX_VALUES // 2000) + b"[]]", 1)
    )
    assert "may contain more than 20,000,000 values" in refusal(bomb)


@pytest.mark.parametrize("name", ["a.json", "a.jsonl"])
@pytest.mark.parametrize("opening", [b"[", b'{"messages":', b'{"requests":[{"in":'])
def test_deep_nesting_is_refused(name: str, opening: bytes, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(opening * 500_000)
    assert refusal(path).startswith(f"{path}: ") or ", line 1:" in refusal(path)


@pytest.mark.parametrize("depth", range(100, 1100, 50))
def test_nesting_that_json_can_parse_but_we_cannot_traverse_is_refused(
    depth: int, tmp_path: Path
) -> None:
    deep = "[" * depth + "]" * depth
    path = tmp_path / "a.json"
    events = f'[{{"source": "agent", "action": "run", "kind": {deep}, "args": {deep}}}]'
    path.write_text(events)
    assert "\n" not in refusal(path)


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")])
@pytest.mark.parametrize("name", ["a.json", "a.jsonl.gz"])
def test_a_pipe_and_a_device_are_refused_without_blocking(
    make: Callable[[Path], None], name: str, tmp_path: Path
) -> None:
    make(tmp_path / name)
    path = tmp_path / name
    assert mentions(refusal(path), f"{path}", "not a regular file")
    (tmp_path / "good.jsonl").write_bytes(GOOD)
    assert len(read_traces(tmp_path).programs) == 1


def test_a_pipe_among_the_events_of_a_conversation_does_not_block(tmp_path: Path) -> None:
    (tmp_path / "base_state.json").write_text("{}")
    (tmp_path / "events").mkdir()
    os.mkfifo(tmp_path / "events" / "event-1.json")
    assert refusal(tmp_path).startswith(f"{tmp_path}/base_state.json: ")


def test_folders_that_contain_themselves_are_read_once(tmp_path: Path) -> None:
    (tmp_path / "again").symlink_to(tmp_path)
    (tmp_path / "loop.json").symlink_to(tmp_path / "loop.json")
    (tmp_path / "good.jsonl").write_bytes(GOOD)
    loaded = read_traces(tmp_path)
    assert [program.id for program in loaded.programs] == ["p"]


def test_a_file_without_read_permission_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "closed.json"
    path.write_bytes(GOOD)
    path.chmod(0)
    if os.access(path, os.R_OK):
        pytest.skip("root can read every file")
    assert "closed.json: cannot be read (Permission denied)" in refusal(path)


@pytest.mark.parametrize("name", ["a\nb.json", "a\x1b[31m.json", "\u202egnosj.json", "a" * 5000])
def test_control_characters_in_a_file_name_are_escaped(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    if len(name) < 255:
        path.write_bytes(b"{}")
    assert not has_control(refusal(path))


def test_many_files_with_one_program_id_are_numbered_in_linear_time(tmp_path: Path) -> None:
    """Comparing each with all numbers before it would take 50 million steps for 10,000 files."""
    for number in range(1_000):
        (tmp_path / f"{number}.jsonl").write_bytes(GOOD)
    ids = [program.id for program in read_traces(tmp_path).programs]
    assert (len(set(ids)), ids[0], ids[-1]) == (1_000, "p", "p#1000")


def test_a_chain_of_sub_agents_is_read_in_linear_time(tmp_path: Path) -> None:
    """Walking from each of 20,000 to the first would take 200 million steps."""
    path = tmp_path / "chain.jsonl"
    with path.open("wb") as file:
        file.write(GOOD)
        for number in range(20_000):
            parent = f"p{number - 1}" if number else "p"
            child = {"format": "turnstile-trace-1", "id": f"p{number}",
                     "fork": {"program_id": parent, "after_turn": 0},
                     "turns": [{"prompt_tokens": 10, "output_tokens": 2}]}  # fmt: skip
            file.write(json.dumps(child).encode() + b"\n")
    assert len(read_traces(path).programs) == 20_001


def test_very_many_tasks_of_a_sub_agent_are_placed_in_linear_time() -> None:
    """Looking for the call after each of 4,000 launches from the first one on takes 5 s."""

    def placed(tasks: int) -> list[Program]:
        main, agent = Thread("main"), Thread("agent", started_s=5.0)
        for n in range(tasks):
            main.calls.append(Call(100, 20, end_s=10.0 * n + 4))
            agent.calls.append(Call(50, 10, end_s=10.0 * n + 8))
        for call in main.calls:
            assert main.last_call_before((call.end_s or 0.0) + 1) is call
            agent.launch(call, call.end_s, call)
        return make_programs([main, agent], Repairs())

    programs = placed(100)
    assert len(programs) == 101
    assert programs[100].fork is not None
    assert programs[100].fork.after_turn == 99
    assert growth(placed, 250) < LINEAR


def test_a_session_with_very_many_sub_agents_is_read(tmp_path: Path) -> None:
    request = {"t": 0, "in": 64, "out": 1, "hash_ids": [1], "api_time": 1.0, "stop": "end_turn"}
    agents = [
        {"type": "subagent", "t": 5, "duration_ms": 1000, "agent_id": f"a{n}",
         "requests": [request | {"hash_ids": [n]}]}
        for n in range(3_000)
    ]  # fmt: skip
    path = tmp_path / "s.json"
    path.write_text(json.dumps({"id": "s", "block_size": 64, "requests": [request, *agents]}))
    assert len(read_traces(path).programs) == 3_001
