"""mini-swe-agent trajectories of both versions, compared with manual calculations."""

from __future__ import annotations

import json
from typing import Any

import pytest

from servers.basics.errors import TraceRejected
from tests.sentences import each_mentions
from tests.traces.sample import Sample
from traces import Program, Provenance
from traces.formats.mini_swe_agent import read_trajectory as load
from traces.lenient import Repairs


def sample() -> Sample:
    def document(id: str, task: str, *calls: dict[str, Any]) -> bytes:
        opening = [
            {"role": "system", "content": "be brief " * 20},
            {"role": "user", "content": task},
        ]
        return json.dumps(
            {"trajectory_format": "mini-swe-agent-1.1", "instance_id": id,
             "messages": [*opening, *calls]}
        ).encode()  # fmt: skip

    def call(prompt: int, at_s: float) -> dict[str, Any]:
        usage = {"prompt_tokens": prompt, "completion_tokens": 20}
        return {"role": "assistant", "content": "on", "extra": {
            "actions": [{"command": "ls"}], "timestamp": 1.7e9 + at_s,
            "response": {"usage": usage}}}  # fmt: skip

    observed = {"role": "tool", "content": "x", "extra": {"timestamp": 1.7e9 + 1.5}}
    return Sample(
        {
            "a.traj.json": document("a", "fix it", call(100, 0), observed, call(150, 4)),
            "b.traj.json": document("b", "test it", call(100, 1)),
        },
        (Provenance.MEASURED,),
    )


SAMPLE = sample()


START = 1_763_511_859


def answer(command: str, prompt: int, output: int, at: int, reasoning: int = 0) -> dict[str, Any]:
    usage = {
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "completion_tokens_details": {"reasoning_tokens": reasoning},
    }
    return {
        "role": "assistant",
        "content": f"THOUGHT: go on\n\n```bash\n{command}\n```",
        "extra": {"response": {"created": START + at, "usage": usage}},
    }


def user(text: str = "<returncode>0</returncode>") -> dict[str, Any]:
    return {"role": "user", "content": text}


OPENING = [{"role": "system", "content": "s" * 100}, user("t" * 900)]


def v1(*messages: dict[str, Any], **info: Any) -> tuple[Program, list[str]]:
    document = {
        "trajectory_format": "mini-swe-agent-1",
        "instance_id": "django__django-1",
        "messages": [*OPENING, *messages],
        "info": info,
    }
    repairs = Repairs()
    (program,) = load(document, "file", repairs)
    return program, repairs.reasons()


def test_a_v1_gap_is_the_time_between_starts_minus_the_estimated_generation_time() -> None:
    # 170 tokens take 2.4 s + 170 / 85 per s = 4.4 s; of 10 s between the starts 5.6 s remain.
    program, repairs = v1(
        answer("cd x && pytest", 1000, 170, 0), user(), answer("ls", 1300, 20, 10)
    )
    first = program.turns[0]
    assert first.tool_gap_s == pytest.approx(5.6)
    assert first.gap_provenance is Provenance.INFERRED
    assert first.tools == ("cd", "pytest")
    assert first.command == "cd x && pytest"
    assert repairs == []


def test_an_inferred_gap_is_never_negative() -> None:
    program, _ = v1(answer("ls", 1000, 850, 0), user(), answer("ls", 1900, 20, 5))
    assert program.turns[0].tool_gap_s == 0


def test_an_inferred_gap_is_limited_to_the_timeout_of_the_command() -> None:
    config = {"environment": {"timeout": 30}}
    program, repairs = v1(
        answer("pytest", 1000, 10, 0), user(), answer("ls", 1100, 20, 600), config=config
    )
    assert program.turns[0].tool_gap_s == 30
    assert each_mentions(repairs, "cut to 30 s")


@pytest.mark.parametrize(
    ("reasoning", "next_prompt", "kept"),
    [
        (0, 1300, 1170),  # prompt and answer are sent again
        (50, 1300, 1000),  # reasoning came before the answer and is not sent again
        (0, 1100, 1000),  # no room for the answer
        (0, 980, 979),  # counted slightly differently
        (0, 300, 299),  # rewritten: only the first prompt can be the same
    ],
)
def test_kept_tokens_depend_on_what_the_next_prompt_can_contain(
    reasoning: int, next_prompt: int, kept: int
) -> None:
    program, _ = v1(answer("ls", 1000, 170, 0, reasoning), user(), answer("ls", next_prompt, 20, 9))
    assert program.turns[1].kept_tokens == kept


def test_a_format_error_runs_no_tool() -> None:
    twice = answer("ls", 1000, 40, 0)
    twice["content"] *= 2
    program, _ = v1(twice, user("Please always provide EXACTLY ONE action"), user("again"),
                    answer("ls", 1100, 20, 7))  # fmt: skip
    assert program.turns[0].tools == ()
    assert program.turns[0].tool_gap_s == 0
    assert len(program.turns) == 2


def test_trajectories_with_the_same_system_prompt_share_a_prefix() -> None:
    first, _ = v1(answer("ls", 1000, 40, 0))
    second, _ = v1(answer("pwd", 1000, 40, 0))
    assert first.prefix is not None
    assert first.prefix == second.prefix
    assert first.prefix.tokens == 100  # 100 of 1000 characters, 1000 tokens


def test_a_missing_usage_is_estimated_and_reported() -> None:
    silent = {"role": "assistant", "content": "x" * 33}
    program, repairs = v1(answer("ls", 1000, 100, 0), user(), silent, user(),
                          answer("ls", 1500, 9, 30))  # fmt: skip
    assert [turn.prompt_tokens for turn in program.turns] == [1000, 1101, 1500]
    assert program.turns[1].output_tokens == 10  # 33 characters at 3.3
    assert any("prompt tokens" in reason for reason in repairs)


@pytest.mark.parametrize(
    "messages", [[], None, "x", [None], [{"role": "assistant", "content": "hi"}]]
)
def test_a_trajectory_without_any_usage_is_refused(messages: object) -> None:
    with pytest.raises(TraceRejected):
        load({"messages": messages}, "file", Repairs())


def v2_answer(prompt: int, output: int, at: float, *commands: str) -> dict[str, Any]:
    usage = {"prompt_tokens": prompt, "completion_tokens": output}
    actions = [{"command": command, "tool_call_id": "c"} for command in commands]
    extra = {"actions": actions, "response": {"usage": usage}, "timestamp": START + at}
    return {"role": "assistant", "content": None, "extra": extra}


def observed(at: float) -> dict[str, Any]:
    return {"role": "tool", "content": "ok", "extra": {"timestamp": START + at, "returncode": 0}}


def v2(*messages: dict[str, Any]) -> Program:
    document = {"trajectory_format": "mini-swe-agent-1.1", "messages": [*OPENING, *messages]}
    (program,) = load(document, "file", Repairs())
    return program


def test_a_v2_gap_is_measured_from_the_answer_to_the_last_observation() -> None:
    program = v2(
        v2_answer(1000, 50, 3.0, "ls", "pytest -q"),
        observed(3.2),
        observed(7.5),
        v2_answer(1200, 50, 20.0, "echo COMPLETE"),
        {"role": "exit", "content": "", "extra": {"exit_status": "Submitted"}},
    )
    first = program.turns[0]
    assert (first.tool_gap_s, first.gap_provenance) == (4.5, Provenance.MEASURED)
    assert first.tools == ("ls", "pytest")
    assert program.turns[1].kept_tokens == 1050
    assert program.id == "file"


def test_a_refused_v2_response_is_a_turn_whose_answer_is_not_sent_again() -> None:
    usage = {"prompt_tokens": 1100, "completion_tokens": 80}
    refused = {
        "role": "user",
        "content": "No tool calls found",
        "extra": {"interrupt_type": "FormatError", "response": {"usage": usage}},
    }
    program = v2(v2_answer(1000, 50, 3.0, "ls"), observed(4.0), refused,
                 v2_answer(1200, 30, 9.0, "ls"))  # fmt: skip
    assert [turn.prompt_tokens for turn in program.turns] == [1000, 1100, 1200]
    assert program.turns[1].tools == ()
    assert program.turns[2].kept_tokens == 1100


def test_a_responses_api_object_is_a_turn() -> None:
    response = {
        "object": "response",
        "output": [{"type": "function_call", "name": "bash"}],
        "usage": {"input_tokens": 1000, "output_tokens": 60},
        "extra": {"actions": [{"command": "make"}], "timestamp": START + 1.0},
    }
    result = {"type": "function_call_output", "output": "ok", "extra": {"timestamp": START + 3.0}}
    program = v2(response, result, v2_answer(1200, 10, 5.0, "ls"))
    assert program.turns[0].output_tokens == 60
    assert program.turns[0].tools == ("make",)
    assert program.turns[0].tool_gap_s == 2.0
