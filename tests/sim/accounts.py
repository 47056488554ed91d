"""Counts every block of an engine again, the long way round."""

from __future__ import annotations

from servers.sim.kv import DeviceKV, Holder, Segment
from servers.sim.scheduler import Scheduler


def holders(scheduler: Scheduler) -> list[Holder]:
    sequences = list(scheduler.running.values()) + list(scheduler.loaded)
    sequences += [s for _, _, s in scheduler.loading if s.finished_ps is None]
    return [s.holder for s in sequences] + [h.holder for h in scheduler.pins.held()]


def check_blocks(scheduler: Scheduler) -> None:
    """Free + in use = all, no segment disagrees with its holders, and the queue holds just what is
    resident and unused."""
    kv = scheduler.kv
    held = holders(scheduler)
    segments: dict[Segment, dict[int, int]] = {}
    for holder in held:
        begins = 0
        for segment, leave in holder.path:
            depth = min(leave, holder.depth)
            assert segment.start == begins
            if depth > segment.start:
                counts = segments.setdefault(segment, {})
                counts[depth] = counts.get(depth, 0) + 1
            begins = leave
    in_use = sum(holder.blank for holder in held) + scheduler.pool.blank
    for segment, counts in segments.items():
        assert segment.holds == counts
        assert segment.top == max(counts) <= segment.end
        in_use += segment.top - segment.start
    assert in_use == kv.used
    idle = check_queue(kv)
    assert kv.free == kv._blank + idle
    assert scheduler.pool.blank >= 0
    assert kv._blank >= 0


def check_queue(kv: DeviceKV) -> int:
    idle = 0
    by_segment: dict[Segment, int] = {}
    for entry in kv._queue.values():
        assert entry.low < entry.high
        assert by_segment.get(entry.segment, entry.segment.end) == entry.high
        by_segment[entry.segment] = entry.low
        idle += entry.high - entry.low
    for segment, low in by_segment.items():
        assert low == segment.top
    return idle
