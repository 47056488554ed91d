"""Traces of requests: Mooncake, Applied Compute, LLMServingSim, LMCache, and AIPerf."""

from __future__ import annotations

import json
from typing import Any

import pytest

from servers.basics.errors import TraceRejected
from traces import Fork, Program, Provenance
from traces.formats import agentic_mooncake, mooncake
from traces.lenient import Repairs
from turnstile_formats import aiperf_dag, applied_compute, bailian, llmservingsim, lmcache_agent


def load(format: Any, *rows: object) -> tuple[list[Program], list[str]]:
    repairs = Repairs()
    data = b"".join(json.dumps(row).encode() + b"\n" for row in rows)
    return format.load(data, "f", repairs), repairs.reasons()


def row(prompt: int, hashes: list[int] | None = None, **fields: Any) -> dict[str, Any]:
    extra = {} if hashes is None else {"hash_ids": hashes}
    return {"input_length": prompt, "output_length": 10, **extra, **fields}


def test_requests_of_mooncake_without_sessions_share_blocks_of_512_tokens() -> None:
    programs, repairs = load(
        mooncake, row(1500, [1, 2, 3], timestamp=0), row(1100, [1, 2, 9], timestamp=2500)
    )
    assert [len(program.turns) for program in programs] == [1, 1]
    assert [program.turns[0].prefixes[-1].tokens for program in programs] == [1024, 1024]
    assert programs[1].recorded_start_s == 2.5
    assert repairs == [f"{mooncake.SINGLE_TURNS} (2 times)"]


def test_rows_that_share_their_first_block_are_whole_prompts() -> None:
    (program,), repairs = load(
        mooncake,
        row(1100, [1, 2, 3], session_id="a"), row(1600, [1, 2, 4, 5], session_id="a", delay=1500),
    )  # fmt: skip
    # Both full blocks of the first prompt are repeated, and the second one is long enough for its
    # output too.
    assert [(turn.prompt_tokens, turn.kept_tokens) for turn in program.turns] == [
        (1100, 0), (1600, 1110),
    ]  # fmt: skip
    assert (program.turns[0].tool_gap_s, program.turns[0].gap_provenance) == (1.5, "unstated")
    assert repairs == ["the requests of a session are taken to have their whole prompts (inferred)"]


def test_rows_that_share_no_block_have_only_the_new_part() -> None:
    (a, b), repairs = load(
        mooncake,
        row(1100, [1, 2, 3], session_id="a"), row(1030, [1, 2, 9], session_id="b"),
        row(50, [7], session_id="a", delay=1), row(60, [8], session_id="a", delay=1),
    )  # fmt: skip
    # 1100 + 10 + 50 = 1160; 1160 + 10 + 60 = 1230.
    assert [(turn.prompt_tokens, turn.kept_tokens) for turn in a.turns] == [
        (1100, 0), (1160, 1110), (1230, 1170),
    ]  # fmt: skip
    assert [turn.prefixes[-1].tokens for turn in a.turns] == [1024] * 3
    assert b.turns[0].prefixes == a.turns[0].prefixes
    assert "only the new part" in repairs[0]


def test_sessions_without_hashes_are_whole_prompts_if_they_grow_by_the_output() -> None:
    (whole,), _ = load(mooncake, row(100, session_id="a"), row(150, session_id="a"))
    assert (whole.turns[1].prompt_tokens, whole.turns[1].kept_tokens) == (150, 110)
    (delta,), _ = load(mooncake, row(100, session_id="a"), row(30, session_id="a"))
    assert (delta.turns[1].prompt_tokens, delta.turns[1].kept_tokens) == (140, 110)


def test_without_delay_the_gap_is_inferred_from_the_timestamps() -> None:
    # 1.27 + 0.0149 · 10 + 1.47e-5 · 100 = 1.42 s of 5 s.
    (program,), _ = load(
        mooncake, row(100, session_id="a", timestamp=0), row(150, session_id="a", timestamp=5000)
    )
    assert program.turns[0].tool_gap_s == pytest.approx(3.58, abs=0.001)
    assert program.turns[0].gap_provenance is Provenance.INFERRED


@pytest.mark.parametrize(
    ("rows", "block"),
    [
        ([(6758, 14), (7322, 15)], 512),
        ([(100, 7), (65, 5)], 16),  # 7 blocks of 16 hold up to 112 tokens, 6 only 96
        ([(1024, 3), (1536, 3)], 512),  # fits none
    ],
)
def test_the_block_size_follows_from_lengths_and_numbers_of_hashes(
    rows: list[tuple[int, int]], block: int
) -> None:
    requests = [mooncake.Request(n, 1, list(range(count)), None, None) for n, count in rows]
    assert mooncake.block_tokens(requests, Repairs()) == block


def chat(id: int, parent: int, at_s: float, prompt: int, *hashes: int) -> dict[str, Any]:
    return {
        "chat_id": id, "parent_chat_id": parent, "timestamp": at_s, "turn": 1, "type": "text",
        "input_length": prompt, "output_length": 10, "hash_ids": list(hashes),
    }  # fmt: skip


def test_a_chain_of_bailian_chats_is_one_program() -> None:
    first, second = chat(7, -1, 0, 33, 1, 2), chat(9, 7, 60, 64, 1, 2, 3, 4)
    (program,), _ = load(bailian, first, second)
    assert [turn.kept_tokens for turn in program.turns] == [0, 43]
    # 60 s - (1.27 + 0.0149 · 10 + 1.47e-5 · 33) s
    assert program.turns[0].tool_gap_s == pytest.approx(58.581, abs=0.001)
    assert (program.turns[0].gap_provenance, program.turns[0].tools) == ("inferred", ())


def test_a_second_answer_to_a_bailian_chat_begins_a_program_that_shares_its_prefix() -> None:
    (one, other), repairs = load(
        bailian, chat(1, -1, 0, 32, 1, 2), chat(2, 1, 9, 48, 1, 2, 3), chat(3, 1, 20, 48, 1, 2, 4)
    )
    assert [len(one.turns), len(other.turns)] == [2, 1]
    assert other.turns[0].prefixes[-1].tokens == 32
    assert any("missing or was continued before" in repair for repair in repairs)


def depends(on: str, delay_ms: float, relation: str, trigger: str = "completion") -> dict[str, Any]:
    return {"request_id": on, "delay_ms": delay_ms, "relation": relation, "trigger": trigger}


def node(id: str, session: str, *dependencies: Any, **fields: Any) -> dict[str, Any]:
    return {"request_id": id, "session_id": session, "dependencies": list(dependencies),
            **row(100, [1, 2, 3, 4], **fields)}  # fmt: skip


HEADER = {"schema": "dynamo.agentic_mooncake", "version": 2, "block_size": 25}


def test_sequence_spawn_and_join_become_gaps_forks_and_joins() -> None:
    (root, child), repairs = load(
        agentic_mooncake, HEADER,
        node("a", "root", not_before_ms=4000), node("c", "child", depends("a", 500, "spawn")),
        node("b", "root", depends("a", 100, "sequence"), depends("c", 2000, "join")),
    )  # fmt: skip
    assert root.recorded_start_s == 4.0
    assert (root.turns[0].tool_gap_s, root.turns[0].tools) == (2.0, ("tool_use",))
    assert child.fork == Fork("root", 0, 0.5, 1, Provenance.UNSTATED)
    assert child.recorded_start_s is None
    assert repairs == []


def test_sessions_are_called_after_their_play_only_if_plays_use_the_same_ids() -> None:
    for ids, named in ((("a", "b"), ["a", "b"]), (("a", "a"), ["p/a", "q/a"])):
        rows = [node(play, id) | {"play_id": play} for play, id in zip("pq", ids, strict=True)]
        programs, _ = load(agentic_mooncake, HEADER, *rows)
        assert [program.id for program in programs] == named


def test_a_spawn_at_dispatch_starts_after_the_turn_before() -> None:
    # The second request of the root is sent 3 s after the first response; the child 1 s later.
    (_, child), _ = load(
        agentic_mooncake, HEADER, node("a", "root"),
        node("b", "root", depends("a", 3000, "sequence")),
        node("c", "child", depends("b", 1000, "spawn", "dispatch")),
    )  # fmt: skip
    assert child.fork == Fork("root", 0, 4.0, None, Provenance.INFERRED)


def test_a_parent_without_earlier_turns_ends_its_turn_before_the_spawn() -> None:
    (_, child), repairs = load(
        agentic_mooncake, HEADER, node("a", "root"),
        node("c", "child", depends("a", 5, "spawn", "dispatch")),
    )  # fmt: skip
    assert child.fork == Fork("root", 0, 0.005, None, Provenance.INFERRED)
    assert repairs == ["a sub-agent that starts with its parent's first turn: starts after it"]


def test_version_1_waits_for_requests_and_for_tools() -> None:
    (program,), _ = load(
        agentic_mooncake,
        {"request_id": "a", "session_id": "s", "wait_for": [], **row(600, [1, 2])},
        {"request_id": "b", "session_id": "s", "wait_for": ["a"], "delay": 200,
         "tool_wait_ms": 1300, **row(1100, [1, 2, 3])},
    )  # fmt: skip
    assert program.turns[0].tool_gap_s == 1.5
    assert program.turns[1].kept_tokens == 610


def test_a_session_of_applied_compute_has_a_turn_per_tool_call_and_a_final_one() -> None:
    (program,), _ = load(
        applied_compute,
        {"num_turns": 2, "input_prompt_length": 16, "assistant_response_length": [4, 5],
         "tool_call_output_length": [8, 9], "tool_call_latency": [0.01, 2],
         "final_assistant_response_length": 6},
    )  # fmt: skip
    # 16; 16 + 4 + 8 = 28; 28 + 5 + 9 = 42.
    assert [(t.prompt_tokens, t.output_tokens, t.kept_tokens) for t in program.turns] == [
        (16, 4, 0), (28, 5, 20), (42, 6, 33),
    ]  # fmt: skip
    assert [t.tool_gap_s for t in program.turns] == [0.01, 2.0, 0.0]


def test_the_next_sub_request_starts_when_the_tool_has_ended() -> None:
    (program,), _ = load(
        llmservingsim,
        {"session_id": "a", "arrival_time_ns": 5_000_000_000, "sub_requests": [
            {"input_toks": 100, "output_toks": 10, "tool_duration_ns": 1_500_000_000},
            {"input_toks": 150, "output_toks": 10, "tool_duration_ns": 0}]},
    )  # fmt: skip
    assert program.recorded_start_s == 5.0
    assert (program.turns[0].tool_gap_s, program.turns[1].kept_tokens) == (1.5, 110)


def test_recorded_token_ids_share_blocks_of_16() -> None:
    prompts = [list(range(40)), [*range(35), 99, 98]]
    programs, _ = load(
        llmservingsim,
        *({"input_toks": len(ids), "output_toks": 1, "arrival_time_ns": 0, "input_tok_ids": ids}
          for ids in prompts),
    )  # fmt: skip
    assert [program.turns[0].prefixes[-1].tokens for program in programs] == [32, 32]


def call(at_us: int, prompt: str, answer: str) -> dict[str, Any]:
    return {"timestamp": 1_760_000_000_000_000 + at_us, "input": prompt, "output": answer,
            "session_id": "s"}  # fmt: skip


def test_lengths_of_texts_are_inferred_and_calls_sorted_by_their_microseconds() -> None:
    (program,), repairs = load(
        lmcache_agent, call(9_000_000, "x" * 990, "z" * 33), call(0, "x" * 660, "y" * 66)
    )
    assert [(t.prompt_tokens, t.output_tokens) for t in program.turns] == [(200, 20), (300, 10)]
    # 1.27 + 0.0149 · 20 + 1.47e-5 · 200 = 1.571 s of 9 s.
    assert program.turns[0].tool_gap_s == pytest.approx(7.429, abs=0.001)
    # The second prompt repeats the first one, but not its answer.
    assert program.turns[1].kept_tokens == 200
    assert len(repairs) == 2


def test_an_answer_that_follows_its_prompt_in_the_next_one_is_kept() -> None:
    prompt, answer = "x" * 660, "y" * 66
    (program,), _ = load(
        lmcache_agent, call(0, prompt, answer), call(9, prompt + answer + "z" * 330, "")
    )
    assert program.turns[1].kept_tokens == 220


def turn(content: str, **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content}], "max_tokens": 10, **fields}


def test_a_turn_of_a_dag_adds_its_messages_to_the_context() -> None:
    (program,), _ = load(
        aiperf_dag, {"session_id": "a", "turns": [turn("x" * 330), turn("y" * 66, delay=1500)]}
    )
    # 330 / 3.3 = 100; 100 + 10 + 66 / 3.3 = 130.
    assert [(t.prompt_tokens, t.kept_tokens) for t in program.turns] == [(100, 0), (130, 110)]
    assert program.turns[0].tool_gap_s == 1.5


def test_a_fork_inherits_the_context_and_a_spawn_starts_anew_and_is_joined() -> None:
    spawn = {"children": ["s"], "join_at": 1}
    (root, spawned, forked), _ = load(
        aiperf_dag,
        {"session_id": "root", "turns": [turn("x" * 330, spawns=[spawn]),
                                         turn("y" * 66, forks=["f"])]},
        {"session_id": "s", "turns": [turn("z" * 33)]},
        {"session_id": "f", "turns": [turn("z" * 33, delay=2000)]},
    )  # fmt: skip
    assert spawned.fork == Fork("root", 0, 0.0, 1)
    assert spawned.turns[0].prompt_tokens == 10
    assert forked.fork == Fork("root", 1, 2.0, None)
    assert forked.turns[0].prompt_tokens == 130 + 10 + 10
    assert [(p.id, p.tokens) for p in forked.turns[0].prefixes] == [("root:context", 140)]
    assert [t.prefixes[0].tokens for t in root.turns] == [100, 130]


def test_a_conversation_that_starts_itself_is_refused() -> None:
    with pytest.raises(TraceRejected, match="is started by itself; remove the cycle"):
        load(
            aiperf_dag,
            {"session_id": "a", "turns": [turn("x", forks=["b"])]},
            {"session_id": "b", "turns": [turn("x", forks=["a"])]},
        )


@pytest.mark.parametrize(
    "format",
    [mooncake, bailian, agentic_mooncake, applied_compute, llmservingsim, lmcache_agent,
     aiperf_dag],
)  # fmt: skip
def test_a_file_without_a_usable_request_is_refused(format: Any) -> None:
    with pytest.raises(TraceRejected, match="no "):
        load(format, {"session_id": "s", "turns": []})
