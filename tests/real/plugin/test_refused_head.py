"""The head of the waiting queue that did not get its blocks. A block holds 16 tokens."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any, ClassVar

import pytest
from vllm.v1.request import RequestStatus

from servers.policies.base import Pin, Policy, Rank, Request
from servers.vllm.virtual_time.stepping import request, step
from tests.real.plugin.test_holding import Answers
from tests.real.plugin.test_pins import EXPENSIVE, Hold, Server


class FirstProgram(Policy):
    """Admits the turns of `program` first. `changed` are the ids of turns to rank again."""

    name = "first-program"
    reranks: ClassVar[bool] = True
    program = ""
    changed: Sequence[int] = ()

    def rank(self, request: Request, now_s: float) -> Rank:
        return (request.program_id != self.program, request.id)

    def woke(self, now_s: float) -> Sequence[int]:
        return self.changed


def running(server: Server) -> list[str]:
    return [server.vllm.turns[r.request_id].view.program_id for r in server.vllm.running]


def serve(policy: Policy) -> Server:
    """Of 10 blocks, a running turn has 7; a waiting one needs 5."""
    server = Server(policy, blocks=10)
    server.send("first", 96, 50)
    step(server.vllm)
    server.send("head", 80, 5)
    return server


@pytest.fixture
def server() -> Server:
    return serve(FirstProgram(EXPENSIVE))


def lookups(server: Server) -> list[str]:
    """Return a list that grows with each turn whose blocks are looked up in the cache."""
    manager, looked_up = server.vllm._reclaiming_manager, []
    lookup = manager.get_computed_blocks

    def get_computed_blocks(request: Any, *args: Any) -> Any:
        looked_up.append(request.request_id)
        return lookup(request, *args)

    manager.get_computed_blocks = get_computed_blocks
    return looked_up


def test_it_is_not_looked_at_again_while_turns_arrive_and_leave_behind_it(server: Server) -> None:
    looked_up = lookups(server)
    for _ in range(4):
        step(server.vllm)
    last = server.send("last", 16, 5)
    step(server.vllm)
    step(server.vllm)
    server.vllm.finish_requests(last.request_id, RequestStatus.FINISHED_ABORTED)
    step(server.vllm)
    assert looked_up == ["r1"]


class GivesUp(Hold):
    """Keeps the KV of all turns. For a turn that lacks blocks it gives up what `gives` says."""

    reclaim_when = "pressure"
    gives = False

    def reclaim(self, pins: Collection[Pin], request: Request, now_s: float) -> Iterable[Pin]:
        return pins if self.gives else ()


def test_after_an_event_it_is_admitted_if_the_policy_gives_up_a_pin_for_it() -> None:
    """Of 10 blocks, 2 are pinned, a running turn has 5, and a waiting one needs 4."""
    server = Server(GivesUp(), blocks=10)
    server.send("kept", 32, 5, is_last=0)
    server.drain()
    assert server.held == 2
    server.send("first", 65, 10)
    step(server.vllm)
    server.send("head", 49, 5)
    looked_up = lookups(server)
    step(server.vllm)
    server.send("last", 16, 5)
    step(server.vllm)
    assert looked_up == ["r2"]
    server.policy.gives = True
    server.send("another", 16, 5)
    step(server.vllm)
    assert running(server)[:2] == ["first", "head"]
    assert server.pinned == 0


def test_an_arriving_turn_is_admitted_if_the_policy_now_skips_it() -> None:
    server = serve(Answers())
    step(server.vllm)
    assert running(server) == ["first"]
    server.policy.answers = {"head": "skip"}
    server.send("small", 16, 5)
    step(server.vllm)
    assert running(server) == ["first", "small"]


def test_it_is_admitted_in_the_step_in_which_blocks_are_free_for_it(server: Server) -> None:
    pool = server.vllm.kv_cache_manager.block_pool
    [taken] = pool.get_new_blocks(1)
    server.vllm.finish_requests("r1", RequestStatus.FINISHED_ABORTED)
    server.send("smaller", 48, 5)
    for _ in range(3):
        step(server.vllm)
        assert running(server) == ["first"]
    pool.free_blocks([taken])
    step(server.vllm)
    assert running(server) == ["first", "smaller"]


def test_a_turn_that_an_event_ranks_before_it_is_admitted(server: Server) -> None:
    server.send("small", 16, 5)
    for _ in range(3):
        step(server.vllm)
        assert running(server) == ["first"]
    server.policy.program, server.policy.changed = "small", [3]
    step(server.vllm)
    assert running(server) == ["first"]  # Ranks change with events only.
    server.send("large", 80, 5)
    step(server.vllm)
    assert running(server) == ["first", "small"]


def test_it_is_admitted_in_the_step_in_which_another_turn_has_computed_its_next_block() -> None:
    """Of 8 blocks, 6 of the prompt and one of the answer are in use, and 2 are missing. The answer
    fills its block, the seventh of the waiting prompt, in the 17th step: then 1 is missing."""
    server = Server(FirstProgram(EXPENSIVE), blocks=8)
    server.send("first", 96, 50)
    step(server.vllm)
    tokens = [*server.context["first"][: 96 + 31], 8]
    server.vllm.add_request(request("same", tokens, 5, server.now_s, program_id="head"))
    for _ in range(15):
        step(server.vllm)
        assert running(server) == ["first"]
    step(server.vllm)
    assert running(server) == ["first", "head"]
