"""Fields that no reader uses are counted, but not what tools and users write."""

from __future__ import annotations

from pathlib import Path

from tests.traces.formats import test_claude_code, test_codex
from tests.traces.sample import json_lines
from traces import read_traces
from traces.formats import claude_code, codex
from traces.watch import unread_fields


def test_a_field_and_a_kind_of_record_that_are_new_are_counted() -> None:
    known = test_codex.meta("a")
    new = test_codex.line("event_msg", 2, type="token_budget", budget=4, turn_aborted=1)
    found = unread_fields(json_lines(known, new, new), codex)
    assert found["type=token_budget"] == found["payload.budget"] == 2
    assert not {name for name in found if "timestamp" in name or "payload.id" in name}


def test_fields_that_a_reader_uses_are_not_counted() -> None:
    lines = test_claude_code.ASKED, test_claude_code.CALLED, test_claude_code.ANSWERED
    found = unread_fields(json_lines(*lines), claude_code)
    used = {"uuid", "sessionId", "usage.input_tokens", "message.content", "content.tool_use_id"}
    assert used.isdisjoint(found)


def test_words_of_messages_do_not_count_as_used() -> None:
    lines = json_lines(test_codex.meta("a", history=1, prompt=2))
    assert {"payload.history", "payload.prompt"} <= unread_fields(lines, codex).keys()


def test_arguments_of_tools_and_keys_that_are_no_names_are_not_counted() -> None:
    call = {"type": "tool_use", "id": "t", "name": "Bash", "input": {"my_secret_key": 1}}
    line = {"type": "assistant", "message": {"content": [call]}, "/home/me/file.py": 1}
    assert not unread_fields(json_lines(line), claude_code)


def test_reading_counts_fields_only_if_asked_to(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    count = test_codex.Counter()
    path.write_bytes(json_lines(test_codex.meta("a", novelty=1), test_codex.said(4), count(4, 500)))
    assert read_traces(path).unread == {}
    assert read_traces(path, watch=True).unread["payload.novelty"] == 1
