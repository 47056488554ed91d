"""A limit on the TTFT of all turns says little of new jobs, if each job has many turns."""

from __future__ import annotations

import pytest

from reports.answer.starvation import first_turns_wait
from reports.capacity.estimate import Capacity, Kind
from reports.capacity.slo import parse_slo
from reports.loads import AGENTS
from reports.statistics.capacities import VariantCapacity
from servers.records.done import DoneRecord, Summary, Times
from tests.sentences import mentions


def alike(time_s: float) -> Summary:
    return Summary(time_s, (time_s,) * 99)


def caveats(slo: str, reference: str = "", idle_s: float = 1.0, **first_s: float) -> list[str]:
    """Let first turns take this long under each variant at capacity, with four agents, and
    `idle_s` on an idle machine, where all turns together take 1 s."""
    capacity = Capacity(Kind.FOUND, 4.5, 4.0, 5.0)
    found = [VariantCapacity(name, reference, {1: capacity}, None, AGENTS) for name in first_s]
    idle = Times(jct=alike(60.0), ttft=alike(1.0), first_ttft=alike(idle_s))
    done = {
        (name, 4.0, 1): DoneRecord(
            finished_programs=200,
            failed_turns=0,
            times_s=Times(jct=alike(600.0), ttft=alike(1.0), first_ttft=alike(time_s)),
            idle_times_s=idle,
        )
        for name, time_s in first_s.items()
    }
    return first_turns_wait(found, done, parse_slo(slo))


def test_variants_whose_first_turns_wait_much_longer_than_the_limit_are_named() -> None:
    (caveat,) = caveats("mean<=9x,ttft_p95<=5s", fcfs=4.0, turnstile=500.0)
    assert mentions(caveat, "new jobs wait", "turnstile 500 s", "first_ttft_p95 in --slo")
    assert not mentions(caveat, "fcfs")


@pytest.mark.parametrize("first_s", [10.1, 9.9])
def test_up_to_twice_the_limit_may_have_been_accepted(first_s: float) -> None:
    assert bool(caveats("ttft_p95<=5s", a=first_s)) is (first_s > 10)
    assert bool(caveats("ttft_p95<=5x", a=first_s)) is (first_s > 10)


def test_long_first_prompts_do_not_wait() -> None:
    assert caveats("ttft_p95<=5s", idle_s=8.0, a=15.0) == []
    assert caveats("ttft_p95<=5s", idle_s=8.0, a=17.0)


def test_nothing_is_said_of_references_or_where_first_turns_or_no_turns_are_limited() -> None:
    assert caveats("ttft_p95<=5s", "infinite memory", a=500.0) == []
    assert caveats("ttft_p95<=5s,first_ttft_p99<=60s", a=500.0) == []
    assert caveats("mean<=2x", a=500.0) == []
