"""Small logs made after public bug reports: what each of them says.

The files in `cases` are ours: no text or code of the reports is in them.
"""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest

from servers.basics.errors import InvalidTrace
from tests.sentences import each_mentions, mentions
from traces import Fork, Program, Provenance, TraceSet, read_traces
from traces.formats.registry import abouts, recognise

CASES = Path(__file__).parent / "cases"
MEASURED, INFERRED = Provenance.MEASURED, Provenance.INFERRED


def read(case: str) -> TraceSet:
    loaded = read_traces(CASES / case, keep_names=True)
    assert loaded.rejections == ()
    return loaded


def repairs(case: str) -> list[str]:
    return [note.reason for note in read(case).repairs]


def prompts(case: str) -> list[list[int]]:
    return [[turn.prompt_tokens for turn in p.turns] for p in read(case).programs]


def only(case: str) -> Program:
    (program,) = read(case).programs
    return program


def test_codex_counts_that_precede_their_items_are_the_counts_of_these_items() -> None:
    turns = only("05-codex-counts-before-items").turns
    assert [turn.tools for turn in turns] == [("pytest",), ("ruff",), ()]
    assert [turn.tool_gap_s for turn in turns] == [65.0, 12.0, 0.0]
    assert [turn.gap_provenance for turn in turns[:2]] == [MEASURED, MEASURED]
    assert repairs("05-codex-counts-before-items") == []


@pytest.mark.parametrize("kind", ["all", "empty", "mixed"])
def test_a_codex_call_without_counts_of_its_own_is_the_growth_of_the_total(kind: str) -> None:
    turns = only(f"06-codex-total-only/{kind}").turns
    assert [turn.prompt_tokens for turn in turns] == [20_000, 21_000, 21_500]
    assert [turn.output_tokens for turn in turns] == [300, 200, 90]
    assert [turn.tool_gap_s for turn in turns] == [15.0, 15.0, 0.0]


def test_codex_totals_that_occurred_before_are_no_calls() -> None:
    assert prompts("07-codex-totals-replayed") == [[20_000, 21_000, 21_500]]


def test_an_interrupted_codex_answer_is_left_out_and_the_wait_after_it_is_a_pause() -> None:
    turns = only("08-codex-interrupted-call").turns
    assert [turn.tools for turn in turns] == [(), ("rg",), ()]
    assert turns[0].tool_gap_s == 590.0  # from 9:00:10 to 9:10:00
    assert each_mentions(repairs("08-codex-interrupted-call"), "without token counts")


def test_a_codex_call_that_compacts_the_history_is_a_turn() -> None:
    turns = only("09-codex-compaction-call").turns
    assert [turn.prompt_tokens for turn in turns] == [200_000, 210_000, 21_500, 21_500]
    assert [turn.output_tokens for turn in turns] == [300, 2_500, 90, 90]
    assert [turn.kept_tokens for turn in turns] == [0, 200_000, 3_000, 3_000]


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        ("10-codex-child-one-meta", [[20_000, 21_000, 21_500, 22_000], [21_200, 21_900]]),
        ("11-codex-fork-last-turns", [[20_000, 30_000, 31_500], [9_000]]),
    ],
)
def test_the_calls_that_a_codex_sub_agent_copied_are_its_parents(
    case: str, expected: list[list[int]]
) -> None:
    assert prompts(case) == expected
    assert mentions(repairs(case), "copied from the rollout")


def test_claude_calls_that_a_branch_copied_are_known_by_the_ids_that_a_gateway_gave() -> None:
    case = "02-claude-branch-gateway-ids/projects"
    assert prompts(case) == [[12_000, 12_500], [12_700]]


def test_a_resumed_claude_sub_agent_runs_twice() -> None:
    session, first, second = read("04-claude-sub-agent-resumed/projects").programs
    assert [turn.tool_gap_s for turn in session.turns] == [1.0, 40.0, 1.0, 0.0]
    assert first.fork == Fork("sess-a", 0, 1.0, 1, MEASURED)
    assert second.fork == Fork("sess-a", 2, 1.0, 3, MEASURED)
    assert [turn.tool_gap_s for turn in (*first.turns, *second.turns)] == [1.0, 0.0, 1.0, 0.0]


def test_calls_that_two_instrumentations_recorded_are_counted_once() -> None:
    assert prompts("16-otel-instrumented-twice") == [[10_000, 11_000]]
    turns = only("16-otel-instrumented-twice").turns
    assert (turns[0].tools, turns[0].tool_gap_s) == (("pytest",), 30.1)


def test_a_total_that_counts_cached_tokens_twice_does_not_agree_with_the_text() -> None:
    program = only("17-langfuse-cached-twice")
    assert [turn.prompt_tokens for turn in program.turns] == [8_200, 8_400]
    assert [turn.output_tokens for turn in program.turns] == [100, 80]
    assert program.prefix is not None
    assert program.prefix.tokens <= 8_200
    assert mentions(repairs("17-langfuse-cached-twice"), "cached tokens twice", "(2 times)")


def test_claude_codes_own_spans_are_calls_and_tools() -> None:
    first, last = only("claude-code-spans").turns
    assert (first.prompt_tokens, first.output_tokens) == (10 + 12_000 + 3_000, 200)
    assert (last.prompt_tokens, last.output_tokens) == (12 + 15_000 + 400, 100)
    assert (first.tools, first.tool_gap_s) == (("Bash",), 30.1)


def test_a_gemini_answer_without_text_ended_when_its_tool_call_began() -> None:
    turns = only("12-gemini-tool-only-answer").turns
    # The id of the call has 8:00:07; it ended at 8:00:37.04.
    assert [turn.tool_gap_s for turn in turns] == [30.04, 12.0, 0.0]


def test_a_gemini_sub_agent_is_a_fork_that_the_session_awaits() -> None:
    session, agent = read("14-gemini-sub-agent/chats").programs
    assert agent.fork == Fork(session.id, 0, 0.5, 1, MEASURED)
    assert [turn.prompt_tokens for turn in agent.turns] == [2_500, 3_500]
    assert session.turns[0].tool_gap_s == 1.0  # from 8:00:35 to 8:00:36


RECORD = "record the agent with bench record, or give its OpenTelemetry spans"
SPANS = "export the traces as OpenTelemetry spans"


@pytest.mark.parametrize(
    ("file", "what", "remedy"),
    [
        ("agentops.json", "a session of AgentOps, which", SPANS),
        ("aider.json", "a chat of Aider, which has no times and", RECORD),
        ("amp.json", "a session of Amp, which", RECORD),
        ("cline.json", "messages as Cline and Roo Code keep them, which have neither counts nor "
         "times and", RECORD),
        ("cline_ui.json", "messages of Cline or Roo Code, which", RECORD),
        ("codexexec.jsonl", "the output of codex exec, which has sums and no times "
         "and", "give its rollout in ~/.codex/sessions"),
        ("copilot.jsonl", "a session of Copilot CLI, which has no prompt lengths and", RECORD),
        ("goose.jsonl", "a session of goose, which", RECORD),
        ("opencode.json", "a session of OpenCode, which", RECORD),
        ("qwen.jsonl", "a session of Qwen Code, which", RECORD),
        ("streamjson.jsonl", "the output of claude -p, which has no times and",
         "give its session in ~/.claude/projects"),
    ],
)  # fmt: skip
def test_a_file_of_another_tool_is_named_with_what_to_do(file: str, what: str, remedy: str) -> None:
    with pytest.raises(InvalidTrace) as refused:
        read_traces(CASES / "24-refusals" / file)
    assert str(refused.value).partition(": ")[2] == f"{what} cannot be read here; {remedy}"


def test_runs_of_langsmith_are_read_with_their_counts() -> None:
    loaded = read("24-refusals/langsmith.jsonl")
    assert loaded.formats == {"langsmith.jsonl": "langsmith"}
    ((turn,),) = (program.turns for program in loaded.programs)
    assert (turn.prompt_tokens, turn.output_tokens) == (100, 20)


def test_a_file_with_messages_alone_is_not_taken_for_a_trajectory() -> None:
    with pytest.raises(InvalidTrace, match="unknown format"):
        read_traces(CASES / "24-refusals" / "openai_log.json")


def test_one_field_is_no_mark_of_a_format() -> None:
    keys = {key for about in abouts().values() for kind in about.keys for key in kind}
    names = {key.partition(".")[0] for key in keys} | {"messages", "trajectory", "events", "type"}
    names -= {"resourceSpans"}  # a word of OpenTelemetry alone
    assert len(names) > 20
    values = "x", 1, {}, [], [{}], [{"role": "assistant", "content": "x"}]
    documents = ({name: value} for name in names for value in values)
    assert [each for each in documents if recognise(json.dumps(each).encode())] == []


def test_a_sqlite_database_is_refused_with_what_to_export(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "traces.sqlite")
    connection.execute("create table calls (prompt_tokens)")
    connection.commit()
    connection.close()
    with pytest.raises(InvalidTrace, match=r"SQLite database, .* CSV, .* --columns"):
        read_traces(tmp_path / "traces.sqlite")


@pytest.mark.parametrize(
    ("document", "what", "remedy"),
    [
        ({"requests": [], "responderUsername": "GitHub Copilot"},
         "a chat of Copilot in VS Code", RECORD),
        ({"composerId": "c", "conversation": []}, "a conversation of Cursor", RECORD),
        ({"_v": 3, "composerId": "c", "fullConversationHeadersOnly": []},
         "a conversation of Cursor", RECORD),
        ({"_v": 2, "bubbleId": "b", "type": 2, "tokenCount": {"inputTokens": 3}},
         "a message of Cursor", RECORD),
        ({"span_name": "chat m", "otel_scope_name": "pydantic-ai", "trace_id": "0" * 32},
         "records of Logfire", SPANS),
    ],
)  # fmt: skip
def test_a_file_of_an_editor_or_a_monitor_is_named_by_two_of_its_fields(
    tmp_path: Path, document: dict[str, object], what: str, remedy: str
) -> None:
    file = tmp_path / "f.json"
    file.write_text(json.dumps(document))
    with pytest.raises(InvalidTrace) as refused:
        read_traces(file)
    assert str(refused.value).partition(": ")[2] == f"{what}, which cannot be read here; {remedy}"
