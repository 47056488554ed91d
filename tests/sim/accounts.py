"""Recount every block of an engine from its block owners."""

from __future__ import annotations

from servers.sim.kv import BlockOwner, DeviceKV, Segment
from servers.sim.scheduler import Scheduler


def owners(scheduler: Scheduler) -> list[BlockOwner]:
    sequences = list(scheduler.running.by_id.values()) + list(scheduler.reloads.loaded)
    sequences += [s for _, _, s in scheduler.reloads.loading if s.finished_ps is None]
    return [s.owner for s in sequences] + [active.kv for active in scheduler.runner.pins]


def check_blocks(scheduler: Scheduler) -> None:
    """Check that free and used blocks add up, segments agree with their owners, and the queue has
    exactly the blocks that are resident and unused."""
    kv = scheduler.kv
    all_owners = owners(scheduler)
    segments: dict[Segment, dict[int, int]] = {}
    for owner in all_owners:
        begins = 0
        for segment, exit_depth in owner.path:
            depth = min(exit_depth, owner.depth)
            assert segment.start == begins
            if depth > segment.start:
                counts = segments.setdefault(segment, {})
                counts[depth] = counts.get(depth, 0) + 1
            begins = exit_depth
    in_use = sum(owner.blank for owner in all_owners) + scheduler.running.pool.blank
    for segment, counts in segments.items():
        assert segment.owners == counts
        assert segment.top == max(counts) <= segment.end
        in_use += segment.top - segment.start
    assert in_use == kv.used
    idle = check_queue(kv)
    assert kv.free == kv._blank + idle
    assert scheduler.running.pool.blank >= 0
    assert kv._blank >= 0


def check_queue(kv: DeviceKV) -> int:
    idle = 0
    by_segment: dict[Segment, int] = {}
    for entry in kv._queue:
        assert entry.low < entry.high
        assert by_segment.get(entry.segment, entry.segment.end) == entry.high
        by_segment[entry.segment] = entry.low
        idle += entry.high - entry.low
    for segment, low in by_segment.items():
        assert low == segment.top
    return idle
