"""Reading files, folders and packs of any format."""

from __future__ import annotations

import copy
import gzip
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from servers.basics.errors import InvalidTrace
from tests.sentences import mentions
from traces import Program, SharedPrefix, Turn, read_traces
from traces.formats.native import program_line

WEKA = {
    "id": "s", "block_size": 64, "hash_id_scope": "local",
    "requests": [
        {"t": 0, "type": "n", "in": 150, "out": 9, "hash_ids": [1, 2], "api_time": 2.0,
         "stop": "tool_use", "input_types": ["text"]},
        {"t": 9, "type": "subagent", "agent_id": "a", "duration_ms": 5000, "requests": [
            {"t": 0, "type": "n", "in": 100, "out": 9, "hash_ids": [7], "api_time": 2.0}]},
        {"t": 12, "type": "n", "in": 300, "out": 9, "hash_ids": [1, 2, 3, 4], "api_time": 2.0},
    ],
}  # fmt: skip


def mini(id: str, created: int, system: str = "be brief") -> dict[str, Any]:
    usage = {"prompt_tokens": 100, "completion_tokens": 20}
    response = {"created": created, "usage": usage}
    return {
        "trajectory_format": "mini-swe-agent-1",
        "instance_id": id,
        "messages": [
            {"role": "system", "content": system},
            {"role": "user", "content": "fix it " * created.__str__().count("1")},
            {"role": "assistant", "content": "```bash\nls\n```", "extra": {"response": response}},
        ],
    }


OPENHANDS = {
    "base_state": {"stats": {"usage_to_metrics": {"agent": {"token_usages": [
        {"response_id": "a", "prompt_tokens": 100, "completion_tokens": 20},
        {"response_id": "b", "prompt_tokens": 200, "completion_tokens": 20},
        {"response_id": "k", "prompt_tokens": 90, "completion_tokens": 20},
    ]}}}},
    "events": [
        {"kind": "MessageEvent", "source": "user", "timestamp": "2026-01-01T00:00:00",
         "llm_message": {"content": [{"text": "fix it"}]}},
        {"kind": "ActionEvent", "source": "agent", "timestamp": "2026-01-01T00:00:02",
         "llm_response_id": "a", "tool_name": "terminal", "action": {"command": "ls"}},
        {"kind": "ObservationEvent", "timestamp": "2026-01-01T00:00:03",
         "observation": {"content": [{"text": "x"}]}},
        {"kind": "Condensation", "timestamp": "2026-01-01T00:00:04", "llm_response_id": "k"},
        {"source": "agent", "action": "run", "timestamp": "2026-01-01T00:00:09Z", "id": 7,
         "args": {"command": "pwd"}, "tool_call_metadata": {"function_name": "execute_bash",
         "model_response": {"id": "b", "usage": {"prompt_tokens": 200, "completion_tokens": 20}}}},
    ],
}  # fmt: skip


def put(folder: Path, **documents: Any) -> None:
    for name, document in documents.items():
        (folder / f"{name}.json").write_text(json.dumps(document))


def test_a_folder_can_mix_formats_and_is_read_in_order_of_names(tmp_path: Path) -> None:
    put(tmp_path, c=WEKA, b=mini("m", 1_763_511_859))
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(program_line(Program("n", (Turn(9, 1),)))))
    frames = (zstandard.compress(program_line(Program(n, (Turn(9, 1),)))) for n in ("y", "z"))
    (tmp_path / "d.jsonl.zst").write_bytes(b"".join(frames))
    (tmp_path / "README.md").write_text("not a trace")
    loaded = read_traces(tmp_path)
    assert [p.id for p in loaded.programs] == ["n", "m", "s", "s/a", "y", "z"]
    assert loaded.formats == {"a.jsonl.gz": "turnstile", "b.json": "mini-swe-agent",
                              "c.json": "weka", "d.jsonl.zst": "turnstile"}  # fmt: skip
    assert loaded.rejections == ()
    assert loaded == read_traces([tmp_path])


def test_a_pack_is_read_by_name() -> None:
    assert len(read_traces("swe-bench").programs) == 100


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "empty file"),
        (b" \n", "empty file"),
        (b"{oops", "not JSON"),
        (b"A note.", "; files of traces are JSON, CSV or Parquet"),
        (b"\xff\xfe\x00", "not text in UTF-8"),
        (b"[" * 100_000, "nested too deeply"),
        (b"[1, 2]", "unknown format (no object)"),
        (b'{"a": 1}', "unknown format (an object with a)"),
        (b'{"messages": 3}', "unknown format (an object with messages)"),
        (b'{"info": {}, "messages": 3}', "no LLM call"),
        (b'{"block_size": 64, "requests": []}', "no request with prompt tokens"),
        (b'{"format": "turnstile-trace-2", "id": "x"}', "format is 'turnstile-trace-2'"),
    ],
)
def test_an_invalid_file_among_valid_ones_is_rejected_with_the_reason(
    tmp_path: Path, content: bytes, reason: str
) -> None:
    put(tmp_path, good=WEKA)
    (tmp_path / "bad.json").write_bytes(content)
    loaded = read_traces(tmp_path)
    assert [p.id for p in loaded.programs] == ["s", "s/a"]
    (rejection,) = loaded.rejections
    assert rejection.file == "bad.json"
    assert reason in rejection.reason
    (tmp_path / "good.json").unlink()
    with pytest.raises(InvalidTrace, match=f"^{re.escape(str(tmp_path))}/bad\\.json: "):
        read_traces(tmp_path)


def test_the_rejection_of_one_of_two_files_with_the_same_name_gives_its_path(
    tmp_path: Path,
) -> None:
    for folder, content in (("a", program_line(Program("n", (Turn(9, 1),)))), ("b", b"{oops")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "x.jsonl").write_bytes(content)
    loaded = read_traces([tmp_path / "a/x.jsonl", tmp_path / "b/x.jsonl"])
    assert [note.file for note in loaded.rejections] == [str(tmp_path / "b/x.jsonl")]


@pytest.mark.parametrize(
    ("compress", "suffix", "kind"),
    [(gzip.compress, ".gz", "gzip"), (zstandard.compress, ".zst", "Zstandard")],
)
def test_a_compressed_file_that_is_truncated_or_of_another_format_is_rejected(
    compress: Callable[[bytes], bytes], suffix: str, kind: str, tmp_path: Path
) -> None:
    packed = compress(program_line(Program("n", (Turn(9, 1),) * 1)))
    for content in (packed[: len(packed) // 2], packed[:-1], b"no such file"):
        (tmp_path / f"half.jsonl{suffix}").write_bytes(content)
        with pytest.raises(InvalidTrace, match=f"not a complete {kind} file"):
            read_traces(tmp_path)


def test_a_duplicate_program_id_gets_a_number_and_so_do_its_sub_agents(tmp_path: Path) -> None:
    put(tmp_path, a=WEKA, b=WEKA)
    loaded = read_traces(tmp_path)
    assert [p.id for p in loaded.programs] == ["s", "s/a", "s#2", "s/a#2"]
    assert loaded.programs[3].fork is not None
    assert loaded.programs[3].fork.program_id == "s#2"
    reasons = [note.reason for note in loaded.repairs if note.file == "b.json"]
    assert mentions(reasons, "program id s", "renamed to s#2")


def test_recorded_starts_count_from_the_earliest(tmp_path: Path) -> None:
    put(tmp_path, a=mini("late", 1_763_511_900), b=mini("early", 1_763_511_859))
    starts = {p.id: p.recorded_start_s for p in read_traces(tmp_path).programs}
    assert starts == {"late": 41.0, "early": 0.0}


def test_files_with_the_same_system_prompt_get_the_same_prefix(tmp_path: Path) -> None:
    put(tmp_path, a=mini("x", 1_763_511_111), b=mini("y", 1_763_500_000), c=WEKA)
    prefixes = [p.prefix for p in read_traces(tmp_path).programs[:2]]
    assert isinstance(prefixes[0], SharedPrefix)
    assert prefixes[0] == prefixes[1]


@pytest.mark.parametrize("path", ["no-such-pack", "/no/such/file"])
def test_a_missing_path_is_refused_with_the_names_of_the_packs(path: str) -> None:
    with pytest.raises(InvalidTrace, match="packs are bfcl, claude-code"):
        read_traces(path)


def test_a_folder_without_traces_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidTrace, match="contains no trace file"):
        read_traces(tmp_path)


BAD: st.SearchStrategy[Any] = st.sampled_from([
    None, -1, 0, 1e300, float("nan"), float("inf"), "x", "", "12", [], {}, True, [[[]]], 10**400,
    {"a": 1}, "\ud800", [None], 3.7, "subagent", "user", 2**70, 1e18, 1_763_511_859,
])  # fmt: skip


def positions(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    keys = value if isinstance(value, dict) else range(len(value)) if type(value) is list else ()
    return [p for key in keys for p in ((*path, key), *positions(value[key], (*path, key)))]


def corrupt(document: Any, changes: list[tuple[int, Any, bool]]) -> None:
    all_positions = positions(document)
    for number, bad, remove in changes:
        *path, last = all_positions[number % len(all_positions)]
        container = document
        try:
            for key in path:
                container = container[key]
            if remove:
                del container[last]
            else:
                container[last] = copy.deepcopy(bad)
        except (KeyError, IndexError, TypeError):
            continue  # an earlier change removed this position


@given(
    st.sampled_from([WEKA, mini("m", 1_763_511_859), OPENHANDS]),
    st.lists(st.tuples(st.integers(0, 10_000), BAD, st.booleans()), min_size=1, max_size=6),
)
def test_corrupted_files_give_valid_programs_or_an_error(
    tmp_path: Path, original: dict[str, Any], changes: list[tuple[int, Any, bool]]
) -> None:
    document = json.loads(json.dumps(original))
    corrupt(document, changes)
    file = tmp_path / "t.json"
    file.write_text(json.dumps(document))
    try:
        loaded = read_traces(file)
    except InvalidTrace:
        with pytest.raises(InvalidTrace, match=r"/t\.json: [^\n]+\Z"):
            read_traces(file)
        return
    again = tmp_path / "again.jsonl"
    again.write_bytes(b"".join(map(program_line, loaded.programs)))
    assert read_traces(again).programs == loaded.programs
