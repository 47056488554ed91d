"""What several groups of tests need."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import settings

# The same examples each time: whether a change goes in is no lottery. Others are drawn with
# --hypothesis-profile=default.
settings.register_profile("same", derandomize=True)
settings.load_profile("same")

if sys.platform == "linux":
    from tests.leaks import (  # noqa: F401 (fixtures)
        nothing_left,
        nothing_left_by_the_session,
        watch,
    )


@pytest.fixture(scope="session")
def bench() -> str:
    """The console script, as people run it."""
    return str(Path(sys.executable).parent / "bench")
