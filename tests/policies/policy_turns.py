"""Turns and costs that are small enough to calculate a policy's decision manually."""

from __future__ import annotations

from itertools import count

from servers.policies.base import Costs, Pin, Policy, Request, Retention

PER_SECOND = 1000
"""Tokens prefilled per second: a context of 3000 tokens takes 3 s to rebuild."""

COSTS = Costs(prefill_s=lambda tokens: tokens / PER_SECOND)
TIERED = Costs(
    prefill_s=lambda tokens: tokens / PER_SECOND,
    reload_s=lambda tokens: tokens / (10 * PER_SECOND),
)
SMALL = Costs(prefill_s=COSTS.prefill_s, kv_tokens=10_000)
"""A context of 3000 tokens takes three tenths of the device and 3 s to rebuild. The room of any
context for 10 s costs as much as its rebuild."""

_ids = count()


def turn(
    program: str = "p",
    *,
    index: int = 0,
    at: float = 0.0,
    program_at: float | None = None,
    tokens: int = 1000,
    tools: tuple[str, ...] = ("ls",),
    last: bool | None = False,
    pinned: bool = False,
    preempted: bool = False,
) -> Request:
    return Request(
        id=next(_ids),
        program_id=program,
        index=index,
        arrival_s=at,
        program_arrival_s=at if program_at is None else program_at,
        prompt_tokens=tokens,
        is_last=last,
        tools=tools,
        pinned=pinned,
        preempted=preempted,
    )


def held(request: Request, *, since: float = 0.0, until: float = 10.0) -> Pin:
    return Pin(request, request.prompt_tokens + request.output_tokens, since, until)


def run(policy: Policy, request: Request, *, start: float, end: float) -> Retention:
    """Run one turn from arrival to finish; return the policy's retention."""
    policy.arrived(request, request.arrival_s)
    policy.scheduled(request, start, 0)
    request.pinned = request.preempted = False
    return policy.finished(request, end)


def tool_call(policy: Policy, program: str, tool: str, seconds: float) -> None:
    """Run a program of two turns, the first of which calls a tool that takes `seconds`."""
    run(policy, turn(program, at=0.0, tools=(tool,)), start=0.0, end=1.0)
    next_turn = turn(program, index=1, at=1.0 + seconds, last=True, tools=(), pinned=True)
    run(policy, next_turn, start=1.0 + seconds, end=2.0 + seconds)


def order(policy: Policy, waiting: list[Request], now: float = 0.0) -> list[str]:
    """Return the programs in the order in which the policy would admit them."""
    return [r.program_id for r in sorted(waiting, key=lambda r: policy.rank(r, now))]
