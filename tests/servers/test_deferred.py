"""SIGTERM waits until the processes of a pool have been given what they are to run."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from types import FrameType

import pytest

from servers.processes.deferred import sigterm_deferred


class Terminated(BaseException):
    pass


def terminate(_number: int, _frame: FrameType | None) -> None:
    raise Terminated


@pytest.fixture(autouse=True)
def _handler() -> Iterator[None]:
    previous = signal.signal(signal.SIGTERM, terminate)
    yield
    signal.signal(signal.SIGTERM, previous)


def test_a_sigterm_within_the_block_is_delivered_after_its_end() -> None:
    reached = []

    def stopped_twice() -> None:
        with sigterm_deferred():
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGTERM)
            reached.append("end of the block")

    with pytest.raises(Terminated):
        stopped_twice()
    assert reached == ["end of the block"]
    assert signal.getsignal(signal.SIGTERM) is terminate


def test_without_a_sigterm_nothing_is_delivered() -> None:
    with sigterm_deferred():
        pass
    assert signal.getsignal(signal.SIGTERM) is terminate
