"""Orders by program that several policies share (Continuum v3, §4.3 and §5.2)."""

from __future__ import annotations

from collections.abc import Collection

from servers.policies.base import Pin, Rank, Request


def first_programs_first(request: Request) -> Rank:
    """Preempted turns, then programs in order of their first arrival."""
    return (not request.preempted, request.program_arrival_s, request.id)


def pinned_programs_first(request: Request) -> Rank:
    """Preempted turns, then turns whose program's KV is pinned, then program arrival (§4.3)."""
    return (not request.preempted, not request.pinned, request.program_arrival_s, request.id)


def latest_programs_first(pins: Collection[Pin]) -> list[Pin]:
    """Pins in the order in which they give way: latest program arrival first (§5.2)."""
    return sorted(pins, key=lambda p: (-p.request.program_arrival_s, -p.request.id))
