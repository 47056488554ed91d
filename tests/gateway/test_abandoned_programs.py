"""Programs whose clients never end them do not fill the memory of the gateway."""

from __future__ import annotations

import asyncio

import pytest

from harness.gateway import programs, turns
from harness.gateway.client_request import Caller
from harness.gateway.turns import NO_PROMPT, ActiveTurn, Turns


def limited_turns(monkeypatch: pytest.MonkeyPatch, limit: int = 3) -> Turns:
    def evict(self: programs.Programs) -> object:
        return evict_real(self, limit)

    evict_real = programs.Programs.evict
    monkeypatch.setattr(programs.Programs, "evict", evict)
    return Turns(2, lambda _: None, lambda: 0.0)


def end(active: Turns, turn: ActiveTurn) -> None:
    active.end(turn, 0.0, None)


def test_the_least_recently_active_program_is_evicted(monkeypatch: pytest.MonkeyPatch) -> None:
    async def go() -> None:
        active = limited_turns(monkeypatch)
        for name in ("a", "b", "c", "a", "d"):
            end(active, active.start(Caller(name, None), "m"))
        assert active.programs.ids() == ["c", "a", "d"]
        assert set(active._servers._replicas) == {"a", "c", "d"}
        assert sum(active._servers._jobs) == 3

    asyncio.run(go())


def test_a_program_with_a_running_turn_is_not_evicted(monkeypatch: pytest.MonkeyPatch) -> None:
    async def go() -> None:
        active = limited_turns(monkeypatch)
        slow = active.start(Caller("slow", None), "m")
        for number in range(100):
            end(active, active.start(Caller(f"p{number}", None), "m"))
        assert "slow" in active.programs.ids()
        assert len(active.programs.ids()) <= 4
        end(active, slow)
        assert sum(active._servers._jobs) == len(active._servers._replicas) <= 4

    asyncio.run(go())


def test_a_sub_agent_that_ends_after_its_job_leaves_no_assigned_replica() -> None:
    async def go() -> None:
        active = turns.Turns(2, lambda _: None, lambda: 0.0)
        root = active.start(Caller("root", None), "m")
        other = active.start(Caller("other", None), "m")
        child = active.start(Caller("child", "root"), "m")
        late = active.start(Caller("late", "root"), "m")
        for turn in (root, other, child, late):
            end(active, turn)
        assert (root.replica, other.replica, child.replica) == (0, 1, 0)
        assert active.remove_program("root") == (root.started.program, 0)
        assert active.remove_program("child") == (child.started.program, 0), (
            "the replica that has its KV"
        )
        assert set(active._servers._replicas) == {"other"}
        end(active, active.start(Caller("late", "root"), "m"))
        assert "root" in active._servers._replicas
        assert active.remove_program("late") is not None
        assert set(active._servers._replicas) == {"other"}
        assert active._servers._jobs == [0, 1]
        assert not active.programs.has_job("root")

    asyncio.run(go())


def test_a_job_keeps_its_replica_until_its_first_program_ends() -> None:
    async def go() -> None:
        active = turns.Turns(2, lambda _: None, lambda: 0.0)
        for caller in (Caller("root", None), Caller("child", "root")):
            end(active, active.start(caller, "m", NO_PROMPT))
        active.remove_program("child")
        assert set(active._servers._replicas) == {"root"}

    asyncio.run(go())
