"""Every sample session of a command-line agent is read, or refused with the true reason.

The samples are next to the checkout and are no part of it; without them, the tests are skipped.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from traces import Program, TraceSet, read_traces

SHARED = Path(__file__).parents[2].parent / "shared" / "formats"
TRACELAB = SHARED / "tracelab"
pytestmark = pytest.mark.skipif(not SHARED.is_dir(), reason="no sample sessions here")
NO_COUNTS = "no token_count event with the tokens of a call"
REFUSED = {
    "claude_code": {
        "0a1b2c3d-4e5f-4061-8071-2a3b4c5d6e7f.jsonl": "no answer with token counts",
        "obra__test__medium-conversation.jsonl": "no conversation: the types of its lines are "
        "file-history-snapshot, summary",
    },
    "codex": {
        "agtrace__codex_parent_with_spawns.jsonl": NO_COUNTS,
        "agtrace__codex_subagent_matched.jsonl": NO_COUNTS,
        "agtrace__codex_subagent_matched_2.jsonl": NO_COUNTS,
        "agtrace__rollout-parent-019b88e0.jsonl": NO_COUNTS,
        "agtrace__rollout-subagent-019b88e5.jsonl": NO_COUNTS,
        "codexbar__codex-historical-usage-real-legacy.jsonl": "",  # another kind of file
    },
    "gemini_cli": {},
}


def read(name: str) -> TraceSet:
    return read_traces(SHARED / name, keep_names=True)


def of(loaded: TraceSet, start: str) -> list[Program]:
    return [program for program in loaded.programs if program.id.startswith(start)]


def totals(programs: list[Program]) -> tuple[int, int, int]:
    """Return the numbers of calls, prompt tokens and output tokens."""
    turns = [turn for program in programs for turn in program.turns]
    prompts = sum(turn.prompt_tokens for turn in turns)
    return len(turns), prompts, sum(turn.output_tokens for turn in turns)


@pytest.mark.parametrize("name", REFUSED)
def test_each_file_is_read_or_refused_with_the_reason(name: str) -> None:
    loaded = read(name)
    refused = {note.file: note.reason for note in loaded.rejections}
    assert refused.keys() == REFUSED[name].keys()
    for file, reason in REFUSED[name].items():
        assert reason in refused[file]
    assert set(loaded.formats.values()) == {name.replace("_", "-")}


def test_codex_calls_sum_to_the_last_recorded_total() -> None:
    loaded = read("codex")
    for file in ("hyperweave__codex_session_patches", "agtrace__codex_session"):
        text = (SHARED / "codex" / f"{file}.jsonl").read_text()
        lines = [json.loads(line) for line in text.splitlines()]
        counts = [
            line["payload"]["info"]["total_token_usage"]
            for line in lines
            if line["payload"].get("type") == "token_count" and line["payload"]["info"]
        ]
        _, prompts, outputs = totals(of(loaded, lines[0]["payload"]["id"]))
        assert (prompts, outputs) == (counts[-1]["input_tokens"], counts[-1]["output_tokens"])


def test_a_codex_fork_adds_only_its_own_calls_to_those_of_its_parent() -> None:
    parent, child = of(read("codex"), "parent-session"), of(read("codex"), "child-session")
    # The parent's last total is 13,359,699 input tokens, the child's 15,253,283 with the parent's.
    assert totals(parent)[:2] == (133, 13_359_699)
    assert totals(child)[1] == 15_253_283 - 13_359_699


def raw_records(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a session that are pretty-printed between separators."""
    chunks = re.split(r"(?m)^===== record \d+ =====$", path.read_text())[1:]
    plain = ("\n".join(x for x in c.splitlines() if not x.startswith("#")) for c in chunks)
    return [json.loads(chunk) for chunk in plain]


def rounds() -> list[Mapping[str, Any]]:
    name = "tracelab__example_sessions__sanitized__round_trace.jsonl"
    rows = [json.loads(line) for line in (TRACELAB / name).read_text().splitlines()]
    return [row for row in rows if row["provider"] == "claude"]


def test_a_claude_session_has_the_calls_and_tool_times_that_tracelab_found(tmp_path: Path) -> None:
    records = raw_records(TRACELAB / "tracelab__example_sessions__claude__trace.json")
    (tmp_path / "s.jsonl").write_text("\n".join(map(json.dumps, records)))
    (program,) = read_traces(tmp_path, keep_names=True).programs
    expected = rounds()
    assert [(t.prompt_tokens, t.output_tokens) for t in program.turns] == [
        (row["input_tokens_total"], row["output_tokens"]) for row in expected
    ]
    for turn, row in zip(program.turns[1:], expected[1:], strict=True):
        assert turn.kept_tokens >= row["prefix_tokens"]
    # Calls of one tool: its own time if it was measured, else from its call to its result.
    for turn, row in zip(program.turns, expected, strict=True):
        if len(row["tools"]) == 1:
            (tool,) = row["tools"]
            wall_ms, own_ms = tool["tool_wall_latency_ms"], tool["tool_internal_latency_ms"]
            assert turn.tool_gap_s == (wall_ms if own_ms is None else own_ms) / 1000
