"""Harbor's ATIF: calls, copied context, sub-agents, and gaps that are inferred or unknown."""

from __future__ import annotations

import json
from typing import Any

import pytest

from servers.basics.errors import TraceRejected
from tests.sentences import each_mentions, mentions
from tests.traces import span_samples
from tests.traces.sample import Sample
from tests.traces.span_samples import SYSTEM, atif
from traces import Fork, Program, Provenance
from traces.assumptions import Assumptions
from traces.check import check
from traces.formats.atif import load_with, sniff
from traces.lenient import Repairs

SAMPLE = Sample(
    {"a.json": span_samples.atif("a", 2, 9), "b.json": span_samples.atif("b", 3)},
    (Provenance.INFERRED,),
)


def step(source: str, message: str, second: int | None = None, **fields: Any) -> dict[str, Any]:
    times = {} if second is None else {"timestamp": f"2026-01-01T00:00:{second:02}Z"}
    return {"source": source, "message": message, **times, **fields}


def agent(second: int | None, prompt: int, output: int, **fields: Any) -> dict[str, Any]:
    metrics = {"prompt_tokens": prompt, "completion_tokens": output, **fields.pop("metrics", {})}
    tools = [{"function_name": "bash", "arguments": {"command": "ls | wc"}}]
    return step("agent", "on", second, metrics=metrics, tool_calls=tools, **fields)


def trajectory(*steps: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"schema_version": "ATIF-v1.7", "session_id": "s", "steps": list(steps), **fields}


def read(
    document: dict[str, Any], assumptions: Assumptions | None = None
) -> tuple[list[Program], list[str]]:
    repairs = Repairs()
    data = json.dumps(document).encode()
    assert sniff(data)
    programs = load_with(data, "file", repairs, assumptions or Assumptions())
    check(programs)
    return programs, repairs.reasons()


def test_the_next_responses_estimated_generation_is_subtracted_from_a_gap() -> None:
    # 10 s between the steps; the next response's 170 tokens take 2.4 + 170 / 85 = 4.4 s.
    (program,), repairs = read(trajectory(agent(2, 100, 20), agent(12, 150, 170)))
    first = program.turns[0]
    assert first.tool_gap_s == 5.6
    assert first.gap_provenance is Provenance.INFERRED
    assert first.tools == ("ls", "wc")
    assert program.turns[1].kept_tokens == 120
    assert mentions(repairs[0], "tool time from timestamps of steps")


def test_the_messages_are_those_of_steps_and_observations() -> None:
    asked = step("system", "be brief", 0), step("user", "fix it", 1)
    observed = {"results": [{"content": "a.py"}]}
    answers = agent(2, 100, 20, observation=observed), agent(12, 150, 170)
    (program,), _ = read(trajectory(*asked, *answers))
    answer = 'on\nbash\n{"command": "ls | wc"}'
    assert [(message.role, message.content) for message in program.messages] == [
        ("system", "be brief"),
        ("user", "fix it"),
        ("assistant", answer),
        ("user", "a.py"),
        ("assistant", answer),
    ]
    assert program.prompt_messages == (2, 4)


def test_a_pause_before_a_users_message_is_measured() -> None:
    done = step("agent", "done", 2, metrics={"prompt_tokens": 100, "completion_tokens": 20})
    (program,), _ = read(trajectory(done, step("user", "more", 30), agent(35, 150, 20)))
    assert program.turns[0].tool_gap_s == 28
    assert program.turns[0].gap_provenance is Provenance.MEASURED
    assert program.turns[0].tools == ()


@pytest.mark.parametrize("seconds", [(None, None), (2, None), (2, 2)])
def test_without_usable_timestamps_gaps_are_unknown(seconds: tuple[int | None, ...]) -> None:
    document = trajectory(*(agent(second, 100, 20) for second in seconds))
    with pytest.raises(TraceRejected, match=r"1 of 1 tool times .*synthesise-gaps"):
        read(document)
    (program,), _ = read(document, Assumptions(gaps=lambda _id, tools: [4.0] * len(tools)))
    assert program.turns[0].tool_gap_s == 4
    assert program.turns[0].gap_provenance is Provenance.SYNTHESISED


def test_copied_steps_are_no_calls() -> None:
    copied = {**agent(1, 100, 20), "is_copied_context": True}
    (program,), repairs = read(trajectory(copied, agent(2, 150, 20)))
    assert [turn.prompt_tokens for turn in program.turns] == [150]
    assert each_mentions(repairs, "copied from an earlier trajectory")


def test_a_step_without_a_model_call_is_none_and_several_calls_are_reported() -> None:
    (program,), repairs = read(
        trajectory(agent(1, 100, 20, llm_call_count=0), agent(2, 150, 20, llm_call_count=3))
    )
    assert [turn.prompt_tokens for turn in program.turns] == [150]
    assert each_mentions(repairs, "several model calls")


def test_cached_tokens_are_part_of_the_prompt_and_kept_at_least() -> None:
    (program,), _ = read(
        trajectory(
            agent(1, 100, 20),
            agent(9, 1000, 20),
            agent(19, 600, 20, metrics={"cached_tokens": 500}),
        )
    )
    assert program.turns[2].prompt_tokens == 600
    assert program.turns[2].kept_tokens == 500


def test_an_embedded_trajectory_is_a_fork_after_the_step_that_refers_to_it() -> None:
    refers = {"results": [{"subagent_trajectory_ref": [{"trajectory_id": "x"}]}]}
    child = trajectory(agent(3, 50, 10), trajectory_id="x", agent={"name": "summary"})
    (main, sub), _ = read(
        trajectory(
            agent(2, 100, 20),
            step("system", "compacted", observation=refers),
            agent(9, 150, 20),
            subagent_trajectories=[child],
        )
    )
    assert sub.id == "s/summary"
    assert sub.fork == Fork("s", 0, 0.0, 1, Provenance.INFERRED)
    # The time between the steps is the sub-agent's.
    assert main.turns[0].tool_gap_s == 0
    assert main.turns[0].gap_provenance is Provenance.INFERRED


def test_trajectories_in_other_files_are_reported() -> None:
    refers = {"results": [{"subagent_trajectory_ref": [{"trajectory_path": "x.json"}]}]}
    _, repairs = read(
        trajectory(agent(2, 100, 20, observation=refers), continued_trajectory_ref="y.json")
    )
    continued, spawned = repairs
    assert mentions(continued, "continues in another file", "separate program")
    assert mentions(spawned, "sub-agent in another file", "separate program")


def test_a_continuation_has_an_id_of_its_own() -> None:
    extra = {"extra": {"continuation_index": 1}}
    (program,), _ = read(trajectory(agent(2, 100, 20), agent=extra))
    assert program.id == "s/continued-1"


def test_text_is_counted_if_metrics_are_withheld() -> None:
    # 330 characters before the first answer of 33, then an observation of 66.
    seen = {"results": [{"content": "o" * 66}]}
    first = step("agent", "a" * 33, 2, observation=seen, metrics={"cost_usd": 0})
    document = trajectory(step("user", "u" * 330), first, step("agent", "b" * 33, 12))
    (program,), repairs = read(document)
    assert [(t.prompt_tokens, t.output_tokens) for t in program.turns] == [(100, 10), (130, 10)]
    assert program.turns[0].tools == ("tool",)
    assert mentions(repairs[0], "without token counts", "1 token per 3.30")


def test_commands_in_the_text_of_an_answer_are_tools() -> None:
    said = json.dumps({"analysis": "x", "commands": [{"keystrokes": "pytest -q\n"}]})
    seen = {"results": [{"content": "ok"}]}
    metrics = {"prompt_tokens": 100, "completion_tokens": 20}
    first = step("agent", said, 2, observation=seen, metrics=metrics)
    (program,), _ = read(trajectory(first, agent(9, 150, 20)))
    assert program.turns[0].tools == ("pytest",)


def test_the_system_step_is_a_prefix() -> None:
    # 90 of the 96 characters before the first call, so 93 of its 100 tokens.
    (program,), _ = read(json.loads(atif("s", 2)))
    assert len(SYSTEM) == 90
    assert program.prefix is not None
    assert program.prefix.tokens == 93


def test_a_trajectory_without_calls_is_refused() -> None:
    with pytest.raises(TraceRejected, match="no agent step"):
        read(trajectory(step("user", "hello")))
