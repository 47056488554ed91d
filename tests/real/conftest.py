"""How tests start vLLM's processes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

FORKED = Path(__file__).parent / "forked"


@contextmanager
def forked() -> Iterator[None]:
    """vLLM's processes are forked from its first, so that a server starts in half the time.

    On a CPU each of a server's three processes imports vLLM, which takes eight seconds. The server
    with LMCache does without, as those of users, and so do those of `test_launcher.py` that are
    stopped or given a flag vLLM rejects.
    """
    path = filter(None, [str(FORKED), os.environ.get("PYTHONPATH")])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(path))
        # vLLM sets the threads of a new process only. Two on a busy machine wait for each other.
        patch.setenv("OMP_NUM_THREADS", "1")
        yield


@pytest.fixture(scope="module")
def forked_vllm() -> Iterator[None]:
    with forked():
        yield
