"""What several groups of tests need."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def bench() -> str:
    """The console script, as people run it."""
    return str(Path(sys.executable).parent / "bench")
