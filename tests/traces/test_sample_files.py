"""Every file of the public samples beside the checkout is read, or refused with the true reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from servers.basics.errors import InvalidTrace
from traces import TraceSet, read_traces
from traces.check import check

SAMPLES = Path(__file__).parents[3] / "shared/formats"
READ = {
    "tracelab/tracelab__example_sessions__sanitized__round_trace.jsonl": ("tracelab", 2, 19),
    "dynamo/agentic-mooncake.jsonl": ("agentic-mooncake", 2, 3),
    "dynamo/applied-compute-agentic.jsonl": ("applied-compute", 1, 3),
    "dynamo/dynamo-agentic.jsonl": ("dynamo", 2, 4),
    "dynamo/mooncake-delta.jsonl": ("mooncake", 1, 2),
    "mooncake/mooncake__FAST25-release__traces__conversation_trace.jsonl": ("mooncake", 2000, 2000),
    "llmservingsim/llmss__workloads__example_trace.jsonl": ("llmservingsim", 10, 10),
    "llmservingsim/llmss__workloads__workload_me2_01_mixed.jsonl": ("llmservingsim", 608, 608),
    "lmcache_agent/lmcache__miniswe__189f0222310bd8eee310f204e91b9c84.jsonl":
        ("lmcache-agent", 1, 6),
    "lmcache_agent/lmcache__taubench__6c2cc6b04100449b91974282f777923e.jsonl":
        ("lmcache-agent", 1, 31),
    "aiperf/fixture__mixed_full.dag.jsonl": ("aiperf-dag", 3, 6),
    "aiperf/fixture__spawn_join.dag.jsonl": ("aiperf-dag", 2, 5),
    "aiperf/inference-day-2026__dataset.first13.jsonl": ("mooncake", 1, 13),
    "aiperf/production_trace.jsonl": ("mooncake", 10, 10),
    "weka/weka__traces__trace_0022.json": ("weka", 1, 7),
    "weka/weka__traces__trace_0026.json": ("weka", 1, 3),
    "weka/weka__traces__trace_0057.json": ("weka", 1, 8),
    "weka/weka__traces__trace_0277.json": ("weka", 5, 53),
}  # fmt: skip
"""The format, and the number of programs and of turns."""
REFUSED = {
    "azure_copilot/schema.json": "looks like the schema of Azure's Copilot data set",
    "tracelab/tracelab__example_sessions__claude__trace.json": "a printout of records between",
    "tracelab/tracelab__example_sessions__sanitized__round_trace.expanded.json":
        "a printout of records between",
}  # fmt: skip
FOLDERS = {name.partition("/")[0] for name in READ | REFUSED}


def read(name: str) -> TraceSet:
    path = SAMPLES / name
    if not path.exists():
        pytest.skip(f"{path} is not here")
    return read_traces(path)


@pytest.mark.parametrize("name", READ)
def test_a_sample_is_read(name: str) -> None:
    loaded = read(name)
    format, programs, turns = READ[name]
    assert list(loaded.formats.values()) == [format]
    assert len(loaded.programs) == programs
    assert sum(len(program.turns) for program in loaded.programs) == turns
    check(loaded.programs)


@pytest.mark.parametrize("name", REFUSED)
def test_a_file_that_is_no_trace_is_refused_with_the_true_reason(name: str) -> None:
    with pytest.raises(InvalidTrace) as error:
        read(name)
    assert REFUSED[name] in str(error.value)


def test_every_sample_file_of_these_formats_is_tested() -> None:
    found = {
        path.relative_to(SAMPLES).as_posix()
        for folder in FOLDERS
        for path in (SAMPLES / folder).glob("*.json*")
    }
    assert found <= {*READ, *REFUSED}


def test_delta_rows_of_a_real_session_sum_to_whole_prompts() -> None:
    (program,) = read("aiperf/inference-day-2026__dataset.first13.jsonl").programs
    # 42,277 + 335 + 1,855 new tokens; the delay of the second row is 12,219.3 ms.
    second = program.turns[1]
    assert (second.prompt_tokens, second.kept_tokens) == (44_467, 42_612)
    assert program.turns[0].tool_gap_s == 12.219


def test_a_real_round_trace_has_the_gaps_that_its_tools_took() -> None:
    claude, codex = read(
        "tracelab/tracelab__example_sessions__sanitized__round_trace.jsonl"
    ).programs
    # Bash and WebSearch: from the last tool call at 05:40:31.647 to the result at 05:40:50.938.
    assert claude.turns[0].tool_gap_s == 19.291
    assert claude.turns[0].tools == ("Bash", "WebSearch")
    # A person answered 19.913 s after the text of the fifth round.
    assert (claude.turns[4].tools, claude.turns[4].tool_gap_s) == ((), 19.913)
    # The output of the first round has reasoning, so only what was cached is certainly repeated.
    assert codex.turns[1].kept_tokens == 9_600


def test_forks_of_a_real_dag_inherit_the_context_of_their_parent() -> None:
    programs = {p.id: p for p in read("aiperf/fixture__mixed_full.dag.jsonl").programs}
    root, helper, finisher = programs["root"], programs["helper"], programs["finisher"]
    assert helper.fork is not None
    assert (helper.fork.after_turn, helper.fork.joined_before_turn) == (0, 2)
    inherited = finisher.turns[0].prefixes[-1]
    assert inherited.id == "root:context"
    assert inherited.tokens == root.turns[2].context_tokens
