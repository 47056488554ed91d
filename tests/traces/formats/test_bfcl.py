"""Results of BFCL: nested counts, called functions, and tool times that are not recorded."""

from __future__ import annotations

from typing import Any

import pytest

from servers.basics.errors import TraceRejected
from tests.sentences import each_mentions, mentions
from tests.traces import span_samples
from tests.traces.sample import Sample, json_lines
from traces import Program, Provenance
from traces.assumptions import Assumptions
from traces.lenient import Repairs
from turnstile_formats.bfcl import load_with, sniff

SAMPLE = Sample(
    {"a.json": span_samples.bfcl()}, (Provenance.SYNTHESISED,), gaps="bfcl", shares_prefix=False
)


DRAWN = Assumptions(gaps=lambda _id, tools: [float(len(names)) for names in tools])
"""As many seconds as a turn has tools."""


def row(id: str, prompts: Any, outputs: Any, result: Any) -> dict[str, Any]:
    return {"id": id, "result": result, "input_token_count": prompts, "output_token_count": outputs}


def read(
    *rows: dict[str, Any], assumptions: Assumptions = DRAWN
) -> tuple[list[Program], list[str]]:
    data, repairs = json_lines(*rows), Repairs()
    assert sniff(data)
    return load_with(data, "file", repairs, assumptions), repairs.reasons()


TWO_TURNS = row(
    "multi_turn_base_0",
    [[100, 150], [200]],
    [[20, 30], [10]],
    [[[{"ls": "{}"}, {"cd": "{}"}], []], [["mv(source='x')"]]],
)


def test_each_step_of_each_turn_is_a_call() -> None:
    (program,), _ = read(TWO_TURNS)
    assert program.id == "multi_turn_base_0"
    lengths = [(t.prompt_tokens, t.output_tokens) for t in program.turns]
    assert lengths == [(100, 20), (150, 30), (200, 10)]
    assert [turn.tools for turn in program.turns] == [("ls", "cd"), (), ("mv",)]
    assert [turn.kept_tokens for turn in program.turns] == [0, 120, 180]


def test_gaps_are_drawn_when_asked_and_the_next_user_message_follows_at_once() -> None:
    (program,), repairs = read(TWO_TURNS)
    assert [turn.tool_gap_s for turn in program.turns[:-1]] == [2, 0]
    assert {turn.gap_provenance for turn in program.turns[:-1]} == {Provenance.SYNTHESISED}
    drawn, pause = repairs
    assert mentions(drawn, "a tool time", "synthesised")
    assert mentions(pause, "a pause before the next message", "0 s", "synthesised")


def test_gaps_are_never_silently_zero() -> None:
    with pytest.raises(TraceRejected, match=r"2 of 2 tool times .*--synthesise-gaps"):
        read(TWO_TURNS, assumptions=Assumptions())


def test_tasks_of_one_step_need_no_gaps() -> None:
    programs, _ = read(
        row("live_simple_0", 100, 20, [{"f": "{}"}]),
        row("live_simple_1", 110, 20, "[f(x=1)]"),
        assumptions=Assumptions(),
    )
    assert [p.turns[0].prompt_tokens for p in programs] == [100, 110]
    assert [p.turns[0].tools for p in programs] == [("f",), ("f",)]


def test_an_answer_that_is_not_repeated_is_not_kept() -> None:
    # The next prompt has 38 more tokens than the previous one, whose answer has 72: reasoning.
    (program,), _ = read(row("a", [[3363, 3401]], [[72, 75]], [[[{"ls": "{}"}], []]]))
    assert program.turns[1].kept_tokens == 3363


def test_a_failed_task_is_left_out_and_a_file_of_them_refused() -> None:
    failed = row("x", 0, 0, "Error during inference: timeout")
    programs, repairs = read(failed, row("y", 100, 20, []))
    assert [program.id for program in programs] == ["y"]
    assert each_mentions(repairs, "without token counts, which failed")
    with pytest.raises(TraceRejected, match="no task with token counts"):
        read(failed)
