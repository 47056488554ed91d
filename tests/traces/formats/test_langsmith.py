"""LangSmith runs: their tree, their messages, and their usage. The shapes are those of its public
documentation."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.sentences import each_mentions
from tests.traces.sample import Sample, json_lines
from traces import Fork, Message, Program, Provenance
from traces.assumptions import Assumptions
from traces.formats.langsmith import load_with, sniff
from traces.lenient import Repairs

SYSTEM = "be brief " * 10


def run(id: str, type: str, start: float, end: float, **fields: Any) -> dict[str, Any]:
    """Return a run of project p, in the trace t unless another is given."""
    day = "2026-02-01"
    return {
        "id": id, "trace_id": "t", "session_id": "p", "run_type": type, "name": type,
        "start_time": f"{day} 10:00:{start:09.6f}", "end_time": f"{day}T10:00:{end:09.6f}",
        "parent_run_id": None, **fields,
    }  # fmt: skip


def llm(id: str, start: float, end: float, prompt: int, output: int, **fields: Any) -> Any:
    counts = {"prompt_tokens": prompt, "completion_tokens": output}
    return run(id, "llm", start, end, **counts, **fields)


def chat(*texts: str) -> dict[str, Any]:
    """Return messages with these texts, as the wrapper of OpenAI's client records them."""
    roles = ("system", "user", "assistant", "tool")
    pairs = zip(roles, texts, strict=False)
    return {"messages": [{"role": role, "content": content} for role, content in pairs]}


def said(text: str, **fields: Any) -> dict[str, Any]:
    return {"choices": [{"message": {"role": "assistant", "content": text, **fields}}]}


SAMPLE = Sample(
    {
        "a.json": json.dumps([
            llm("1", 0, 2, 100, 20, inputs=chat(SYSTEM, "fix it"), outputs=said("on")),
            run("2", "tool", 2, 3.5, name="ls"),
            llm("3", 4, 6, 150, 20, inputs=chat(SYSTEM, "fix it", "on", "x y"), outputs=said("")),
            llm("4", 9, 11, 100, 20, trace_id="u", inputs=chat(SYSTEM, "test"), outputs=said("")),
        ]).encode()
    },
    (Provenance.MEASURED,),
)  # fmt: skip


def read(*documents: Any) -> list[Program]:
    data = json_lines(*documents)
    assert sniff(data)
    return load_with(data, "file", Repairs(), Assumptions())


ROOT = run("0", "chain", 0, 9, prompt_tokens=250, completion_tokens=50)
CHILDREN = [
    llm("1", 0, 2, 100, 20, parent_run_id="0"),
    run("2", "tool", 2.5, 4, name="get_weather", parent_run_id="0"),
    llm("3", 5, 6, 150, 30, parent_run_id="0"),
]


@pytest.mark.parametrize(
    "documents",
    [
        [[ROOT, *CHILDREN]],
        [{"runs": [ROOT, *CHILDREN], "cursors": {}}],
        [ROOT, *CHILDREN],
        [{**ROOT, "child_runs": CHILDREN}],
    ],
    ids=["list", "API", "lines", "within each other"],
)
def test_the_model_calls_of_a_trace_count_and_the_sums_of_its_chain_do_not(
    documents: list[Any],
) -> None:
    (program,) = read(*documents)
    assert [(turn.prompt_tokens, turn.output_tokens) for turn in program.turns] == [
        (100, 20), (150, 30),
    ]  # fmt: skip
    assert (program.turns[0].tools, program.turns[0].tool_gap_s) == (("get_weather",), 3)
    assert program.turns[0].gap_provenance == "measured"


def test_a_thread_joins_traces_and_a_project_does_not() -> None:
    two = [llm("1", 0, 2, 100, 20), llm("2", 5, 6, 150, 30, trace_id="u")]
    assert [program.id for program in read(two)] == ["t", "u"]
    thread = {"metadata": {"thread_id": "conversation"}}
    (program,) = read([{**each, "extra": thread} for each in two])
    assert (program.id, len(program.turns)) == ("conversation", 2)


def test_calls_below_a_tool_are_a_sub_agent_that_the_next_call_awaits() -> None:
    inner = llm("i", 3, 3.5, 70, 7, parent_run_id="2")
    main, agent = read([ROOT, *CHILDREN, inner])
    assert agent.fork == Fork(main.id, 0, 1.0, 1, Provenance.MEASURED)
    assert [turn.prompt_tokens for turn in agent.turns] == [70]


USAGE = {
    "input_tokens": 100, "output_tokens": 20, "total_tokens": 120,
    "input_token_details": {"cache_read": 60}, "output_token_details": {"reasoning": 15},
}  # fmt: skip


def message(kind: str, **kwargs: Any) -> dict[str, Any]:
    """Return a message as LangChain serializes it."""
    return {"lc": 1, "type": "constructor", "id": ["langchain", "schema", "messages", kind],
            "kwargs": {**kwargs, "response_metadata": {"model": "m"}}}  # fmt: skip


@pytest.mark.parametrize(
    "outputs",
    [
        {"usage_metadata": USAGE, "choices": []},
        {"generations": [[{"message": message("AIMessage", usage_metadata=USAGE)}]]},
    ],
)
def test_a_run_without_counts_has_those_of_its_answer(outputs: dict[str, Any]) -> None:
    first = llm("1", 0, 2, 0, 0, outputs=outputs)
    (program,) = read([first, llm("2", 5, 6, 150, 30)])
    assert (program.turns[0].prompt_tokens, program.turns[0].output_tokens) == (100, 20)


def test_cached_tokens_are_kept_at_least() -> None:
    first = llm("1", 0, 2, 100, 20)
    second = llm("2", 5, 6, 90, 30, prompt_token_details={"cache_read": 64}, total_tokens=120)
    assert read([first, second])[0].turns[1].kept_tokens >= 64


def test_messages_of_langchain_are_read_from_their_constructors() -> None:
    call = {"name": "get_weather", "args": {"city": "Paris"}, "id": "c", "type": "tool_call"}
    asked = [message("SystemMessage", content="be brief"), message("HumanMessage", content="go")]
    answer = message("AIMessage", content="", tool_calls=[call], usage_metadata=USAGE)
    result = {
        "type": "tool",
        "content": "Sunny",
        "tool_call_id": "c",
        "additional_kwargs": {"a": "b"},
    }
    tools = {"invocation_params": {"tools": [{"name": "get_weather"}]}}
    first = llm(
        "1", 0, 2, 100, 20, extra=tools,
        inputs={"messages": [asked]}, outputs={"generations": [[{"text": "", "message": answer}]]},
    )  # fmt: skip
    second = llm("2", 5, 6, 150, 30, extra=tools, inputs={"messages": [[*asked, answer, result]]})
    (program,) = read([first, second])
    # An empty text is a line of its own.
    assert program.messages[:5] == (
        Message("system", '[{"name": "get_weather"}]'),
        Message("system", "be brief"),
        Message("user", "go"),
        Message("assistant", '\nget_weather\n{"city": "Paris"}'),
        Message("user", "Sunny"),
    )
    assert program.turns[0].tools == ("get_weather",)
    assert program.turns[1].kept_tokens == 120  # the prompt and its answer


FUNCTION = {"function": {"name": "look", "arguments": "{}"}}


@pytest.mark.parametrize(
    "outputs",
    [
        said("", tool_calls=[FUNCTION]),
        {"output": [{"type": "function_call", "name": "look", "arguments": "{}"}], "model": "m"},
        {"message": {"role": "assistant", "content": [{"type": "tool_use", "name": "look"}]}},
        {"role": "assistant", "content": [{"type": "tool-call", "toolName": "look"}]},
        json.dumps(said("", tool_calls=[FUNCTION])),
    ],
    ids=["completions", "responses", "anthropic", "vercel", "as text"],
)
def test_the_tools_in_an_answer_are_named_if_no_run_of_a_tool_was_recorded(outputs: Any) -> None:
    first = llm("1", 0, 2, 100, 20, inputs=chat("a", "b"), outputs=outputs)
    (program,) = read([first, llm("2", 5, 6, 150, 30)])
    assert program.turns[0].tools == ("look",)


def test_a_run_that_has_not_ended_or_is_in_the_file_twice_is_left_out() -> None:
    repairs = Repairs()
    data = json_lines([*CHILDREN, CHILDREN[0], {**llm("4", 7, 8, 200, 9), "end_time": None}])
    (program,) = load_with(data, "file", repairs, Assumptions())
    assert len(program.turns) == 2
    assert each_mentions(repairs.reasons()[:2], "without its start", "id of an earlier one")
