"""Signals that end the process wait until the processes of a pool have their input."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from types import FrameType

import pytest

from servers.processes.deferred import ENDING, signals_deferred

SIGNALS = (signal.SIGINT, *ENDING)


class Terminated(BaseException):
    pass


def terminate(_number: int, _frame: FrameType | None) -> None:
    raise Terminated


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    previous = {number: signal.signal(number, terminate) for number in SIGNALS}
    yield
    for number, handler in previous.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_within_the_block_is_delivered_after_its_end(number: int) -> None:
    reached = []

    def stopped_twice() -> None:
        with signals_deferred():
            os.kill(os.getpid(), number)
            os.kill(os.getpid(), number)
            reached.append("end of the block")

    with pytest.raises(Terminated):
        stopped_twice()
    assert reached == ["end of the block"]
    assert signal.getsignal(number) is terminate


def test_without_a_sigterm_nothing_is_delivered() -> None:
    with signals_deferred():
        pass
    assert signal.getsignal(signal.SIGTERM) is terminate
