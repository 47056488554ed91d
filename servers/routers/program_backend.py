"""A program and a replica, as `servers.routers.program_scheduling` counts them."""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass

from servers.policies.progress_machine import ProgressMachine, ProgressProgram
from servers.routers.base import Replica, RoutedTurn


@dataclass(frozen=True)
class Settings:
    """Arguments that concern one replica. Raises ValueError if one is out of range."""

    max_active_programs: int
    admission_waiting_request_threshold: int
    """Waiting turns from which on a replica admits no program; 0: it always may."""
    max_acting_ttl_s: float
    high_watermark_ratio: float
    low_watermark_ratio: float
    max_segment_rounds: int
    stats_window_size: int
    enable_batch_gain_admission: bool

    def __post_init__(self) -> None:
        refuse_below(1, "max_active_programs", self.max_active_programs)
        refuse_below(1, "max_segment_rounds", self.max_segment_rounds)
        refuse_below(1, "stats_window_size", self.stats_window_size)
        refuse_below(0, "max_acting_ttl_s", self.max_acting_ttl_s)
        threshold = self.admission_waiting_request_threshold
        refuse_below(0, "admission_waiting_request_threshold", threshold)
        if not 0 < self.low_watermark_ratio <= self.high_watermark_ratio:
            raise ValueError(
                "low_watermark_ratio and high_watermark_ratio are shares of the KV above 0, such "
                "as 0.9; the low one must not exceed the high one"
            )


def refuse_below(least: int, name: str, value: float) -> None:
    if value < least:
        raise ValueError(f"{name} must be at least {least}, not {value}")


class RoutedProgram(ProgressProgram):
    def __init__(self, home: int) -> None:
        super().__init__()
        self.home = home
        """The replica where it is or was active, or was bound to at first."""
        self.held: list[RoutedTurn] = []
        """Its turns that are held back."""
        self.queued_s = 0.0
        """When the first of them arrived."""
        self.deadline_s = math.inf
        """From when on it is resumed even if it does not fit, while turns are held back."""


Order = tuple[bool, bool, bool, float, float, str]


def resume_key(item: tuple[str, RoutedProgram], by_arrival: bool, now_s: float) -> Order:
    """Return the position of a program among those that wait."""
    program_id, program = item
    last_s = 0.0 if by_arrival else program.last_finished_s
    forced = program.deadline_s <= now_s
    return not forced, program.yielded, last_s < 0, -last_s, program.queued_s, program_id


class Backend(ProgressMachine):
    """A replica, with the programs that are active there and those that wait for it."""

    def __init__(self, replica: Replica, settings: Settings) -> None:
        super().__init__(
            replica.costs,
            replica.kv_tokens,
            window=settings.stats_window_size,
            longest_s=settings.max_acting_ttl_s,
            most_rounds=settings.max_segment_rounds,
            most_active=settings.max_active_programs,
            batch_gain=settings.enable_batch_gain_admission,
            low=settings.low_watermark_ratio,
            high=settings.high_watermark_ratio,
        )
        self.replica = replica
        self.waiting: dict[str, RoutedProgram] = {}
        """Paused programs with held turns whose home is this one."""
        self.none_fits_until_s = -math.inf
        """None of them is admitted before this time, unless something changes."""
        self._smallest: list[tuple[int, str]] = []
        """Their tokens, as a heap, with entries that are out of date. So are the next two."""
        self._cheapest: list[tuple[float, int, str]] = []
        """Seconds that their rebuilds cost, and their tokens."""
        self._deadlines: list[tuple[float, str]] = []
        self._gate = settings.admission_waiting_request_threshold

    def changed(self) -> None:
        super().changed()
        self.none_fits_until_s = -math.inf

    def hold(self, program_id: str, program: RoutedProgram) -> None:
        """Let a paused program wait, or note that another turn of it is held back."""
        self.waiting[program_id] = program
        self.none_fits_until_s = -math.inf
        tokens, rebuild_s = program.tokens, self.rebuild_s(program)
        heapq.heappush(self._smallest, (tokens, program_id))
        heapq.heappush(self._cheapest, (rebuild_s, tokens, program_id))
        heapq.heappush(self._deadlines, (program.deadline_s, program_id))

    def holds_all(self, now_s: float) -> bool:
        """Return whether no program that waits is admitted now, whatever its rank."""
        smallest, cheapest, deadlines = self._smallest, self._cheapest, self._deadlines
        while not self._waits_with(smallest[0][1], smallest[0][0]):
            heapq.heappop(smallest)
        while not self._waits_with(cheapest[0][2], cheapest[0][1]):
            heapq.heappop(cheapest)
        while not self._waits_until(deadlines[0][1], deadlines[0][0]):
            heapq.heappop(deadlines)
        if deadlines[0][0] <= now_s or not self.none_fits(smallest[0][0], cheapest[0][0]):
            return False
        self.none_fits_until_s = deadlines[0][0]
        return True

    def _waits_with(self, program_id: str, tokens: int) -> bool:
        program = self.waiting.get(program_id)
        return program is not None and program.tokens == tokens

    def _waits_until(self, program_id: str, deadline_s: float) -> bool:
        program = self.waiting.get(program_id)
        return program is not None and program.deadline_s == deadline_s

    @property
    def has_gate(self) -> bool:
        return self._gate > 0

    @property
    def is_full(self) -> bool:
        """Whether turns waited there at its latest report."""
        return self.has_gate and self.replica.waiting >= self._gate

    @property
    def free(self) -> float:
        return max(self.limit - self.used, 0.0)

    def admits(self, program: RoutedProgram, now_s: float) -> bool:
        if self.is_full:
            return False
        if program.deadline_s <= now_s:
            return True
        return self.fits(program.tokens, program.context, self.rebuild_s(program))

    def observe(self) -> None:
        """Replace the tokens of reasoning programs by those that the replica reports, more if some
        of them do not run."""
        reasoning = [program for program in self.active.values() if program.open_turns]
        acting = [program for program in self.active.values() if not program.open_turns]
        running, used = self.replica.running, float(self.replica.used_tokens)
        if running > 0:
            used = used * max(len(reasoning), running) / running
        elif reasoning:
            used = float(sum(program.tokens for program in reasoning))
        self.counted = used + sum(program.tokens for program in acting)
        self.changed()
