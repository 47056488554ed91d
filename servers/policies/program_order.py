"""Orders by program that several policies share (Continuum v3, §4.3 and §5.2)."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from servers.policies.base import Pin, Rank, Request


def first_programs_first(request: Request) -> Rank:
    """Rank preempted turns first, then programs in order of their first arrival."""
    return (not request.preempted, request.program_arrival_s, request.id)


def pinned_programs_first(request: Request) -> Rank:
    """Rank preempted turns first, then turns of pinned programs, then by program arrival (§4.3)."""
    return (not request.preempted, not request.pinned, request.program_arrival_s, request.id)


def latest_programs_first(pins: Collection[Pin]) -> list[Pin]:
    """Return the pins in the order of release: latest program arrival first (§5.2)."""
    return sorted(pins, key=lambda p: (-p.request.program_arrival_s, -p.request.id))


def of_latest_program(running: Sequence[Request]) -> Request:
    """Return the running turn of the program that arrived last, and of several its last one."""
    return max(running, key=lambda r: (r.program_arrival_s, r.id))
