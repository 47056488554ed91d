"""Clients that never say that a program has ended do not fill the gateway's memory."""

from __future__ import annotations

import asyncio

import pytest

from harness.gateway import programs, turns
from harness.gateway.identity import Said
from harness.gateway.turns import NO_PROMPT, ActiveTurn, Turns


def of(monkeypatch: pytest.MonkeyPatch, most: int = 3) -> Turns:
    def forgotten(self: programs.Programs) -> object:
        return kept(self, most)

    kept = programs.Programs.forgotten
    monkeypatch.setattr(programs.Programs, "forgotten", forgotten)
    return Turns(2, lambda _: None, lambda: 0.0)


def over(made: Turns, turn: ActiveTurn) -> None:
    made.over(turn, 0.0, None)


def test_the_program_heard_of_longest_ago_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    async def go() -> None:
        made = of(monkeypatch)
        for name in ("a", "b", "c", "a", "d"):
            over(made, made.begin(Said(name, None), "m"))
        assert made.programs.ids() == ["c", "a", "d"]
        assert set(made._places._replicas) == {"a", "c", "d"}
        assert sum(made._places._jobs) == 3

    asyncio.run(go())


def test_a_program_with_a_turn_under_way_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    async def go() -> None:
        made = of(monkeypatch)
        slow = made.begin(Said("slow", None), "m")
        for number in range(100):
            over(made, made.begin(Said(f"p{number}", None), "m"))
        assert "slow" in made.programs.ids()
        assert len(made.programs.ids()) <= 4
        over(made, slow)
        assert sum(made._places._jobs) == len(made._places._replicas) <= 4

    asyncio.run(go())


def test_a_sub_agent_that_ends_after_its_job_leaves_no_place() -> None:
    async def go() -> None:
        made = turns.Turns(2, lambda _: None, lambda: 0.0)
        root = made.begin(Said("root", None), "m")
        other = made.begin(Said("other", None), "m")
        child = made.begin(Said("child", "root"), "m")
        late = made.begin(Said("late", "root"), "m")
        for turn in (root, other, child, late):
            over(made, turn)
        assert (root.replica, other.replica, child.replica) == (0, 1, 0)
        assert made.ended("root") == (root.begun.program, 0)
        assert made.ended("child") == (child.begun.program, 0), "where its KV is"
        assert set(made._places._replicas) == {"other"}
        over(made, made.begin(Said("late", "root"), "m"))
        assert "root" in made._places._replicas
        assert made.ended("late") is not None
        assert set(made._places._replicas) == {"other"}
        assert made._places._jobs == [0, 1]
        assert not made.programs.has_job("root")

    asyncio.run(go())


def test_a_place_is_the_jobs_as_long_as_its_first_program() -> None:
    async def go() -> None:
        made = turns.Turns(2, lambda _: None, lambda: 0.0)
        for said in (Said("root", None), Said("child", "root")):
            over(made, made.begin(said, "m", NO_PROMPT))
        made.ended("child")
        assert set(made._places._replicas) == {"root"}

    asyncio.run(go())
