"""Spans of agents as programs: calls, sub-agents, parallel calls, gaps and kept tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servers.basics.errors import TraceRejected
from tests.sentences import each_mentions, mentions
from traces import Fork, Message, Program, Provenance
from traces.assumptions import Assumptions
from traces.check import check
from traces.formats.shared.span_programs import programs
from traces.formats.shared.spans import Span, SpanKind, SpanTree, SpanUsage
from traces.lenient import Repairs

START_S = 1.7e9


def span(
    id: str, kind: SpanKind, start_s: float, end_s: float, parent: str = "", **fields: Any
) -> Span:
    times = START_S + start_s, START_S + end_s
    trace = fields.pop("trace", "t")
    return Span(id, parent, trace, kind, fields.pop("name", ""), *times, **fields)


def call(
    id: str,
    start_s: float,
    end_s: float,
    prompt_tokens: int,
    output: int,
    parent: str = "",
    **fields: Any,
) -> Span:
    usage = SpanUsage(prompt_tokens, output, **fields.pop("usage", {}))
    return span(id, SpanKind.MODEL, start_s, end_s, parent, usage=usage, **fields)


def tool(id: str, start_s: float, end_s: float, parent: str = "", name: str = "ls") -> Span:
    return span(id, SpanKind.TOOL, start_s, end_s, parent, name=name)


def agent(id: str, start_s: float, end_s: float, parent: str = "", name: str = "a") -> Span:
    return span(id, SpanKind.AGENT, start_s, end_s, parent, name=name)


def read(*spans: Span) -> tuple[list[Program], list[str]]:
    repairs = Repairs()
    result = programs(spans, "file", repairs, Assumptions())
    check(result)
    return result, repairs.reasons()


def said(*contents: str) -> tuple[Message, ...]:
    roles = ("system", "user", "assistant", "tool", "assistant", "tool")
    return tuple(Message(role, text) for role, text in zip(roles, contents, strict=False))


def test_a_gap_lasts_from_the_answer_to_the_next_request_whatever_the_order_of_spans() -> None:
    # The tools take 1 and 2 s at the same time; the next request is sent 0.5 s after both.
    (program,), _ = read(
        call("2", 4.5, 6, 150, 20),
        tool("b", 2, 4, name="cat"),
        tool("a", 2, 3, name="ls"),
        call("1", 0, 2, 100, 20),
    )
    first, second = program.turns
    assert (first.prompt_tokens, first.output_tokens) == (100, 20)
    assert first.tool_gap_s == 2.5
    assert first.gap_provenance is Provenance.MEASURED
    assert first.tools == ("ls", "cat")
    assert second.kept_tokens == 120
    assert program.recorded_start_s == START_S


def test_an_agents_span_that_repeats_usage_is_not_counted() -> None:
    around = agent("a", 0, 9)
    around.usage = SpanUsage(250, 40)
    (program,), _ = read(around, call("1", 0, 2, 100, 20, "a"), call("2", 5, 6, 150, 20, "a"))
    assert [turn.prompt_tokens for turn in program.turns] == [100, 150]


def test_of_model_spans_within_each_other_only_the_innermost_counts() -> None:
    (program,), repairs = read(
        call("outer", 0, 3, 100, 20), call("inner", 0.5, 2.5, 100, 20, "outer")
    )
    assert len(program.turns) == 1
    assert each_mentions(repairs, "around another one: counted once")


def test_a_span_that_is_exported_twice_counts_once() -> None:
    (program,), repairs = read(call("1", 0, 2, 100, 20), call("1", 0, 2, 100, 20))
    assert len(program.turns) == 1
    assert each_mentions(repairs, "with the id of an earlier one")


def test_a_model_span_that_contains_its_tool_ends_where_the_tool_starts() -> None:
    # The tool's 3 s are within the model's span, as Google's ADK records it.
    (program,), _ = read(call("1", 0, 5, 100, 20), tool("a", 2, 5, "1"), call("2", 5.5, 6, 150, 20))
    assert program.turns[0].tool_gap_s == 3.5


def test_a_call_of_which_nothing_is_recorded_called_a_tool_if_its_trace_goes_on() -> None:
    spoken = call("1", 3, 4, 130, 20, answer="done")
    (program,), repairs = read(call("0", 0, 2, 100, 20), spoken, call("2", 6, 7, 160, 20))
    assert [turn.tools for turn in program.turns] == [("tool",), (), ()]
    assert mentions(repairs, "neither tools nor answer", "assumed a tool call")


def test_traces_of_one_conversation_are_one_program() -> None:
    (program,), _ = read(
        call("1", 0, 2, 100, 20, trace="t", session="s"),
        call("1", 10, 12, 150, 20, trace="u", session="s"),
    )
    assert program.id == "s"
    assert program.turns[0].tool_gap_s == 8
    assert program.turns[0].tools == ()


def test_a_session_on_the_agents_span_holds_for_its_calls() -> None:
    around = agent("a", 0, 9)
    around.session = "s"
    (program,), _ = read(around, call("1", 0, 2, 100, 20, "a"))
    assert program.id == "s"


def test_a_trace_without_a_session_is_a_program() -> None:
    found, _ = read(call("1", 0, 2, 100, 20, trace="t"), call("1", 1, 3, 100, 20, trace="u"))
    assert [program.id for program in found] == ["t", "u"]


def sub_agent(parent_of_agent: str) -> Sequence[Span]:
    return (
        agent("main", 0, 20, name="main"),
        call("1", 0, 2, 100, 20, "main"),
        tool("task", 2.5, 9, "main", name="task"),
        agent("sub", 2.6, 8.9, parent_of_agent, name="explore"),
        call("2", 3, 5, 50, 10, "sub", answer="on"),
        call("3", 6, 8, 90, 10, "sub"),
        call("4", 9.5, 11, 150, 20, "main"),
    )


@pytest.mark.parametrize("parent_of_agent", ["task", "", "never recorded"])
def test_an_agent_below_a_tool_or_within_its_time_is_a_fork_that_its_parent_waits_for(
    parent_of_agent: str,
) -> None:
    (main, sub), repairs = read(*sub_agent(parent_of_agent))
    assert sub.id == "t/explore"
    # It starts 1 s after the answer at 2 s. The last answer is at 8 s, the next request at 9.5 s.
    assert sub.fork == Fork("t", 0, 1.0, 1, Provenance.MEASURED)
    assert main.turns[0].tool_gap_s == 1.5
    assert main.turns[0].tools == ("task",)
    assert sub.turns[0].tool_gap_s == 1
    assert each_mentions(repairs, "without its full text")
    assert repairs[0].endswith("(2 times)")


def test_an_agent_within_an_agent_that_makes_calls_itself_is_a_fork() -> None:
    (_, sub), _ = read(
        agent("main", 0, 20),
        call("1", 0, 2, 100, 20, "main"),
        agent("sub", 3, 8, "main", name="worker"),
        call("2", 3, 5, 50, 10, "sub"),
        call("3", 9, 11, 150, 20, "main"),
    )
    assert sub.fork == Fork("t", 0, 1.0, 1, Provenance.MEASURED)


def test_an_agent_within_a_workflow_without_calls_is_no_fork() -> None:
    found, _ = read(
        agent("workflow", 0, 9), agent("a", 0, 9, "workflow"), call("1", 0, 2, 9, 2, "a")
    )
    assert [program.fork for program in found] == [None]


def test_a_parent_does_not_wait_for_a_sub_agent_that_ends_after_its_next_request() -> None:
    (main, sub), repairs = read(
        agent("main", 0, 20, name="main"),
        call("1", 0, 2, 100, 20, "main"),
        tool("task", 2, 2.1, "main"),
        agent("sub", 2, 9, "task", name="background"),
        call("2", 3, 8, 50, 10, "sub"),
        call("3", 4, 6, 150, 20, "main"),
    )
    assert sub.fork == Fork("t", 0, 1.0, None, Provenance.MEASURED)
    assert main.turns[0].tool_gap_s == 2
    assert mentions(repairs, "in parallel with its parent")


def test_requests_that_overlap_are_sub_agents_that_the_next_request_waits_for() -> None:
    # Turns 1 and 2 overlap from 4 to 5 s, and turn 3 is sent when both have answered.
    (main, side), _ = read(
        call("0", 0, 2, 100, 20),
        call("1", 3, 5, 130, 20),
        call("2", 4, 7, 140, 20),
        call("3", 8, 9, 200, 20),
    )
    assert [turn.prompt_tokens for turn in main.turns] == [100, 130, 200]
    assert side.id == "t/parallel"
    assert side.fork == Fork("t", 0, 2.0, 2, Provenance.MEASURED)
    # From the end of the later one, at 7 s.
    assert [turn.tool_gap_s for turn in main.turns[:2]] == [1, 1]


def test_a_request_that_overlaps_the_first_one_is_a_separate_program() -> None:
    (main, side), repairs = read(call("0", 0, 2, 100, 20), call("1", 1, 3, 100, 20))
    assert (main.fork, side.fork) == (None, None)
    assert each_mentions(repairs, "before its parent's first answer: separate")


def test_a_small_overlap_is_the_skew_of_two_clocks() -> None:
    (program,), repairs = read(call("0", 0, 2.05, 100, 20), call("1", 2, 3, 150, 20))
    assert program.turns[0].tool_gap_s == 0
    assert not any("before the previous response" in repair for repair in repairs)


def test_a_prompt_that_contains_the_answer_follows_it_even_if_the_clocks_differ() -> None:
    first = call("0", 0, 5, 100, 20, prompt=said("s", "q"), answer="a")
    second = call("1", 2, 6, 150, 20, prompt=said("s", "q", "a", "o"))
    (program,), repairs = read(first, second)
    assert [turn.tool_gap_s for turn in program.turns] == [0, 0]
    assert mentions(repairs, "before the previous response", "gap set to 0")


def test_a_prompt_that_changes_a_message_keeps_what_is_before_it() -> None:
    # Of the previous prompt's 20 characters and 100 tokens, 10 + 4 characters are repeated.
    first = call("0", 0, 1, 100, 20, prompt=said("0123456789", "abcdefghij"), answer="a")
    second = call("1", 2, 3, 150, 20, prompt=said("0123456789", "abcd, then something else"))
    (program,), repairs = read(first, second)
    assert program.turns[1].kept_tokens == 70
    assert each_mentions(repairs, "not repeat all messages")


def test_what_a_prompt_keeps_by_its_text_or_its_cache_hits_is_shorter_than_the_prompt() -> None:
    # 70 of the previous prompt's tokens, as above, are more than this prompt has.
    first = call("0", 0, 1, 100, 20, prompt=said("0123456789", "abcdefghij"), answer="a")
    second = call("1", 2, 3, 50, 20, prompt=said("0123456789", "abcd, then something else"))
    (program,), repairs = read(first, second)
    assert program.turns[1].kept_tokens == 49
    assert each_mentions(repairs, "not repeat all messages")
    (program,), repairs = read(call("1", 0, 1, 10, 5), call("2", 2, 3, 99, 5, usage={"cached": 90}))
    assert program.turns[1].kept_tokens == 15
    assert not any("lowered" in repair for repair in repairs)


def test_more_kept_tokens_than_possible_are_lowered_and_reported() -> None:
    (program,), repairs = read(call("1", 0, 1, 100, 20), call("2", 2, 3, 150, 20, kept=130))
    assert program.turns[1].kept_tokens == 120
    assert mentions(repairs[-1], "more kept tokens than")


def test_a_prompt_of_which_only_the_new_messages_are_recorded_is_assumed_to_grow() -> None:
    first = call("0", 0, 1, 100, 20, prompt=(Message("user", "q"),), answer="a")
    second = call("1", 2, 3, 150, 20, prompt=(Message("tool", "o"),))
    (program,), repairs = read(first, second)
    assert program.turns[1].kept_tokens == 120
    assert each_mentions(repairs, "without its full text")


def test_another_agent_in_the_same_session_keeps_nothing() -> None:
    (program,), _ = read(
        agent("a", 0, 2, name="planner"),
        call("1", 0, 2, 100, 20, "a"),
        agent("b", 3, 5, name="writer"),
        call("2", 3, 5, 150, 20, "b"),
    )
    assert program.turns[1].kept_tokens == 0


def test_recorded_cache_hits_are_kept_at_least() -> None:
    # The prompt shrinks to 60%, so that by length only the first prompt would count as kept.
    (program,), _ = read(
        call("1", 0, 1, 100, 20),
        call("2", 2, 3, 1000, 20),
        call("3", 4, 5, 600, 20, usage={"cached": 500}),
    )
    assert program.turns[2].kept_tokens == 500


def test_cached_tokens_are_added_where_the_prompt_count_excludes_them() -> None:
    # 5 tokens cannot include 900 cached ones, so none of this trace's counts do.
    (program,), repairs = read(
        call("1", 0, 1, 950, 20, usage={"cache_writes": 50}),
        call("2", 2, 3, 5, 20, usage={"cached": 900, "cache_writes": 150}),
    )
    assert [turn.prompt_tokens for turn in program.turns] == [1000, 1055]
    assert mentions(repairs, "without the cached ones", "(2 times)")


def test_a_total_tells_whether_the_prompt_count_excludes_cached_tokens() -> None:
    with_total = {"cached": 60, "total": 180}  # 100 + 60 + 20
    (program,), _ = read(call("1", 0, 1, 100, 20, usage=with_total))
    assert program.turns[0].prompt_tokens == 160


@pytest.mark.parametrize(("counted", "total"), [(8200, 16_300), (200, 8300)])
def test_the_text_tells_whether_a_total_has_the_cached_tokens_twice(
    counted: int, total: int
) -> None:
    text = said("x" * 27_060)  # 8,200 tokens of 3.3 characters
    usage = {"cached": 8000, "total": total}
    (program,), repairs = read(call("1", 0, 1, counted, 100, usage=usage, prompt=text))
    assert (program.turns[0].prompt_tokens, program.turns[0].output_tokens) == (8200, 100)
    twice = "a total with the cached tokens twice, as the text shows: ignored"
    assert (twice in repairs) == (counted == 8200)


def test_a_total_above_prompt_and_answer_is_reasoning() -> None:
    # As Vertex AI records hidden thinking: 5 + 845 + 1173 = 2023.
    (program,), repairs = read(call("1", 0, 1, 5, 845, usage={"total": 2023}))
    assert program.turns[0].output_tokens == 2018
    assert each_mentions(repairs, "the rest counted as reasoning")


def test_text_without_usage_is_counted_by_characters() -> None:
    # 330 and 33 characters at 3.3 characters per token.
    only_text = span("1", SpanKind.MODEL, 0, 1, prompt=said("x" * 330), answer="y" * 33)
    (program,), repairs = read(only_text)
    assert (program.turns[0].prompt_tokens, program.turns[0].output_tokens) == (100, 10)
    assert len(repairs) == 2
    assert all("1 token per 3.30 characters, inferred; median error 6%" in r for r in repairs)


def test_the_system_prompt_is_a_prefix() -> None:
    # 30 of 60 characters, so half of the 100 tokens.
    (program,), _ = read(call("1", 0, 1, 100, 20, prompt=said("s" * 30, "u" * 30)))
    assert program.prefix is not None
    assert program.prefix.tokens == 50


def test_messages_are_kept_if_each_prompt_extends_the_one_before() -> None:
    (program,), _ = read(
        call("1", 0, 1, 100, 20, prompt=said("s", "q"), answer="a"),
        call("2", 2, 3, 150, 20, prompt=said("s", "q", "a", "o"), answer="b"),
    )
    assert [message.role for message in program.messages] == [
        "system", "user", "assistant", "user", "assistant"
    ]  # fmt: skip
    assert program.prompt_messages == (2, 4)


def test_failed_calls_and_calls_without_lengths_are_left_out() -> None:
    failed = call("1", 0, 1, 100, 0, failed=True)
    silent = span("2", SpanKind.MODEL, 2, 3)
    (program,), repairs = read(failed, silent, call("3", 4, 5, 100, 20))
    assert len(program.turns) == 1
    assert each_mentions(repairs, "call that failed", "neither token counts nor text")


def test_spans_of_agents_and_tools_alone_are_refused() -> None:
    with pytest.raises(TraceRejected, match=r"no span of a model call"):
        read(agent("a", 0, 9), tool("b", 1, 2, "a"))


def test_model_calls_without_lengths_are_refused() -> None:
    with pytest.raises(TraceRejected, match="no model call has token counts"):
        read(span("1", SpanKind.MODEL, 0, 1))


@pytest.mark.parametrize(
    ("first", "second", "calls"),
    [
        ({}, {}, 1),
        ({"answer_id": "x"}, {}, 1),
        ({"answer_id": "x"}, {"answer_id": "x", "trace": "u", "usage": {"total": 130}}, 1),
        ({"answer_id": "x"}, {"answer_id": "y"}, 2),
        ({}, {"trace": "u"}, 2),
    ],
)
def test_a_call_recorded_twice_is_known_by_its_answers_id_or_its_times_and_counts(
    first: dict[str, Any], second: dict[str, Any], calls: int
) -> None:
    found, _ = read(call("1", 0, 2, 100, 20, **first), call("2", 0.002, 1.998, 100, 20, **second))
    assert sum(len(program.turns) for program in found) == calls


def test_calls_of_one_answer_id_at_different_times_are_different_calls() -> None:
    found, _ = read(
        call("1", 0, 2, 100, 20, answer_id="x"), call("2", 3, 5, 150, 20, answer_id="x")
    )
    assert [turn.prompt_tokens for turn in found[0].turns] == [100, 150]


@pytest.mark.parametrize("trace", ["t", "u"])
def test_overlapping_calls_of_one_answer_id_are_one_only_if_their_counts_agree(trace: str) -> None:
    # Servers that number their answers begin with the same ids.
    first = call("1", 0, 2, 100, 20, answer_id="chatcmpl-7")
    found, _ = read(first, call("2", 1, 3, 5000, 20, answer_id="chatcmpl-7", trace=trace))
    assert [turn.prompt_tokens for program in found for turn in program.turns] == [100, 5000]


@pytest.mark.parametrize(
    ("trace", "end_s", "calls"), [("t", 3, 1), ("t", 1.8, 1), ("u", 3, 2), ("u", 1.8, 1)]
)
def test_in_two_traces_a_call_recorded_twice_is_within_the_other(
    trace: str, end_s: float, calls: int
) -> None:
    first = call("1", 0, 2, 100, 20, answer_id="x")
    found, _ = read(first, call("2", 1, end_s, 100, 20, answer_id="x", trace=trace))
    assert sum(len(program.turns) for program in found) == calls


def test_counts_of_a_call_recorded_twice_agree_if_only_one_has_its_cached_tokens() -> None:
    # 10 + 900 cached, which one instrumentation does not record.
    cached = call("1", 0, 2, 10, 20, answer_id="x", usage={"cached": 900})
    found, _ = read(cached, call("2", 0.1, 1.9, 10, 20, answer_id="x"))
    assert [turn.prompt_tokens for turn in found[0].turns] == [910]


def test_calls_of_one_answer_id_that_two_servers_gave_may_each_be_recorded_twice() -> None:
    found, _ = read(
        call("1", 0, 4, 100, 20, answer_id="x"), call("2", 0.1, 4.1, 500, 20, answer_id="x"),
        call("3", 0.2, 3.9, 100, 20, answer_id="x"), call("4", 0.3, 4, 500, 20, answer_id="x"),
    )  # fmt: skip
    assert sorted(turn.prompt_tokens for p in found for turn in p.turns) == [100, 500]


def test_whether_prompts_include_cached_tokens_is_decided_for_each_provider() -> None:
    found, _ = read(
        call("1", 0, 2, 10, 20, usage={"cached": 900}, provider="anthropic"),
        call("2", 3, 5, 1000, 20, usage={"cached": 900}, provider="openai"),
        call("3", 6, 8, 950, 20, usage={"cached": 940}, provider="anthropic"),
    )
    assert [turn.prompt_tokens for turn in found[0].turns] == [910, 1000, 1890]


def test_a_tool_call_recorded_twice_is_known_by_its_id() -> None:
    twice = [replace(tool(id, 2.1, 2.9), answer_id="k") for id in ("t", "u")]
    found, _ = read(call("1", 0, 2, 100, 20), *twice, call("2", 3, 5, 150, 20))
    assert found[0].turns[0].tools == ("ls",)


def test_tool_calls_with_one_id_of_parallel_sub_agents_are_different_calls() -> None:
    # Each model numbers its tool calls from call_0; one call is within the time of the other.
    tools = [
        replace(tool(of, begin_s, end_s, of), answer_id="call_0")
        for of, begin_s, end_s in (("a", 4, 8), ("b", 5, 7))
    ]
    found, _ = read(
        agent("main", 0, 20),
        call("1", 0, 2, 100, 20, "main"),
        agent("a", 2, 11, "main", name="one"),
        agent("b", 2, 12, "main", name="two"),
        call("a1", 3, 4, 50, 10, "a"), *(replace(each, id=f"{each.id}-ls") for each in tools),
        call("b1", 3, 5, 60, 10, "b"), call("a2", 9, 10, 90, 10, "a"),
        call("b2", 9, 11, 95, 10, "b"), call("2", 13, 14, 150, 20, "main"),
    )  # fmt: skip
    tools_of = {program.id: program.turns[0].tools for program in found}
    assert tools_of["t/one"] == tools_of["t/two"] == ("ls",)


def test_a_tool_call_recorded_twice_is_known_by_its_times_if_the_calls_were_too() -> None:
    tools = [tool("t", 2.1, 2.9), tool("u", 2.102, 2.899), tool("v", 2.1, 2.5)]
    calls = call("1", 0, 2, 100, 20), call("2", 3, 5, 150, 20)
    assert read(*calls, *tools)[0][0].turns[0].tools == ("ls", "ls", "ls")
    twice = [replace(each, id=f"{each.id}'") for each in calls]
    assert read(*calls, *twice, *tools)[0][0].turns[0].tools == ("ls", "ls")


def test_spans_that_are_their_own_ancestors_are_cut() -> None:
    found, repairs = read(
        agent("a", 0, 9, "b"), agent("b", 0, 9, "a"), call("1", 0, 2, 100, 20, "a")
    )
    assert len(found) == 1
    assert each_mentions(repairs, "is its own ancestor")


@st.composite
def any_spans(draw: st.DrawFn) -> list[Span]:
    """Return spans with any times, parents, traces and sessions."""
    count = draw(st.integers(1, 12))
    names = st.sampled_from([*map(str, range(count)), "", "never recorded"])
    spans = []
    for number in range(count):
        start_s, length_s = draw(st.integers(0, 20)), draw(st.integers(0, 10))
        kind = draw(
            st.sampled_from(
                [SpanKind.MODEL, SpanKind.MODEL, SpanKind.TOOL, SpanKind.AGENT, SpanKind.OTHER]
            )
        )
        spans.append(
            span(
                str(number),
                kind,
                start_s,
                start_s + length_s,
                draw(names),
                trace=draw(st.sampled_from("tu")),
                session=draw(st.sampled_from(["", "s"])),
                usage=SpanUsage(draw(st.integers(1, 100)), number + 1),  # no call twice
            )
        )
    return spans


@given(any_spans())
def test_any_spans_give_valid_programs_with_each_innermost_call_once(
    spans: list[Span],
) -> None:
    try:
        found, _ = read(*(replace(span) for span in spans))
    except TraceRejected:
        assert not any(span.kind is SpanKind.MODEL for span in spans)
        return
    tree = SpanTree([replace(span) for span in spans], Repairs())
    assert sum(len(program.turns) for program in found) == len(tree.calls)


def test_the_order_of_spans_does_not_matter() -> None:
    spans = sub_agent("task")
    expected, _ = read(*(replace(span) for span in spans))
    for shift in range(1, len(spans)):
        shuffled = [*spans[shift:], *spans[:shift]][::-1]
        assert read(*(replace(span) for span in shuffled))[0] == expected
