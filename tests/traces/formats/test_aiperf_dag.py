"""AIPerf's conversations that fork, spawn and join."""

from __future__ import annotations

from typing import Any

import pytest

from servers.basics.errors import TraceRejected
from tests.traces.sample import Sample, json_lines, load
from traces import Fork, Provenance
from turnstile_formats import aiperf_dag


def sample() -> Sample:
    def turn(content: str, role: str = "user", **fields: Any) -> dict[str, Any]:
        return {"messages": [{"role": role, "content": content}], "max_tokens": 20, **fields}

    root = {"session_id": "root", "turns": [
        turn("You plan. " * 20, "system", forks=["child"]), turn("Go on.", delay=1500),
    ]}  # fmt: skip
    lines = json_lines(root, {"session_id": "child", "turns": [turn("Summarise.")]})
    return Sample({"a.dag.jsonl": lines}, (Provenance.UNSTATED,))


SAMPLE = sample()


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
    with pytest.raises(TraceRejected, match="remove the cycle"):
        load(
            aiperf_dag,
            {"session_id": "a", "turns": [turn("x", forks=["b"])]},
            {"session_id": "b", "turns": [turn("x", forks=["a"])]},
        )
