"""SWE-agent trajectories: lengths from text and totals, measured times of tools."""

from __future__ import annotations

import json
from typing import Any

import pytest

from servers.basics.errors import TraceRejected
from tests.sentences import each_mentions, mentions
from tests.traces import span_samples
from tests.traces.sample import Sample
from traces import Program, Provenance
from traces.assumptions import Assumptions
from traces.formats.swe_agent import load_with, sniff
from traces.lenient import Repairs

SAMPLE = Sample(
    {"a.traj": span_samples.swe_agent("fix it", 1.5, 1), "b.traj": span_samples.swe_agent("x", 1)},
    (Provenance.MEASURED,),
)


def message(role: str, characters: int, **fields: Any) -> dict[str, Any]:
    return {"role": role, "content": role[0] * characters, **fields}


HISTORY = [
    message("system", 330),
    message("user", 330),
    message("assistant", 33, action="edit 1:9\ncd x\nend_of_edit"),
    message("tool", 66),
    message("assistant", 33, action="cd a && pytest -q"),
]
STEPS = [
    {"action": "edit 1:9", "observation": "t", "response": "a", "execution_time": 0.25},
    {"action": "pytest", "observation": "t", "response": "a", "execution_time": 3.5},
]


def read(
    history: list[dict[str, Any]] = HISTORY,
    steps: list[dict[str, Any]] = STEPS,
    stats: dict[str, Any] | None = None,
    assumptions: Assumptions | None = None,
) -> tuple[Program, list[str]]:
    document = {"trajectory": steps, "history": history, "info": {"model_stats": stats or {}}}
    data, repairs = json.dumps(document).encode(), Repairs()
    assert sniff(data)
    (program,) = load_with(data, "file", repairs, assumptions or Assumptions())
    return program, repairs.reasons()


def test_a_gap_is_the_recorded_execution_time() -> None:
    program, _ = read()
    assert program.turns[0].tool_gap_s == 0.25
    assert program.turns[0].gap_provenance is Provenance.MEASURED


def test_tools_are_the_commands_in_the_first_line_of_the_action() -> None:
    program, _ = read()
    assert [turn.tools for turn in program.turns] == [("edit",), ("cd", "pytest")]


def test_lengths_are_counted_by_characters_where_there_are_no_totals() -> None:
    # 660 characters before the first answer of 33, then 66 more.
    program, repairs = read()
    lengths = [(turn.prompt_tokens, turn.output_tokens) for turn in program.turns]
    assert lengths == [(200, 10), (230, 10)]
    assert program.turns[1].kept_tokens == 210
    assert mentions(repairs[0], "without token counts", "1 token per 3.30")


def test_lengths_are_scaled_to_the_recorded_totals() -> None:
    # The counted prompts are 430 in all and the outputs 20; the record says twice and three times.
    program, repairs = read(stats={"tokens_sent": 860, "tokens_received": 60, "api_calls": 2})
    lengths = [(turn.prompt_tokens, turn.output_tokens) for turn in program.turns]
    assert lengths == [(400, 30), (460, 30)]
    assert each_mentions(repairs, "scaled to the recorded totals: inferred")


def test_totals_of_more_calls_than_the_history_has_count_in_proportion() -> None:
    # Four calls with 1720 tokens in all, so two of them have 860.
    program, _ = read(stats={"tokens_sent": 1720, "tokens_received": 120, "api_calls": 4})
    assert [turn.prompt_tokens for turn in program.turns] == [400, 460]


def test_a_demonstration_in_the_prompt_is_no_call() -> None:
    demo = [message("user", 33, is_demo=True), message("assistant", 33, is_demo=True)]
    program, _ = read(history=[*HISTORY[:1], *demo, *HISTORY[1:]])
    assert [turn.prompt_tokens for turn in program.turns] == [220, 250]


def test_without_execution_times_gaps_are_unknown() -> None:
    steps = [{key: step[key] for key in ("action", "observation", "response")} for step in STEPS]
    with pytest.raises(TraceRejected, match=r"1 of 1 tool times .*synthesise-gaps"):
        read(steps=steps)
    program, _ = read(
        steps=steps, assumptions=Assumptions(gaps=lambda _id, tools: [2.0] * len(tools))
    )
    assert program.turns[0].tool_gap_s == 2
    assert program.turns[0].gap_provenance is Provenance.SYNTHESISED


def test_a_file_with_an_empty_history_has_the_conversation_of_its_steps() -> None:
    program, _ = read(history=[])
    assert len(program.turns) == 2


def test_a_file_without_answers_is_refused() -> None:
    with pytest.raises(TraceRejected, match="no answer of the model"):
        read(history=HISTORY[:2], steps=[])


def test_the_system_prompt_is_a_prefix_and_messages_are_kept() -> None:
    program, _ = read()
    assert program.prefix is not None
    assert program.prefix.tokens == 100
    assert program.prompt_messages == (2, 4)
    assert [m.role for m in program.messages] == [
        "system", "user", "assistant", "user", "assistant"
    ]  # fmt: skip
