"""`bench traces convert --to`."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from harness.cli.commands.traces import app
from harness.cli.commands.traces_convert import _complete_export
from tests.sentences import mentions
from tests.traces.claude_code import session_with_an_inferred_count
from traces import read_traces
from traces.exports.registry import EXPORTS


def convert(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["convert", *map(str, arguments)])


@pytest.mark.parametrize("name", EXPORTS)
def test_a_pack_can_be_written_in_each_format_and_read_again(name: str, tmp_path: Path) -> None:
    out = tmp_path / ("sessions" if name == "weka" else "out.jsonl.gz")
    ran = convert("swe-bench", "--to", name, "--programs", "5", "--out", out)
    assert ran.exit_code == 0, ran.output
    original = read_traces("swe-bench").programs[:5]
    again = read_traces(out).programs
    for count in ("prompt_tokens", "output_tokens"):
        assert sum(getattr(turn, count) for program in again for turn in program.turns) == sum(
            getattr(turn, count) for program in original for turn in program.turns
        )
    assert ("differs: " in ran.stderr) == (name != "native")


def test_what_a_format_cannot_express_is_printed(tmp_path: Path) -> None:
    ran = convert("swe-bench", "--to", "mooncake", "--programs", "1", "--out", tmp_path / "m.jsonl")
    assert mentions(ran.stderr, "differs: mooncake has no tool gaps")
    assert ran.stdout.startswith(f"{tmp_path / 'm.jsonl'}: 1 program, ")


@pytest.mark.parametrize(("name", "block_tokens"), [("mooncake", 512), ("agentic-mooncake", 64)])
def test_the_number_of_prompts_whose_shared_prefix_is_rounded_down_is_printed(
    name: str, block_tokens: int, tmp_path: Path
) -> None:
    ran = convert("swe-bench", "--to", name, "--programs", "5", "--out", tmp_path / "m.jsonl")
    whole_blocks = f"whole blocks of {block_tokens} tokens", "rounded down", "(5 times)"
    assert mentions(ran.stderr, "differs", *whole_blocks)


def test_our_own_files_mark_inferred_token_counts(tmp_path: Path) -> None:
    (tmp_path / "inferred.jsonl").write_bytes(session_with_an_inferred_count())
    for to, name in (("native", "out.jsonl"), ("packed", "out.packed")):
        for path in (tmp_path / "inferred.jsonl", "bfcl"):
            out = tmp_path / name
            ran = convert(path, "--to", to, "--out", out)
            assert ran.exit_code == 0, ran.output
            assert "differs: token counts" not in ran.stderr
            marked = {program.inferred_tokens for program in read_traces(out).programs}
            assert marked == {path != "bfcl"}


def test_a_file_of_another_tool_in_which_inferred_token_counts_are_not_marked_says_so(
    tmp_path: Path,
) -> None:
    (tmp_path / "inferred.jsonl").write_bytes(session_with_an_inferred_count())
    said = "differs: token counts that were inferred are not marked in the file"
    for path in (tmp_path / "inferred.jsonl", "bfcl"):
        ran = convert(path, "--to", "mooncake", "--out", tmp_path / "m.jsonl")
        assert ran.exit_code == 0, ran.output
        assert (said in ran.stderr) == (path != "bfcl")


def test_an_unknown_format_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    ran = convert("/no/such/file", "--to", "agentic", "--out", tmp_path / "x.jsonl")
    assert ran.exit_code == 2
    assert mentions(ran.stderr, "--to agentic", "did you mean agentic-mooncake?")
    assert "Traceback" not in ran.output


def test_a_path_that_the_format_cannot_have_is_refused(tmp_path: Path) -> None:
    for name, out in (("otel", "spans.json"), ("weka", "sessions.json")):
        ran = convert("swe-bench", "--to", name, "--out", tmp_path / out)
        assert ran.exit_code == 2, name
        assert f"--out {tmp_path / out}: " in ran.stderr
    assert mentions(ran.stderr, "sessions.json", ".json", "--to weka", "empty folder")
    assert not list(tmp_path.iterdir())


def test_messages_are_refused_for_formats_without_texts(tmp_path: Path) -> None:
    ran = convert("swe-bench", "--to", "otel", "--messages", "--out", tmp_path / "x.jsonl")
    assert ran.exit_code == 2
    assert mentions(ran.stderr, "--to otel has no texts", "remove --messages")


def test_a_folder_with_files_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "mine.json").write_text("{}")
    ran = convert("swe-bench", "--to", "weka", "--out", tmp_path)
    assert ran.exit_code == 2
    assert mentions(ran.stderr, f"--out {tmp_path}", "folder with files", "--to weka")
    ran = convert("swe-bench", "--to", "weka", "--out", tmp_path / "mine.json")
    assert mentions(ran.stderr, "mine.json: is a file", "--to weka")
    assert [path.name for path in tmp_path.iterdir()] == ["mine.json"]


def test_a_file_that_is_read_is_not_overwritten(tmp_path: Path) -> None:
    recording, link = tmp_path / "self.jsonl.gz", tmp_path / "link.jsonl.gz"
    convert("swe-bench", "--programs", "1", "--out", recording)
    link.symlink_to(recording)
    before = recording.read_bytes()
    for out in (recording, link):
        ran = convert(recording, "--to", "mooncake", "--out", out)
        assert ran.exit_code == 2
        assert mentions(ran.stderr, f"--out {out}", "files to read")
    ran = convert(tmp_path, "--out", recording)
    assert ran.exit_code == 2
    assert f"--out {recording}: exists in {tmp_path}, which is read" in ran.stderr
    assert recording.read_bytes() == before
    assert convert(tmp_path, "--out", tmp_path / "new.jsonl").exit_code == 0


def test_a_folder_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    ran = convert("swe-bench", "--to", "weka", "--programs", "2", "--out", tmp_path / "new")
    assert ran.exit_code == 0
    names = sorted(path.name for path in (tmp_path / "new").iterdir())
    assert names == ["session-00000.json", "session-00001.json"]
    assert [path.name for path in tmp_path.iterdir()] == ["new"]


def test_the_folder_of_a_file_is_made(tmp_path: Path) -> None:
    for to, name in (("native", "t.jsonl"), ("packed", "t.packed")):
        out = tmp_path / to / "new" / name
        ran = convert("bfcl", "--to", to, "--out", out)
        assert ran.exit_code == 0, ran.output
        assert out.exists()


def test_a_file_is_compressed_if_its_name_says_so(tmp_path: Path) -> None:
    out = tmp_path / "m.jsonl.gz"
    convert("swe-bench", "--to", "mooncake", "--programs", "1", "--out", out)
    first = json.loads(gzip.decompress(out.read_bytes()).splitlines()[0])
    assert first["timestamp"] == 0


def test_formats_are_completed() -> None:
    assert _complete_export("a") == ["agentic-mooncake", "aiperf-dag"]
    assert _complete_export("") == [*EXPORTS, "packed"]
