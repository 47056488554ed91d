"""Run coroutines in time that passes only while all of them wait, so that a busy machine changes
nothing."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

IN_FLIGHT_S = 0.005
"""How long bytes between sockets of this process may be in flight."""
T = TypeVar("T")


class _Selector(selectors.DefaultSelector):
    """Instead of waiting until a timer is due, move the clock there."""

    now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or timeout <= 0:
            return super().select(timeout)
        ready = super().select(IN_FLIGHT_S)
        if not ready:
            self.now_s += timeout
        return ready


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._clock = _Selector()
        super().__init__(self._clock)

    def time(self) -> float:
        return self._clock.now_s


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that needs no other process or thread, on a loop that begins at 0 s."""
    with asyncio.Runner(loop_factory=_Loop) as runner:
        return runner.run(coroutine)
