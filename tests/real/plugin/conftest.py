"""tests/real/test_plugin.py runs these tests under vLLM's interpreter."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from importlib.util import find_spec

import pytest

collect_ignore_glob = [] if find_spec("vllm") else ["test_*.py"]


class Captured(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record)


@pytest.fixture
def log() -> Iterator[list[logging.LogRecord]]:
    """What the plug-in logs."""
    captured, logger = Captured(), logging.getLogger("vllm.turnstile")
    logger.addHandler(captured)
    yield captured.lines
    logger.removeHandler(captured)
