"""What a trace does not say is inferred and reported, and a mistake in a file names its remedy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from harness.cli.commands.traces import app
from servers.basics.errors import InvalidTrace, NoTraceRead
from tests.sentences import each_mentions, mentions
from traces import Program, TraceSet, read_traces
from traces.formats.native import program_line


def program(id: str, *turns: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"format": "turnstile-trace-1", "id": id, "turns": list(turns), **fields}


def turn(prompt: int, output: int = 10, **fields: Any) -> dict[str, Any]:
    return {"prompt_tokens": prompt, "output_tokens": output, **fields}


def read(folder: Path, *lines: object, name: str = "t.jsonl") -> TraceSet:
    path = folder / name
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return read_traces(path)


def kept(program: Program) -> list[int]:
    return [turn.kept_tokens for turn in program.turns]


def test_growing_prompts_without_kept_tokens_are_append_only_and_this_is_reported(
    tmp_path: Path,
) -> None:
    # 150 > 100 + 10, so the first context is repeated; 155 > 150, but not 150 + 10, so the answer
    # was rewritten; 80 is shorter than 155, so the history was rewritten.
    loaded = read(tmp_path, program("a", turn(100), turn(150), turn(155), turn(80)))
    assert kept(loaded.programs[0]) == [0, 110, 150, 0]
    reasons = [note.reason for note in loaded.repairs]
    assert each_mentions(reasons, "a prompt that grows", "a prompt that does not grow")
    assert reasons[0].endswith("(2 times)")


def test_an_explicit_zero_stays_zero_in_the_whole_file(tmp_path: Path) -> None:
    grown = [turn(100), turn(150)]
    loaded = read(tmp_path, program("a", *grown), program("b", turn(9), turn(50, kept_tokens=0)))
    assert [kept(program) for program in loaded.programs] == [[0, 0], [0, 0]]
    assert loaded.repairs == ()


def test_programs_without_kept_tokens_are_written_with_explicit_zeros(tmp_path: Path) -> None:
    (original,) = read(tmp_path, program("a", turn(100), turn(150, kept_tokens=0))).programs
    (tmp_path / "again.jsonl").write_bytes(program_line(original))
    again = read_traces(tmp_path / "again.jsonl")
    assert again.programs == (original,)
    assert again.repairs == ()


def test_prompts_with_prefixes_do_not_repeat_the_previous_prompt(tmp_path: Path) -> None:
    path = [{"id": "p", "tokens": 50}]
    loaded = read(tmp_path, program("a", turn(100, prefixes=path), turn(150, prefixes=path)))
    assert kept(loaded.programs[0]) == [0, 0]
    assert mentions(loaded.repairs[0].reason, "grows and has prefixes")


def test_a_gap_that_does_not_say_what_it_is_is_unstated(tmp_path: Path) -> None:
    fork = {"program_id": "a", "after_turn": 0, "delay_s": 1.0}
    parent = program("a", turn(9, tool_gap_s=1.5), turn(30, gap_provenance="measured"), turn(60))
    loaded = read(tmp_path, parent, program("b", turn(9), fork=fork))
    turns = loaded.programs[0].turns
    assert [turn.gap_provenance for turn in turns] == ["unstated", "measured", "unstated"]
    child = loaded.programs[1].fork
    assert child is not None
    assert child.delay_provenance == "unstated"


def test_turns_of_a_run_without_provenance_are_unstated(tmp_path: Path) -> None:
    line = {"program_id": "a", "job_id": "a", "prompt_tokens": 9, "output_tokens": 1}
    lines = [line | {"turn": n, "scheduled_at_s": n, "sent_at_s": n, "gap_s": 1} for n in (0, 1)]
    (found,) = read(tmp_path, *lines, name="turns.jsonl").programs
    assert found.turns[0].gap_provenance == "unstated"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (program("a", turn(9, tool_gap=1)), "turns.0.tool_gap is 1: not a field of this format; "
         "did you mean tool_gap_s?"),
        (program("a", turn(9, delay_ms=5)), "did you mean tool_gap_s in seconds?"),
        (program("a", {"promt_tokens": 9, "output_tokens": 1}), "did you mean prompt_tokens?"),
        (program("a", {"input_length": 9, "output_length": 1}),
         "did you mean prompt_tokens?; turns.0.output_length is 1: not a field of this format; "
         "did you mean output_tokens?"),
        (program("a", turn(9, tool="ls")), "did you mean tools?"),
        (program("a", turn(9), session_id="x"), "did you mean id?"),
        (program("a", turn(9), fork={"parent": "x"}), "did you mean program_id?"),
        (program("a", turn(9, zzz=1)), "turns.0.zzz is 1: not a field of this format; remove it"),
        ({"id": "a", "turns": [turn(9, tool_gap=1)]},
         'format: missing; add "format": "turnstile-trace-1"; turns.0.tool_gap is 1: not a field '
         "of this format; did you mean tool_gap_s?"),
    ],
)  # fmt: skip
def test_a_misspelt_or_foreign_field_names_the_right_one(
    tmp_path: Path, line: object, message: str
) -> None:
    with pytest.raises(InvalidTrace) as error:
        read(tmp_path, line)
    assert str(error.value).endswith(message)


def test_our_format_is_recognised_if_another_field_comes_first(tmp_path: Path) -> None:
    line = {"id": "a", "turns": [turn(9)], "format": "turnstile-trace-1"}
    assert read(tmp_path, line, name="t.json").programs[0].id == "a"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({"id": "a", "turns": [turn(9)]}, "looks like turnstile (has id, turns.prompt_tokens, "
         "turns.output_tokens), but lacks format"),
        ({"parentUuid": None, "sessionId": "s", "type": "user", "uuid": "u", "message": {}},
         "no conversation: the types of its lines are user"),
        ({"id": "s", "block_size": 64},
         "looks like weka (has id, block_size), but lacks requests.in, requests.out"),
        ({"conversations": [{"from": "human", "value": "hi"}]},
         "looks like ShareGPT conversations (has conversations.from, conversations.value), which "
         "have neither token counts nor times"),
        ({"group": 0, "stream": 1, "prompt_len": 9, "out_lens": [5], "obs_lens": [2]},
         "looks like rollouts of reinforcement learning (has group, stream, prompt_len, out_lens, "
         "obs_lens), which have lengths, but neither the times nor the tools of the calls between "
         "them"),
        ({"metadata": {"session_num": 0, "request_start_ns": 5}, "metrics": {}, "error": None},
         "looks like an export of AIPerf's results (has metadata.session_num, "
         "metadata.request_start_ns), which has what was measured, not the trace; give the trace "
         "that AIPerf replayed"),
        ({"event": "action", "run_id": "r", "session_id": "s", "step": 1, "agent_cost": 0.1},
         "looks like a recording of Exgentic (has event, run_id, session_id, step), which has "
         "neither token counts nor times, only the steps; give the OpenTelemetry traces of the "
         "same run"),
        ({"program": "a", "turn": 0, "sent_at_s": 1, "prompt_tokens": 5},
         "looks like turns.jsonl (has turn, sent_at_s, prompt_tokens), but lacks program_id (did "
         "you mean that by program?)"),
        ({"a": 1}, "unknown format (an object with a); known are turnstile"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("name", ["t.json", "t.jsonl"])
def test_an_unknown_file_is_named_after_what_its_keys_look_like(
    tmp_path: Path, name: str, line: dict[str, Any], message: str
) -> None:
    if name == "t.jsonl" and "id" in line:
        pytest.skip("a line of ours is described by our own format")
    with pytest.raises(InvalidTrace) as error:
        read(tmp_path, line, name=name)
    assert message in str(error.value)


def test_the_command_that_a_message_names_lists_the_reason_of_each_file(tmp_path: Path) -> None:
    for name in ("a.json", "b.json", "c.json"):
        (tmp_path / name).write_text(json.dumps({name[0]: 1}))
    with pytest.raises(NoTraceRead) as error:
        read_traces(tmp_path)
    command = f"bench traces inspect {tmp_path}"
    assert str(error.value).endswith(f"(and 2 more files; {command} shows the reason of each)")
    shown = CliRunner().invoke(app, ["inspect", str(tmp_path)])
    assert shown.exit_code == 2
    *rejected, last = shown.stderr.splitlines()
    assert mentions(last, "none of the 3 files")
    assert [line.partition(" (")[2].partition(")")[0] for line in rejected] == [
        "an object with a", "an object with b", "an object with c",
    ]  # fmt: skip
    as_json = json.loads(CliRunner().invoke(app, ["inspect", str(tmp_path), "--json"]).stdout)
    assert [note["file"] for note in as_json["rejections"]] == ["a.json", "b.json", "c.json"]
