"""A live sweep is killed at random moments while its server stays up (`tests.crash.live`)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.live import survives
from tests.crash.test_kills import KILLS
from tests.crash.trials import Warm
from tests.live.server import Server, serving
from tests.threaded import threaded


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with threaded(serving(Server(stores=False, chunk_s=0.002))) as base_url:
        yield base_url


def test_turns_that_were_measured_are_never_measured_again(
    warm: Warm, url: str, tmp_path: Path
) -> None:
    survives(max(KILLS // 4, 2), warm, url, tmp_path)
