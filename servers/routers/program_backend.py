"""A program and a replica, as `servers.routers.program_scheduling` counts them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from servers.policies.progress_machine import Machine
from servers.policies.progress_program import Program
from servers.routers.base import Replica, RoutedTurn


@dataclass(frozen=True)
class Settings:
    """Arguments of the router that concern one replica."""

    window: int
    longest_s: float
    most_rounds: int
    most_active: int
    batch_gain: bool
    low: float
    high: float
    gate: int
    """Waiting turns from which on a replica admits no program; 0: it always may."""


class RoutedProgram(Program):
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


class Backend(Machine):
    """A replica, with the programs that are active there and those that wait for it."""

    def __init__(self, replica: Replica, settings: Settings) -> None:
        super().__init__(
            replica.costs,
            replica.kv_tokens,
            window=settings.window,
            longest_s=settings.longest_s,
            most_rounds=settings.most_rounds,
            most_active=settings.most_active,
            batch_gain=settings.batch_gain,
            low=settings.low,
            high=settings.high,
        )
        self.replica = replica
        self.waiting: dict[str, RoutedProgram] = {}
        """Paused programs with held turns of which this is the home."""
        self._gate = settings.gate

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
        return program.deadline_s <= now_s or self.fits(program)

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
