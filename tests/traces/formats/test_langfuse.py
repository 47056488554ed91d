"""Langfuse exports: observations, their times and their usage."""

from __future__ import annotations

from typing import Any

import pytest

from tests.traces import span_samples
from tests.traces.sample import Sample, json_lines
from traces import Program, Provenance
from traces.assumptions import Assumptions
from traces.formats.langfuse import load_with, sniff
from traces.lenient import Repairs

SAMPLE = Sample({"a.json": span_samples.langfuse()}, (Provenance.MEASURED,))


def observation(id: str, kind: str, start: int, end: int, **fields: Any) -> dict[str, Any]:
    return {
        "id": id, "traceId": "t", "type": kind, "startTime": f"2026-01-01T00:00:{start:02}.000Z",
        "endTime": f"2026-01-01T00:00:{end:02}.000Z", **fields,
    }  # fmt: skip


def generation(id: str, start: int, end: int, **usage: int) -> dict[str, Any]:
    return observation(id, "GENERATION", start, end, usageDetails=usage)


def read(*documents: Any) -> list[Program]:
    data = json_lines(*documents)
    assert sniff(data)
    return load_with(data, "file", Repairs(), Assumptions())


TWO = [generation("1", 0, 2, input=100, output=20), generation("2", 5, 6, input=150, output=20)]


@pytest.mark.parametrize(
    "documents",
    [
        [{"trace": {"id": "t", "observations": TWO}, "observations": TWO}],
        [{"id": "t", "timestamp": "2026-01-01", "observations": TWO}],
        [[{"id": "t", "observations": TWO}]],
        [TWO],
        TWO,
    ],
    ids=["user interface", "API", "list", "observations", "lines"],
)
def test_every_export_gives_each_observation_once(documents: list[Any]) -> None:
    (program,) = read(*documents)
    assert [turn.prompt_tokens for turn in program.turns] == [100, 150]
    assert program.turns[0].tool_gap_s == 3


def test_a_duration_is_the_difference_of_the_times_not_the_latency() -> None:
    # The same generation with its latency in seconds and in milliseconds.
    for latency in (2, 2000):
        first = {**TWO[0], "latency": latency}
        assert read([first, TWO[1]])[0].turns[0].tool_gap_s == 3


def test_an_agents_usage_is_not_counted_and_its_tools_are_named() -> None:
    agent = observation("a", "AGENT", 0, 9, name="weather", usageDetails={"input": 250})
    tool = observation("b", "TOOL", 2, 4, name="execute_tool get_weather")
    (program,) = read([agent, tool, *TWO])
    assert [turn.prompt_tokens for turn in program.turns] == [100, 150]
    assert program.turns[0].tools == ("get_weather",)


def test_a_session_joins_its_traces() -> None:
    traces = [
        {"id": id, "sessionId": "s", "observations": [{**span, "traceId": id}]}
        for id, span in zip("tu", TWO, strict=True)
    ]
    (program,) = read(traces)
    assert program.id == "s"
    assert len(program.turns) == 2


@pytest.mark.parametrize(
    ("usage", "prompt", "output"),
    [
        ({"input": 40, "input_cached_tokens": 60, "output": 20, "total": 120}, 100, 20),
        ({"input": 100, "prompt_details.cache_read": 60, "output": 20, "total": 120}, 100, 20),
        ({"input": 100, "output": 20, "output_reasoning": 30, "total": 150}, 100, 50),
        ({"input": 5, "output": 845, "total": 2023}, 5, 2018),
    ],
)
def test_usage_of_any_sdk_includes_cached_tokens_and_reasoning(
    usage: dict[str, int], prompt: int, output: int
) -> None:
    (program,) = read([generation("1", 0, 2, **usage)])
    assert (program.turns[0].prompt_tokens, program.turns[0].output_tokens) == (prompt, output)
