"""Dynamo's replay files: dependencies become gaps, forks and joins."""

from __future__ import annotations

from typing import Any

from tests.sentences import each_mentions
from tests.traces.formats.test_mooncake import row
from tests.traces.sample import Sample, json_lines, load
from traces import Fork, Provenance
from traces.formats import agentic_mooncake


def sample() -> Sample:
    def request(id: str, session: str, prompt: int, hashes: list[int], *on: Any) -> dict[str, Any]:
        return {"request_id": id, "play_id": "p", "session_id": session, "input_length": prompt,
                "output_length": 20, "hash_ids": hashes, "not_before_ms": 0,
                "dependencies": list(on)}  # fmt: skip

    def after(id: str, relation: str, delay_ms: int) -> dict[str, Any]:
        return {"request_id": id, "trigger": "completion", "relation": relation,
                "delay_ms": delay_ms}  # fmt: skip

    header = {"schema": "dynamo.agentic_mooncake", "version": 2, "block_size": 32}
    lines = json_lines(
        header,
        request("r1", "a", 100, [1, 2, 3, 4]),
        request("c1", "b", 100, [1, 2, 9, 9], after("r1", "spawn", 500)),
        request("r2", "a", 150, [1, 2, 3, 5, 6], after("r1", "sequence", 1500)),
    )
    return Sample({"agentic.jsonl": lines}, (Provenance.UNSTATED,))


SAMPLE = sample()


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
    assert each_mentions(repairs, "starts with its parent's first turn")


def test_version_1_waits_for_requests_and_for_tools() -> None:
    (program,), _ = load(
        agentic_mooncake,
        {"request_id": "a", "session_id": "s", "wait_for": [], **row(600, [1, 2])},
        {"request_id": "b", "session_id": "s", "wait_for": ["a"], "delay": 200,
         "tool_wait_ms": 1300, **row(1100, [1, 2, 3])},
    )  # fmt: skip
    assert program.turns[0].tool_gap_s == 1.5
    assert program.turns[1].kept_tokens == 610
