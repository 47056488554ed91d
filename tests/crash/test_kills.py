"""`bench sweep` is stopped at random moments, once or repeatedly; rerunning it completes the run.

`make crash KILLS=200` sets the number of kills; `make test-all` kills a few times.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.crash.small_sweep import RUN, output_of, sweep_folder
from tests.crash.trials import (
    MAX_KILLS_PER_RUN,
    Snapshot,
    Warm,
    bytes_of,
    check_resume,
    env,
    wait_for_end_of,
)

KILLS = int(os.environ.get("TURNSTILE_KILLS", "4"))
PROGRAMS = 60
"""Enough for a cell to take as long as a report."""
SIX_CELLS = (
    *("sweep", "--once", "--traces", "t.jsonl", "--policies", "fcfs,continuum,infercept"),
    *("--jps", "0.2,0.5", "--out", RUN, "--workers", "2"),
)


class Uninterrupted(NamedTuple):
    duration_s: float
    content: dict[str, bytes]


@pytest.fixture(scope="module")
def straight(warm_of_session: Warm, tmp_path_factory: pytest.TempPathFactory) -> Uninterrupted:
    folder = sweep_folder(tmp_path_factory.mktemp("straight"), PROGRAMS)
    since_s = time.monotonic()
    assert warm_of_session.run(folder, SIX_CELLS) == 0, output_of(folder)
    return Uninterrupted(time.monotonic() - since_s, bytes_of(folder / RUN))


def test_killed_at_random_moments_the_same_command_completes_the_run(
    warm: Warm, straight: Uninterrupted, tmp_path: Path
) -> None:
    rng, killed, duration_s = random.Random(7), 0, straight.duration_s
    for number in count():
        folder, left = sweep_folder(tmp_path / str(number), PROGRAMS), []
        for _ in range(MAX_KILLS_PER_RUN):
            after_s = rng.uniform(0, duration_s)
            if warm.stopped(folder, SIX_CELLS, after_s, signal.SIGKILL) == 0:
                duration_s *= 0.9
                break
            killed += 1
            left.append(Snapshot.of(folder / RUN))
        check_resume(warm, folder, SIX_CELLS, straight.content, left)
        if killed >= KILLS:
            break


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_stopped_at_random_moments_it_prints_how_to_resume(
    warm: Warm, straight: Uninterrupted, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    rng = random.Random(8)
    for trial in range(max(KILLS // 8, 2)):
        folder = sweep_folder(tmp_path / str(trial), PROGRAMS)
        status = warm.stopped(folder, SIX_CELLS, rng.uniform(0, straight.duration_s), number)
        # Before `bench` has started and after it has ended, Python itself handles the signal.
        assert status in (code, 0, -number), output_of(folder)
        assert "Traceback" not in output_of(folder) or status == -number
        if status == code:
            assert "bench: stopped" in output_of(folder)
        check_resume(warm, folder, SIX_CELLS, straight.content)


@pytest.fixture
def fresh_sweep(bench: str, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A sweep started as users do: its workers are new processes too."""
    folder = sweep_folder(tmp_path / "fresh", PROGRAMS)
    with subprocess.Popen(
        [bench, *SIX_CELLS],
        cwd=folder,
        env=env(),
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        yield process


@pytest.mark.parametrize("cells", range(0, 6, max(1, 96 // KILLS)))
def test_a_sweep_started_as_users_do_resumes_after_being_killed(
    warm: Warm,
    straight: Uninterrupted,
    fresh_sweep: subprocess.Popen[bytes],
    tmp_path: Path,
    cells: int,
) -> None:
    """The sweep is killed once this many cells have finished."""
    deadline_s = time.monotonic() + 300
    while len(list((tmp_path / "fresh" / RUN).glob("*/done.json"))) < cells:
        assert time.monotonic() < deadline_s
        time.sleep(0.001)
    fresh_sweep.kill()
    fresh_sweep.wait()
    wait_for_end_of(fresh_sweep.pid)
    check_resume(warm, tmp_path / "fresh", SIX_CELLS, straight.content)
