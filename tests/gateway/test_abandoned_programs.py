"""Programs whose clients never end them do not fill the memory of the gateway."""

from __future__ import annotations

import asyncio

import pytest

from harness.gateway import programs, turns
from harness.gateway.client_request import Caller
from harness.gateway.turns import NO_PROMPT, ActiveTurn, Turns


def of(monkeypatch: pytest.MonkeyPatch, most: int = 3) -> Turns:
    def evict(self: programs.Programs) -> object:
        return kept(self, most)

    kept = programs.Programs.evict
    monkeypatch.setattr(programs.Programs, "evict", evict)
    return Turns(2, lambda _: None, lambda: 0.0)


def over(made: Turns, turn: ActiveTurn) -> None:
    made.end(turn, 0.0, None)


def test_the_program_heard_of_longest_ago_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    async def go() -> None:
        made = of(monkeypatch)
        for name in ("a", "b", "c", "a", "d"):
            over(made, made.start(Caller(name, None), "m"))
        assert made.programs.ids() == ["c", "a", "d"]
        assert set(made._servers._replicas) == {"a", "c", "d"}
        assert sum(made._servers._jobs) == 3

    asyncio.run(go())


def test_a_program_with_a_turn_under_way_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    async def go() -> None:
        made = of(monkeypatch)
        slow = made.start(Caller("slow", None), "m")
        for number in range(100):
            over(made, made.start(Caller(f"p{number}", None), "m"))
        assert "slow" in made.programs.ids()
        assert len(made.programs.ids()) <= 4
        over(made, slow)
        assert sum(made._servers._jobs) == len(made._servers._replicas) <= 4

    asyncio.run(go())


def test_a_sub_agent_that_ends_after_its_job_leaves_no_place() -> None:
    async def go() -> None:
        made = turns.Turns(2, lambda _: None, lambda: 0.0)
        root = made.start(Caller("root", None), "m")
        other = made.start(Caller("other", None), "m")
        child = made.start(Caller("child", "root"), "m")
        late = made.start(Caller("late", "root"), "m")
        for turn in (root, other, child, late):
            over(made, turn)
        assert (root.replica, other.replica, child.replica) == (0, 1, 0)
        assert made.remove_program("root") == (root.started.program, 0)
        assert made.remove_program("child") == (child.started.program, 0), "where its KV is"
        assert set(made._servers._replicas) == {"other"}
        over(made, made.start(Caller("late", "root"), "m"))
        assert "root" in made._servers._replicas
        assert made.remove_program("late") is not None
        assert set(made._servers._replicas) == {"other"}
        assert made._servers._jobs == [0, 1]
        assert not made.programs.has_job("root")

    asyncio.run(go())


def test_a_place_is_the_jobs_as_long_as_its_first_program() -> None:
    async def go() -> None:
        made = turns.Turns(2, lambda _: None, lambda: 0.0)
        for said in (Caller("root", None), Caller("child", "root")):
            over(made, made.start(said, "m", NO_PROMPT))
        made.remove_program("child")
        assert set(made._servers._replicas) == {"root"}

    asyncio.run(go())
