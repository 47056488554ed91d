"""Weka sessions: times, kept blocks and sub-agents, compared with manual calculations."""

from __future__ import annotations

import json
from typing import Any

import pytest

from servers.basics.errors import TraceRejected
from tests.sentences import each_mentions, mentions
from tests.traces.sample import Sample
from traces import Fork, Program, Provenance
from traces.formats.weka import read_session as load
from traces.lenient import Repairs


def sample() -> Sample:
    def request(t: float, prompt: int, hash_ids: list[int], **fields: Any) -> dict[str, Any]:
        return {"t": t, "type": "n", "in": prompt, "out": 20, "hash_ids": hash_ids,
                "stop": "tool_use", **fields}  # fmt: skip

    def sub_agent(name: str, last_block: int) -> dict[str, Any]:
        return {"t": 9, "type": "subagent", "agent_id": name, "duration_ms": 5000,
                "requests": [request(0, 200, [7, 8, last_block], api_time=2.0)]}  # fmt: skip

    document = {
        "id": "s", "block_size": 64, "hash_id_scope": "local",
        "requests": [
            request(0, 150, [1, 2], api_time=2.0),
            sub_agent("a", 10),
            sub_agent("b", 11),
            request(20, 300, [1, 2, 3, 4]),
            request(60, 400, [1, 2, 3, 4, 5]),
        ],
    }  # fmt: skip
    return Sample(
        {"s.json": json.dumps(document).encode()}, (Provenance.MEASURED, Provenance.INFERRED)
    )


SAMPLE = sample()


def request(
    t: float | None, prompt: int, output: int, hashes: list[int] | None, **fields: Any
) -> dict[str, Any]:
    return {
        "t": t, "type": "n", "in": prompt, "out": output, "hash_ids": hashes, "api_time": 5.0,
        "input_types": ["tool_result"], "stop": "tool_use", **fields,
    }  # fmt: skip


def session(*requests: dict[str, Any], **fields: Any) -> tuple[list[Program], list[str]]:
    document = {
        "id": "s", "block_size": 64, "hash_id_scope": "local", "requests": list(requests), **fields,
    }  # fmt: skip
    repairs = Repairs()
    return load(document, "file", repairs), repairs.reasons()


def test_the_gap_lasts_from_the_response_to_the_next_request() -> None:
    (program,), repairs = session(
        request(0, 128, 10, [1, 2]), request(17, 200, 10, [1, 2, 3], think_time=12.0)
    )
    first = program.turns[0]
    assert first.tool_gap_s == 12.0
    assert first.gap_provenance is Provenance.MEASURED
    assert first.tools == ("tool_use",)
    assert repairs == []


def test_a_think_time_that_contradicts_the_timestamps_is_ignored() -> None:
    (program,), _ = session(
        request(0, 128, 10, [1, 2]), request(17, 200, 10, [1, 2, 3], think_time=300.0)
    )
    assert program.turns[0].tool_gap_s == 12.0


def test_without_api_time_generation_is_estimated_and_the_gap_inferred() -> None:
    # 1.27 + 0.0149 · 200 + 1.47e-5 · 100,000 = 5.72 s; the next request is sent after 20 s.
    silent = request(0, 100_000, 200, [1], stop="", api_time=None)
    (program,), repairs = session(silent, request(20, 100_300, 10, [1]))
    assert program.turns[0].tool_gap_s == pytest.approx(14.28)
    assert program.turns[0].gap_provenance is Provenance.INFERRED
    assert program.turns[0].tools == ("tool_use",)
    assert len(repairs) == 2


def test_a_request_before_the_estimated_end_of_the_previous_response_has_no_gap() -> None:
    # The estimate is 1.27 + 0.0149 · 90 + 1.47e-5 · 128 = 2.6 s.
    (program,), repairs = session(
        request(0, 128, 90, [1, 2], api_time=None), request(0.2, 300, 10, [1, 2, 3])
    )
    assert program.turns[0].tool_gap_s == 0
    assert mentions(repairs, "before the previous response: gap set to 0")


def test_the_gap_after_an_end_of_turn_is_a_pause_of_the_user() -> None:
    (program,), _ = session(
        request(0, 128, 10, [1, 2], stop="end_turn"), request(65, 200, 10, [1, 2, 3])
    )
    assert program.turns[0].tools == ()
    assert program.turns[0].tool_gap_s == 60.0


@pytest.mark.parametrize(
    ("prompt", "hashes", "kept"),
    [
        (300, [1, 2, 3, 4], 180),  # all of 150 + 30
        (170, [1, 2], 150),  # longer, but by less than the answer: it was rewritten
        (300, [1, 9, 3, 4], 64),  # differs from the second block on
        (300, [9, 2, 3, 4], 0),
        (128, [1, 2], 127),  # shorter: the same blocks, minus the token to compute
    ],
)
def test_kept_tokens_follow_from_lengths_and_block_hashes(
    prompt: int, hashes: list[int], kept: int
) -> None:
    (program,), _ = session(request(0, 150, 30, [1, 2]), request(9, prompt, 10, hashes))
    assert program.turns[1].kept_tokens == kept


def sub_agent(name: str, end: float, duration_ms: float, *requests: Any) -> dict[str, Any]:
    return {
        "type": "subagent", "t": end, "duration_ms": duration_ms, "agent_id": name,
        "requests": list(requests),
    }  # fmt: skip


def test_sub_agents_fork_after_the_previous_turn_and_join_before_the_next() -> None:
    # The parent answers at 5 s; both start at 10 s. A's last response is at 10 + 25 + 5 = 40 s,
    # B's at 10 + 15 + 5 = 30 s, and the parent continues at 48 s: 8 s after the later one.
    (parent, a, b), repairs = session(
        request(0, 128, 10, [1, 2]),
        sub_agent("a", 42.0, 32_000, request(0, 130, 9, [7, 8]), request(25, 200, 9, [7, 8, 11])),
        sub_agent("b", 33.0, 23_000, request(0, 140, 9, [7, 8]), request(15, 200, 9, [7, 8, 12])),
        request(48, 200, 10, [1, 2, 3], think_time=43.0),
    )
    assert parent.turns[0].tool_gap_s == pytest.approx(8.0)
    fork = Fork("s", 0, 5.0, 1, Provenance.MEASURED)
    assert (a.id, a.fork, b.id, b.fork) == ("s/a", fork, "s/b", fork)
    assert a.turns[0].tool_gap_s == 20.0
    assert repairs == []


def test_sub_agents_share_the_common_first_blocks_of_their_prompts() -> None:
    (parent, a, b), _ = session(
        request(0, 128, 10, [1, 2]),
        sub_agent("a", 20.0, 10_000, request(0, 200, 9, [7, 8, 10])),
        sub_agent("b", 20.0, 10_000, request(0, 200, 9, [7, 8, 11])),
    )
    assert parent.prefix is None
    assert a.prefix == b.prefix
    assert a.prefix is not None
    assert a.prefix.tokens == 128


def test_the_parent_does_not_wait_for_a_sub_agent_that_outlives_its_next_turn() -> None:
    (_, child), repairs = session(
        request(0, 128, 10, [1, 2]),
        request(20, 200, 10, [1, 2, 3]),
        sub_agent("a", 50.0, 40_000, request(0, 200, 9, [7])),
        request(60, 300, 10, [1, 2, 3, 4]),
    )
    assert child.fork == Fork("s", 0, 5.0, None, Provenance.MEASURED)
    assert each_mentions(repairs, "in parallel with its parent")


def test_a_sub_agent_can_have_sub_agents() -> None:
    inner = sub_agent("b", 9.0, 3_000, request(0, 100, 1, [9]))
    programs, _ = session(
        request(0, 128, 10, [1, 2]), sub_agent("a", 30.0, 20_000, request(0, 200, 9, [7]), inner)
    )
    assert [p.id for p in programs] == ["s", "s/a", "s/a/b"]
    assert programs[2].fork is not None
    assert programs[2].fork.program_id == "s/a"


def test_invalid_values_are_repaired_and_reported() -> None:
    (program,), repairs = session(
        request(0, 128, 0, [1, 2]),
        request(9, 0, 10, []),
        request(None, 200, 10, None),
        block_size=None,
    )
    assert [turn.output_tokens for turn in program.turns] == [1, 10]
    assert each_mentions(
        repairs,
        "block_size is None: set to 64 tokens",
        "0 output tokens: set to 1",
        "0 prompt tokens: left out",
        "t = None: put after",
        "without hash_ids: assumed to extend the previous one",
    )


@pytest.mark.parametrize("requests", [[], None, {}, "x", [1, None], [{"type": "n"}]])
def test_a_session_without_usable_requests_is_refused(requests: object) -> None:
    with pytest.raises(TraceRejected, match="no request with prompt tokens"):
        load({"requests": requests}, "file", Repairs())
