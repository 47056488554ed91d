"""Table 1 of Continuum v3, which states what each policy does with KV between turns. Each policy
decides alone on scripted turns. Pie has no policy of its own and is left out."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from servers.policies.base import Costs, Pin, Policy, Request, Retention
from servers.variants import make_policy, variants

COSTS = Costs(prefill_s=lambda tokens: tokens / 20_000)
"""Half a second for the context below: rebuilding it alone is not worth a wait for slow tools."""
CONTEXT_TOKENS, PROGRAMS = 10_000, 150
"""More programs than Continuum observes before it uses its model (K = 100)."""
GAPS_S = (1.0, 20.0)
"""Times of the tool, in turn."""
DELAYS_S = (0.0, 60.0)
"""Queueing of a turn whose KV was evicted, in two histories that are compared."""
HOUR_S = 3600.0


class Row(NamedTuple):
    """A row of Table 1."""

    retains: bool
    includes_queueing: bool
    bounds_time: bool


TABLE_1 = {
    "fcfs": Row(False, False, False),
    "autellix": Row(False, False, False),
    "infercept": Row(True, False, False),
    "continuum": Row(True, True, True),
}


@pytest.mark.parametrize(("name", "row"), TABLE_1.items())
def test_policies_do_what_table_1_says(name: str, row: Row) -> None:
    assert row_of(name) == row


def row_of(name: str) -> Row:
    decisions = [_after_history(name, delay_s) for delay_s in DELAYS_S]
    pinned = [decision for _, decision, _ in decisions if decision.kind == "pin"]
    ttls = {decision.ttl_s for _, decision, _ in decisions}
    bounds = bool(pinned) and not any(_is_held(*d) for d in decisions if d[1].kind == "pin")
    return Row(bool(pinned), len(ttls) > 1, bounds)


def _after_history(name: str, delay_s: float) -> tuple[Policy, Retention, Request]:
    """Return the decision on a turn, after many programs whose second turn queued for `delay_s`."""
    policy = make_policy(variants(name)[0], COSTS)
    now_s = 0.0
    for number in range(PROGRAMS):
        first = _turn(policy, 2 * number, f"p{number}", 0, now_s, 0.0, "pytest")
        policy.finished(first, now_s := now_s + 1.0)
        now_s += GAPS_S[number % 2]
        last = _turn(policy, 2 * number + 1, f"p{number}", 1, now_s, delay_s, None)
        policy.finished(last, now_s := now_s + delay_s + 1.0)
        policy.program_ended(f"p{number}", now_s)
    probe = _turn(policy, 2 * PROGRAMS, "probe", 0, now_s, 0.0, "pytest")
    return policy, policy.finished(probe, now_s + 1.0), probe


def _turn(
    policy: Policy,
    id: int,
    program: str,
    index: int,
    now_s: float,
    delay_s: float,
    tool: str | None,
) -> Request:
    """Let a turn arrive and be admitted after `delay_s`; return it as it is when it finishes."""
    request = Request(id, program, index, now_s, now_s, CONTEXT_TOKENS, is_last=tool is None)
    policy.arrived(request, now_s)
    policy.scheduled(request, now_s + delay_s, 0)
    request.output_tokens = 10
    request.tools = (tool,) if tool else ()
    return request


def _is_held(policy: Policy, decision: Retention, request: Request) -> bool:
    """Return whether the KV is still held an hour into the tool call, on an idle machine."""
    pinned_at_s = request.arrival_s + 1.0
    tokens = request.prompt_tokens + request.output_tokens
    held = Pin(request, tokens, pinned_at_s, pinned_at_s + decision.ttl_s)
    now_s = pinned_at_s + HOUR_S
    reviewed = policy.review([held], 0, now_s) if policy.reviews_pins else ()
    return held.expires_at_s > now_s and held not in list(reviewed)
