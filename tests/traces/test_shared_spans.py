"""Recorded files of others: each is read with the expected calls, or refused with its reason.

The files lie beside the checkout and are never part of it; without them, the tests are skipped.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from statistics import median

import pytest

from servers.basics.errors import InvalidTrace
from traces import read_traces
from traces.formats.mini_swe_agent import read_trajectory
from traces.lenient import Repairs
from traces.token_counts import CHARACTERS_PER_TOKEN

FORMATS = Path(__file__).parents[3] / "shared" / "formats"

pytestmark = pytest.mark.skipif(not FORMATS.is_dir(), reason=f"no {FORMATS}")

OPENINFERENCE = "openinf__js__packages__openinference-genai__"
PART = "no span with a start and an end"
NO_TIMES = "tool times not recorded; --synthesise-gaps"
EXPECTED: dict[str, dict[str, list[int] | str]] = {
    "otel_genai": {
        # The turns of each program: first the sessions', then those of sub-agents.
        "infperf__advanced__code_review_workflow.json": [9, 1, 1, 1, 1, 1, 1],
        "infperf__advanced__fan_in_dependencies.json": [3, 1],
        "infperf__advanced__multi_agent_research.json": [8, 1, 1, 1, 1],
        "infperf__advanced__parallel_requests.json": [4, 1],
        "infperf__simple__simple_chain.json": [3],
        f"{OPENINFERENCE}openinference_client_span_tool_calls.json": PART,
        f"{OPENINFERENCE}otel_genai_client_span_tool_calls.json": PART,
        f"{OPENINFERENCE}otel_genai_tool_execution_span.json": PART,
        "strands__adk_live_spans.json": [2],
        "strands__claude_live_spans.json": "no span of a model call, only of agents, tools",
        "strands__openai_agents_genai_live_spans.json": [3, 2, 3],
        "strands__otel_genai_convention_spans.json": [2],
        "strands__smolagents_live_spans.json": [2],
    },
    "langfuse": {
        "langfuse__claude-agent-2025-12-22.trace.json": [3, 1],
        "langfuse__google-adk-2025-08-28.trace.json": [2],
        "langfuse__microsoft-agent-2025-12-17.trace.json": [2],
        "langfuse__openai-agents-2025-09-30.trace.json": [2],
        "langfuse__pydantic-ai-with-gemini-2025-12-24.trace.json": [1],
    },
    "exgentic": {
        f"exgentic__{name}": "neither token counts nor times, only the steps"
        for name in (
            "swebench__results.json",
            "swebench__session.json",
            "swebench__trajectory.jsonl",
            "tau2__results.json",
        )
    },
    "atif": {
        "openagents__apps__qa-runner__samples__login-trace__trajectory.json": NO_TIMES,
        "scout__atif_source__terminus_2_hello-world-context-summarization-linear-history"
        ".trajectory.json": NO_TIMES,
        "scout__atif_source__terminus_2_hello-world-context-summarization-linear-history"
        ".trajectory.cont-1.json": NO_TIMES,
    },
    "swe_agent": {
        "sweagent__ctf__crypto__BabyEncryption.traj": NO_TIMES,
        "sweagent__ctf__rev__rock.traj": NO_TIMES,
        "sweagent__replay__marshmallow-code__marshmallow-1867__function_calling__install-1"
        "__marshmallow-code__marshmallow-1867.traj": [11],
    },
    "mlperf_endpoints": {"agentic_coding_2.5h.lines349-662.jsonl": [52, 53, 52]},
}


@pytest.mark.parametrize("folder", EXPECTED)
def test_each_file_has_an_expectation(folder: str) -> None:
    found = {path.name for path in (FORMATS / folder).iterdir() if path.suffix != ".md"}
    assert found == set(EXPECTED[folder])


@pytest.mark.parametrize(
    ("folder", "name"), [(folder, name) for folder, names in EXPECTED.items() for name in names]
)
def test_each_file_is_read_or_refused_with_its_reason(folder: str, name: str) -> None:
    expected = EXPECTED[folder][name]
    if isinstance(expected, str):
        with pytest.raises(InvalidTrace, match=re.escape(expected)):
            read_traces(FORMATS / folder / name)
    else:
        loaded = read_traces(FORMATS / folder / name)
        assert [len(program.turns) for program in loaded.programs] == expected


@pytest.mark.parametrize(("folder", "turns"), [("atif", [6, 4, 3]), ("swe_agent", [15, 12, 11])])
def test_files_without_tool_times_are_read_with_synthesised_gaps(
    folder: str, turns: list[int]
) -> None:
    loaded = read_traces(FORMATS / folder, synthesise_gaps="mini-swe-agent")
    assert loaded.rejections == ()
    assert [len(program.turns) for program in loaded.programs] == turns


def test_the_totals_of_a_recorded_trajectory_are_those_of_its_own_summary() -> None:
    # final_metrics of the two parts: 2,252 prompt tokens in the first, which are its own.
    loaded = read_traces(FORMATS / "atif", synthesise_gaps="mini-swe-agent")
    first = next(p for p in loaded.programs if p.source.endswith("history.trajectory.json"))
    assert sum(turn.prompt_tokens for turn in first.turns) == 2252
    assert sum(turn.output_tokens for turn in first.turns) == 160


def test_the_default_characters_per_token_have_the_documented_error() -> None:
    errors = []
    for path in sorted((FORMATS.parent / "data" / "mini-swe-agent").glob("*.json"))[:10]:
        (program,) = read_trajectory(json.loads(path.read_bytes()), "a", Repairs())
        for turn, end in zip(program.turns, program.prompt_messages, strict=True):
            characters = sum(len(message.content) for message in program.messages[:end])
            counted = characters / CHARACTERS_PER_TOKEN
            errors.append(abs(counted - turn.prompt_tokens) / turn.prompt_tokens)
    assert 0.03 <= median(errors) <= 0.09  # 6% over all 80
