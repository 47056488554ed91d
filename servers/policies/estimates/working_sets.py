"""The memory that programs need while they are held, and whether another one fits beside them.

A program is *held* while a turn of it runs or loads, or while its KV is pinned. Booked for it are

    context(p) + H * growth(p)   tokens,   growth(p) = (own growth + 2 * mean growth) / (turns + 2)

where the growth of a turn is its prompt less the prompt of the turn before, `turns` is the number
of turns that followed another one, and the mean is over all such turns of all programs. A prefix
that all programs share is booked once: it is the least that the last `PREFIX_TURNS` first turns hit
in the cache.

In: a policy's events, in tokens. Out: whether a program fits. All methods take constant time.
"""

from __future__ import annotations

from collections import deque

from servers.basics.clock import quotient
from servers.policies.base import Costs, Pin, Request
from servers.policies.estimates.recent import Recent

PREFIX_TURNS = 8
PRIOR_TURNS = 2


RESERVE_TURNS = 3.0
RESERVE_TURNS_OVER_TIER = 1.0
"""A tier makes the mistake of too small a reserve cheap."""


def reserve_turns_of(costs: Costs) -> float:
    """Return H for an engine with these costs."""
    return RESERVE_TURNS if costs.reload_s is None else RESERVE_TURNS_OVER_TIER


class _Growth:
    __slots__ = ("grown_tokens", "prompt_tokens", "turns")

    def __init__(self, prompt_tokens: int) -> None:
        self.prompt_tokens = prompt_tokens
        """Of the last turn that arrived."""
        self.turns = 0
        self.grown_tokens = 0


class WorkingSets:
    def __init__(self, kv_tokens: float, reserve_turns: float) -> None:
        """`reserve_turns` is H."""
        if not reserve_turns >= 0:
            raise ValueError(f"reserve_turns must be at least 0, not {reserve_turns}")
        self._kv_tokens = kv_tokens
        self._reserve_turns = reserve_turns
        self._growth: Recent[_Growth] = Recent()
        self._turns = 0
        self._grown_tokens = 0
        self._running: dict[str, set[int]] = {}
        """Ids of the running turns, by program."""
        self._pinned: set[str] = set()
        self._booked: dict[str, float] = {}
        """Tokens, by held program."""
        self._total_tokens = 0.0
        self._first_hits: deque[int] = deque(maxlen=PREFIX_TURNS)
        self._prefix_tokens = 0

    def arrived(self, request: Request) -> None:
        growth = self._growth.get(request.program_id)
        if growth is None:
            self._growth[request.program_id] = _Growth(request.prompt_tokens)
            return
        grown = max(request.prompt_tokens - growth.prompt_tokens, 0)
        growth.prompt_tokens = request.prompt_tokens
        growth.turns += 1
        growth.grown_tokens += grown
        self._turns += 1
        self._grown_tokens += grown

    def started(self, request: Request, cached_tokens: int) -> None:
        if request.index == 0 and not request.preempted:
            self._first_hits.append(cached_tokens)
            self._prefix_tokens = min(self._first_hits)
        self._running.setdefault(request.program_id, set()).add(request.id)
        self._book(request.program_id, request.prompt_tokens + request.output_tokens)

    def stopped(self, request: Request) -> None:
        """Note that a turn finished, was preempted or was aborted. It may not have run."""
        running = self._running.get(request.program_id)
        if running is not None and request.id in running:
            running.remove(request.id)
            if not running:
                del self._running[request.program_id]
                self._release(request.program_id)

    def pinned(self, pin: Pin) -> None:
        self._pinned.add(pin.program_id)
        self._book(pin.program_id, pin.tokens)

    def unpinned(self, pin: Pin) -> None:
        self._pinned.discard(pin.program_id)
        self._release(pin.program_id)

    def ended(self, program_id: str) -> None:
        self._growth.pop(program_id)

    def tokens(self, program_id: str, context_tokens: int) -> float:
        """Return what is booked for a program with this context."""
        mean = quotient(self._grown_tokens, self._turns) if self._turns else 0.0
        growth = self._growth.get(program_id)
        if growth is None:
            return context_tokens + self._reserve_turns * mean
        grown = (growth.grown_tokens + PRIOR_TURNS * mean) / (growth.turns + PRIOR_TURNS)
        return context_tokens + self._reserve_turns * grown

    def fits(self, request: Request) -> bool:
        """Return whether the program of a waiting turn is held, or fits beside those that are."""
        if request.program_id in self._booked:
            return True
        tokens = self.tokens(request.program_id, request.prompt_tokens + request.output_tokens)
        shared = len(self._booked) * self._prefix_tokens
        return self._total_tokens + tokens - shared <= self._kv_tokens

    def _book(self, program_id: str, context_tokens: int) -> None:
        tokens = self.tokens(program_id, context_tokens)
        self._total_tokens += tokens - self._booked.get(program_id, 0.0)
        self._booked[program_id] = tokens

    def _release(self, program_id: str) -> None:
        if program_id not in self._running and program_id not in self._pinned:
            self._total_tokens -= self._booked.pop(program_id, 0.0)
            if not self._booked:
                self._total_tokens = 0.0  # Rounding errors do not accumulate.
