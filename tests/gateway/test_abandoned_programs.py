"""Programs whose clients never end them do not fill the memory of the gateway."""

from __future__ import annotations

import asyncio

import pytest

from harness.gateway import programs
from harness.gateway.client_request import Caller
from harness.gateway.turns import ActiveTurn, Turns
from harness.replay.live_router import LiveRouter
from servers.routers.base import Replica
from servers.routers.sticky import Sticky


def turns_on_two_servers() -> Turns:
    return Turns(
        LiveRouter(Sticky, [Replica(0, 0), Replica(1, 0)], lambda: 0.0), lambda _: None, lambda: 0.0
    )


def limited_turns(monkeypatch: pytest.MonkeyPatch, limit: int = 3) -> Turns:
    def evict(self: programs.GatewayPrograms) -> object:
        return evict_real(self, limit)

    evict_real = programs.GatewayPrograms.evict
    monkeypatch.setattr(programs.GatewayPrograms, "evict", evict)
    return turns_on_two_servers()


async def start(active: Turns, program: str, job: str | None = None) -> ActiveTurn:
    turn = active.start(Caller(program, job), "m")
    await active.route(turn)
    return turn


def end(active: Turns, turn: ActiveTurn) -> None:
    active.end(turn, 0.0, None)


def assigned(active: Turns) -> tuple[set[str], list[int]]:
    """Return the jobs that the router assigns to a server, and their number on each."""
    router = active._router.router
    assert isinstance(router, Sticky)
    assert set(router._home) == set(router._programs)
    assert sum(map(len, router._programs.values())) == len(router._job_of)
    return set(router._home), router._jobs


def test_the_least_recently_active_program_is_evicted(monkeypatch: pytest.MonkeyPatch) -> None:
    async def go() -> None:
        active = limited_turns(monkeypatch)
        for name in ("a", "b", "c", "a", "d"):
            end(active, await start(active, name))
        assert active.programs.ids() == ["c", "a", "d"]
        jobs, per_server = assigned(active)
        assert jobs == {"a", "c", "d"}
        assert sum(per_server) == 3
        assert set(active._router._runner._programs) == {"a", "c", "d"}

    asyncio.run(go())


def test_a_program_with_a_running_turn_is_not_evicted(monkeypatch: pytest.MonkeyPatch) -> None:
    async def go() -> None:
        active = limited_turns(monkeypatch)
        slow = await start(active, "slow")
        for number in range(100):
            end(active, await start(active, f"p{number}"))
        assert "slow" in active.programs.ids()
        assert len(active.programs.ids()) <= 4
        end(active, slow)
        jobs, per_server = assigned(active)
        assert sum(per_server) == len(jobs) <= 4

    asyncio.run(go())


def test_a_job_keeps_its_server_until_all_of_its_programs_have_ended() -> None:
    async def go() -> None:
        active = turns_on_two_servers()
        root, other = await start(active, "root"), await start(active, "other")
        child, late = await start(active, "child", "root"), await start(active, "late", "child")
        for turn in (root, other, child, late):
            end(active, turn)
        assert [turn.replica for turn in (root, other, child, late)] == [0, 1, 0, 0]
        assert late.started.program.job_id == "root", "the job of its parent"
        assert active.remove_program("root") == (root.started.program, [0])
        assert active.remove_program("child") == (child.started.program, [0])
        assert assigned(active) == ({"root", "other"}, [1, 1])
        assert active.remove_program("late") is not None
        assert assigned(active) == ({"other"}, [0, 1])
        assert active.remove_program("late") is None

    asyncio.run(go())
