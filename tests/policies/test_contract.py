"""What holds for every policy, ours and others', whatever turns do."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from policy_turns import COSTS, TIERED

from servers.policies.base import Future, Oracle, Pin, Policy, Request
from servers.policies.contract import check
from servers.variants import make_policy, variants

POLICIES = sorted({variant.policy for variant in variants("all")}, key=lambda p: p.name)
PROGRAMS = ("a", "b", "c")

moves = st.lists(
    st.tuples(
        st.sampled_from(["arrive", "arrive", "schedule", "schedule", "finish", "finish",
                         "preempt", "abort", "end", "review"]),
        st.integers(0, 50),
        st.sampled_from([0.0, 0.001, 0.3, 1.0, 2.5, 40.0]),
        st.sampled_from([(), ("ls",), ("cd", "make"), ("git",), ("",)]),
        st.sampled_from([True, False, None]),
    ),
    max_size=60,
)  # fmt: skip


class Engine:
    """Turns that arrive, run, lose their KV, end and vanish in any legal order, without memory."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.now = 0.0
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.pins: dict[str, Pin] = {}
        self.seen: dict[str, tuple[int, float]] = {}
        self.ids = 0

    def play(self, move: str, which: int, after: float, tools: Any, last: bool | None) -> None:
        self.now += after
        if move == "arrive":
            self.arrive(PROGRAMS[which % len(PROGRAMS)], last, 100 * which)
        elif move == "schedule" and self.waiting:
            request = min(self.waiting, key=lambda r: self.policy.rank(r, self.now))
            self.waiting.remove(request)
            self.running.append(request)
            self.policy.scheduled(request, self.now, which)
            request.preempted = request.pinned = False
            self.pins.pop(request.program_id, None)
        elif move == "preempt" and self.running:
            request = self.policy.victim(self.running, self.now)
            self.running.remove(request)
            self.policy.preempted(request, self.now)
            request.preempted = True
            self.waiting.append(request)
        elif move == "finish" and self.running:
            request = self.running.pop(which % len(self.running))
            request.tools, request.output_tokens = tools, which
            self.finish(request)
        elif move == "abort" and self.waiting + self.running:
            request = (self.waiting + self.running)[which % len(self.waiting + self.running)]
            (self.waiting if request in self.waiting else self.running).remove(request)
            self.policy.aborted(request, self.now)
        elif move == "end":
            self.end(PROGRAMS[which % len(PROGRAMS)])
        elif move == "review":
            for pin in list(self.policy.review(list(self.pins.values()), which, self.now)):
                del self.pins[pin.program_id]

    def arrive(self, program: str, last: bool | None, tokens: int) -> None:
        index, first = self.seen.get(program, (0, self.now))
        self.seen[program] = (index + 1, first)
        request = Request(self.ids, program, index, self.now, first, tokens, last)
        request.pinned = program in self.pins
        self.ids += 1
        if isinstance(self.policy, Oracle):
            self.policy.foresee(request, Future(None if last else 1.0, tokens, 50))
        self.policy.arrived(request, self.now)
        self.waiting.append(request)

    def finish(self, request: Request) -> None:
        retention = self.policy.finished(request, self.now)
        self.pins.pop(request.program_id, None)
        assert retention.ttl_s >= 0
        if retention.kind == "pin" and not request.ends_program:
            tokens = request.prompt_tokens + request.output_tokens
            until = self.now + retention.ttl_s
            self.pins[request.program_id] = Pin(request, tokens, self.now, until)

    def end(self, program: str) -> None:
        for request in [r for r in self.waiting + self.running if r.program_id == program]:
            (self.waiting if request in self.waiting else self.running).remove(request)
            self.policy.aborted(request, self.now)
        self.policy.program_ended(program, self.now)
        self.pins.pop(program, None)
        self.seen.pop(program, None)

    def look(self) -> None:
        """Every answer is of the contract's form, and asking again changes none."""
        ranks = [self.policy.rank(r, self.now) for r in self.waiting]
        assert all(a < b for a, b in pairwise(sorted(ranks)))
        assert all(math.isfinite(x) for rank in ranks for x in rank)
        assert ranks == [self.policy.rank(r, self.now) for r in self.waiting]
        if self.running:
            assert self.policy.victim(self.running, self.now) in self.running
            for head in self.waiting:
                loser = self.policy.displaced(head, self.running, self.now)
                assert loser is None or loser in self.running
        pins = list(self.pins.values())
        assert sorted(map(id, self.policy.reclaim(pins, self.now))) == sorted(map(id, pins))
        wake_s = self.policy.wake_s(self.now)
        assert wake_s is None or wake_s > self.now
        assert self.policy.wake_s(self.now) == wake_s
        if wake_s is not None and not self.policy.reviews_pins:
            before = math.nextafter(wake_s, -math.inf)
            assert ranks == [self.policy.rank(r, before) for r in self.waiting]


def held(thing: object) -> Iterator[object]:
    """All that a policy's state mentions."""
    yield thing
    if isinstance(thing, dict):
        for key, value in thing.items():
            yield from held(key)
            yield from held(value)
    elif isinstance(thing, list | tuple | set | frozenset) or hasattr(thing, "maxlen"):
        for value in thing:  # type: ignore[union-attr]
            yield from held(value)
    elif type(thing).__module__.startswith("servers"):
        slots = [n for c in type(thing).__mro__ for n in getattr(c, "__slots__", ())]
        for name in {*slots, *getattr(thing, "__dict__", {})}:
            yield from held(getattr(thing, name))


@pytest.mark.parametrize("costs", [COSTS, TIERED], ids=["no tier", "tier"])
@pytest.mark.parametrize("policy", POLICIES, ids=lambda p: p.name)
@settings(deadline=None, max_examples=80)
@given(story=moves)
def test_any_legal_story_is_survived_and_forgotten(
    policy: type[Policy], costs: Any, story: list[Any]
) -> None:
    engine = Engine(policy(costs))
    for move in story:
        engine.play(*move)
        engine.look()
    for program in PROGRAMS:
        engine.end(program)
    mentioned = list(held(engine.policy))
    assert not [thing for thing in mentioned if isinstance(thing, str) and thing in PROGRAMS]
    assert not [thing for thing in mentioned if isinstance(thing, Request | Pin)]


@pytest.mark.parametrize("variant", variants("all"), ids=lambda v: v.name)
def test_every_variant_keeps_the_contract_it_holds_others_to(variant: Any) -> None:
    check(variant.policy)
    assert make_policy(variant, COSTS).name == variant.policy.name
