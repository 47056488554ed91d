"""With several servers, a job and its sub-agents stay on one; a new job goes to the least busy."""

from __future__ import annotations

import asyncio

from harness.replay.affinity import Affinity
from harness.replay.live import Replica, replay_live
from tests.lines import Line, into
from tests.live.replaying import program
from tests.live.server import Server, serving
from traces import Fork


def test_the_next_job_goes_to_the_replica_with_the_fewest_active_jobs() -> None:
    affinity = Affinity(2)
    assert [affinity.replica_of(job) for job in "abc"] == [0, 1, 0]
    affinity.job_ended("a")
    affinity.job_ended("c")
    assert [affinity.replica_of(job) for job in "de"] == [0, 0]
    assert affinity.replica_of("b") == 1


def test_all_turns_and_sub_agents_of_a_job_are_on_one_server() -> None:
    jobs = [program("a", 3), program("b", 3), program("a/1", 2, fork=Fork("a", 0))]
    servers, lines = [Server(), Server()], list[Line]()

    async def replay() -> None:
        async with serving(servers[0]) as first, serving(servers[1]) as second:
            await replay_live(
                jobs,
                [0.0, 0.0],
                None,
                replicas=[Replica(first), Replica(second)],
                model="m",
                vocabulary=range(2**31),
                seed=0,
                on_turn=into(lines),
            )

    asyncio.run(replay())
    seen = [{name for name, _ in server.prompts} for server in servers]
    assert sorted(seen, key=len) == [{"b"}, {"a", "a/1"}]
    for line in lines:
        assert line["program_id"] in seen[line["replica"]]
