"""A policy that raises exceptions does not stop the server, and no pin is lost.

The random workloads are those of the differential test, in single steps of vLLM's own scheduler.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Sequence
from typing import Any

import numpy
import pytest

from servers.policies.base import FREE, Costs, Policy, Rank, Request, Retention, pin
from servers.variants import variant
from servers.vllm.plugin.policy_guard import CHECKED, EVENTS, PolicyGuard
from servers.vllm.virtual_time.engine import VirtualVllm
from servers.vllm.virtual_time.stepping import free_blocks
from tests.real.plugin.differential import HOLDING, POLICIES, play
from tests.real.plugin.random_worlds import world
from tests.real.plugin.test_pins import Hold, Server

EVERY = 7
SERVED = [policy for policy in POLICIES if not variant(policy).reference]


def break_each_seventh_call(policy: Policy) -> None:
    """Let the policy's methods raise, alternately before and after they have changed its state."""
    for name in ("finished", *EVENTS, *CHECKED):
        if getattr(type(policy), name) is not getattr(Policy, name):
            setattr(policy, name, _raising(name, getattr(policy, name)))


def _raising(name: str, method: Any) -> Any:
    calls = itertools.count(1)

    def call(*args: Any) -> Any:
        number = next(calls)
        if number % (2 * EVERY) == EVERY:
            raise KeyError(name)
        answer = method(*args)
        if number % (2 * EVERY) == 0:
            raise ZeroDivisionError(name)
        return answer

    return call


class BrokenVllm(VirtualVllm):
    def __init__(self, policy: Policy, *args: Any, **kwargs: Any) -> None:
        super().__init__(policy, *args, strides=False, **kwargs)
        break_each_seventh_call(policy)
        self.vllm.guard = PolicyGuard(policy, self.vllm.runner.rerank_all)


@pytest.mark.parametrize("policy", [*SERVED, HOLDING[2]])
def test_all_turns_are_served_and_all_blocks_freed_although_each_seventh_call_fails(
    policy: str,
) -> None:
    played = world(1, unruly=False)
    outcome = play(played, 1, policy, BrokenVllm)
    vllm = outcome.engine.vllm
    assert policy == "fcfs" or sum(vllm.guard.failures.values()) > 3
    assert outcome.done["finished_programs"] == len(played.programs)
    assert outcome.done["failed_turns"] == 0
    assert len(vllm.runner.pins) == 0
    assert free_blocks(vllm) == played.profile.kv_blocks
    assert not vllm.turns


class LastFirst(Policy):
    """Serves the latest turn first. `rank` fails while `broken` is set."""

    name = "last-first"
    broken = False

    def __init__(self) -> None:
        super().__init__(Costs(prefill_s=float))

    def rank(self, request: Request, now_s: float) -> Rank:
        if self.broken:
            raise RuntimeError("no rank")
        return (-request.arrival_s, request.id)

    def finished(self, request: Request, now_s: float) -> Retention:
        return pin(10.0)


def admitted(server: Server) -> list[str]:
    """Return the programs in order of admission in the next step."""
    before = {r.request_id for r in server.vllm.running}
    server.idle_step()
    turns = [server.vllm.turns.get(r.request_id) for r in server.vllm.running]
    return [t.view.program_id for t in turns if t is not None and t.request_id not in before]


def test_while_rank_fails_turns_are_admitted_in_order_of_arrival_and_nothing_is_pinned() -> None:
    policy = LastFirst()
    server = Server(policy)
    server.vllm.max_num_active_reqs = server.vllm.max_num_running_reqs = 2
    for program in "abcdef":
        server.send(program, 66, 1, is_last=0)
        server.now_s += 1.0
    assert admitted(server) == []  # both have finished
    assert sorted(a.pin.program_id for a in server.vllm.runner.pins) == ["e", "f"]
    policy.broken = True
    server.vllm.runner.rerank_all()
    server.idle_step()
    assert len(server.vllm.runner.pins) == 2, "a and b were served without a pin"
    assert sorted(t.view.program_id for t in server.vllm.turns.values()) == ["c", "d"]
    policy.broken = False
    server.send("g", 66, 1, is_last=0)
    server.idle_step()
    assert sorted(t.view.program_id for t in server.vllm.turns.values()) == ["c"]
    assert server.vllm.guard.failures == {"rank": 1}


@pytest.mark.parametrize(
    "answer",
    [None, pin(1.0).kind, float("nan"), pin(1.0, mean_s=numpy.float32(2))],  # type: ignore[arg-type]
)
def test_a_turn_whose_finished_fails_is_not_pinned_and_the_kind_of_failure_is_logged_once(
    answer: Any, log: list[logging.LogRecord]
) -> None:
    class Wrong(Hold):
        def finished(self, request: Request, now_s: float) -> Retention:
            if answer != answer:
                return Retention("pin", answer)
            return answer  # type: ignore[no-any-return]

    server = Server(Wrong())
    for program in "abc":
        server.send(program, 66, 7, is_last=0)
    server.drain()
    assert server.held == server.pinned == 0
    assert server.vllm.guard.failures == {"finished": 3}
    assert [line.levelname for line in log] == ["ERROR"]
    assert log[0].exc_info is not None


@pytest.mark.parametrize(
    ("method", "wrong"),
    [
        ("rank", lambda *_: ("first", 1)),
        ("rank", lambda *_: 1.0),
        ("victim", lambda *_: FREE),
        ("displaced", lambda head, *_: head),
        ("wake_s", lambda *_: float("nan")),
        ("wake_s", lambda *_: "soon"),
        ("reclaim", lambda *_: ["x"]),
        ("review", lambda pins, *_: (pins[9] for _ in "x")),
        ("woke", lambda *_: 5),
    ],
)
def test_an_answer_that_the_runner_cannot_use_is_a_failure(method: str, wrong: Any) -> None:
    kind = type("Wrong", (Policy,), {"name": "wrong", method: lambda _, *args: wrong(*args)})
    policy = kind(Costs(prefill_s=float))
    turn = Request(1, "a", 0, 0.0, 0.0, 48)
    arguments: dict[str, Sequence[Any]] = {
        "rank": (turn, 0.0),
        "victim": ([turn], 0.0),
        "displaced": (Request(2, "b", 0, 0.0, 0.0, 48), [turn], 0.0),
        "reclaim": ([], turn, 0.0),
        "review": ([], 0, 0.0),
    }
    guard = PolicyGuard(policy, lambda: None)
    call = arguments.get(method, (0.0,))
    answer = getattr(policy, method)(*call)
    assert answer == getattr(Policy(policy.costs), method)(*call)
    assert guard.failures == {method: 1}
