"""Properties of every policy under any sequence of events."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from policy_turns import COSTS, TIERED

from servers.policies.base import Future, Oracle, Pin, Policy, Rank, Request, Retention, pin
from servers.policies.contract import check
from servers.variants import make_policy, variants

POLICIES = sorted({variant.policy for variant in variants("all")}, key=lambda p: p.name)
PROGRAMS = ("a", "b", "c")
SMALL = replace(COSTS, kv_tokens=5000.0)
"""Costs of a device on which two of these programs fit, for policies that hold turns back."""

event_lists = st.lists(
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
    """An engine in which turns arrive, run, are preempted, finish and abort in any legal order."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.now = 0.0
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.pins: dict[str, Pin] = {}
        self.seen: dict[str, tuple[int, float]] = {}
        self.ranked: dict[int, Rank] = {}
        """The latest ranks that an engine knows of, by request id."""
        self.ids = 0

    def apply(self, event: str, which: int, after: float, tools: Any, last: bool | None) -> None:
        self.now += after
        if event == "arrive":
            self.arrive(PROGRAMS[which % len(PROGRAMS)], last, 100 * which)
        elif event == "schedule" and self.waiting:
            request = min(self.waiting, key=lambda r: self.policy.rank(r, self.now))
            self.waiting.remove(request)
            self.running.append(request)
            self.policy.scheduled(request, self.now, which)
            self.unpin(request.program_id)
            request.preempted = request.pinned = False
        elif event == "preempt" and self.running:
            request = self.policy.victim(self.running, self.now)
            self.running.remove(request)
            self.policy.preempted(request, self.now)
            request.preempted = True
            self.wait(request)
        elif event == "finish" and self.running:
            request = self.running.pop(which % len(self.running))
            request.tools, request.output_tokens = tools, which
            self.finish(request)
        elif event == "abort" and self.waiting + self.running:
            request = (self.waiting + self.running)[which % len(self.waiting + self.running)]
            (self.waiting if request in self.waiting else self.running).remove(request)
            self.policy.aborted(request, self.now)
        elif event == "end":
            self.end(PROGRAMS[which % len(PROGRAMS)])
        elif event == "review":
            for pin in list(self.policy.review(list(self.pins.values()), which, self.now)):
                self.unpin(pin.program_id)

    def arrive(self, program: str, last: bool | None, tokens: int) -> None:
        index, first = self.seen.get(program, (0, self.now))
        self.seen[program] = (index + 1, first)
        request = Request(self.ids, program, index, self.now, first, tokens, last)
        request.pinned = program in self.pins
        self.ids += 1
        if isinstance(self.policy, Oracle):
            self.policy.foresee(request, Future(None if last else 1.0, tokens, 50))
        self.policy.arrived(request, self.now)
        self.wait(request)

    def wait(self, request: Request) -> None:
        self.waiting.append(request)
        self.ranked[request.id] = self.policy.rank(request, self.now)

    def finish(self, request: Request) -> None:
        retention = self.policy.finished(request, self.now)
        self.unpin(request.program_id)
        assert retention.ttl_s >= 0
        if retention.kind == "pin" and not request.ends_program:
            tokens = request.prompt_tokens + request.output_tokens
            until = self.now + retention.ttl_s
            pin = self.pins[request.program_id] = Pin(request, tokens, self.now, until)
            self.policy.pinned(pin, self.now)

    def unpin(self, program: str) -> None:
        if program in self.pins:
            self.policy.unpinned(self.pins.pop(program), self.now)

    def end(self, program: str) -> None:
        for request in [r for r in self.waiting + self.running if r.program_id == program]:
            (self.waiting if request in self.waiting else self.running).remove(request)
            self.policy.aborted(request, self.now)
        self.unpin(program)
        self.policy.program_ended(program, self.now)
        self.seen.pop(program, None)

    def check_answers(self) -> None:
        """Check that every answer follows the contract and that asking again gives the same."""
        ranks = [self.policy.rank(r, self.now) for r in self.waiting]
        assert all(a < b for a, b in pairwise(sorted(ranks)))
        assert all(math.isfinite(x) for rank in ranks for x in rank)
        assert ranks == [self.policy.rank(r, self.now) for r in self.waiting]
        changed = self.policy.woke(self.now)
        for request, rank in zip(self.waiting, ranks, strict=True):
            if changed is None or request.id in changed:
                self.ranked[request.id] = rank
            assert rank == self.ranked[request.id]
        answers = [self.policy.admit(r, 1000, self.now) for r in self.waiting]
        assert {*answers} <= {"run", "skip", "stop"}
        assert answers == [self.policy.admit(r, 1000, self.now) for r in self.waiting]
        if self.running:
            assert self.policy.victim(self.running, self.now) in self.running
            for head in self.waiting:
                loser = self.policy.displaced(head, self.running, self.now)
                assert loser is None or loser in self.running
        pins = list(self.pins.values())
        for request in self.waiting + self.running:
            chosen = [*self.policy.reclaim(pins, request, self.now)]
            assert {*chosen} <= {*pins}
            assert len(chosen) == len({*chosen})
        wake_s = self.policy.wake_s(self.now)
        assert wake_s is None or wake_s > self.now
        assert self.policy.wake_s(self.now) == wake_s
        if wake_s is not None and not self.policy.reviews_pins:
            before = math.nextafter(wake_s, -math.inf)
            assert ranks == [self.policy.rank(r, before) for r in self.waiting]
            assert answers == [self.policy.admit(r, 1000, before) for r in self.waiting]


def reachable(state: object) -> Iterator[object]:
    """Yield every object that is reachable from a policy's state."""
    yield state
    if isinstance(state, dict):
        for key, value in state.items():
            yield from reachable(key)
            yield from reachable(value)
    elif isinstance(state, list | tuple | set | frozenset) or hasattr(state, "maxlen"):
        for value in state:  # type: ignore[union-attr]
            yield from reachable(value)
    elif type(state).__module__.startswith("servers"):
        slots = [n for c in type(state).__mro__ for n in getattr(c, "__slots__", ())]
        for name in {*slots, *getattr(state, "__dict__", {})}:
            yield from reachable(getattr(state, name))


@pytest.mark.parametrize("costs", [COSTS, TIERED, SMALL], ids=["no tier", "tier", "little memory"])
@pytest.mark.parametrize("policy", POLICIES, ids=lambda p: p.name)
@settings(max_examples=settings().max_examples // 3)
@given(events=event_lists)
def test_any_legal_sequence_of_events_is_handled_and_ended_programs_are_forgotten(
    policy: type[Policy], costs: Any, events: list[Any]
) -> None:
    engine = Engine(policy(costs))
    for event in events:
        engine.apply(*event)
        engine.check_answers()
    for program in PROGRAMS:
        engine.end(program)
    state = list(reachable(engine.policy))
    assert not [value for value in state if isinstance(value, str) and value in PROGRAMS]
    assert not [value for value in state if isinstance(value, Request | Pin)]


@pytest.mark.parametrize("variant", variants("all"), ids=lambda v: v.name)
def test_every_built_in_variant_passes_the_contract_check(variant: Any) -> None:
    check(variant.policy)
    assert make_policy(variant, COSTS).name == variant.policy.name


def test_the_check_shows_a_policy_pins_as_an_engine_does() -> None:
    """The pin of the first turn, of 1,000 + 50 tokens, lasts 7 s from 3 s on."""
    seen = set()

    class Sees(Policy):
        name = "sees"

        def finished(self, request: Request, now_s: float) -> Retention:
            return pin(7.0)

        def reclaim(self, pins: Collection[Pin], request: Request, now_s: float) -> Iterable[Pin]:
            seen.update((p.program_id, p.tokens, p.pinned_at_s, p.expires_at_s) for p in pins)
            return []

    check(Sees)
    assert seen == {("a", 1050, 3.0, 10.0)}
