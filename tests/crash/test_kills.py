"""`bench sweep` ended at random moments, once or again and again: the same command ends the run.

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
from tests.crash.trials import IN_A_ROW, Left, Warm, bytes_of, env, resumes, until_nothing_of

KILLS = int(os.environ.get("TURNSTILE_KILLS", "16"))
PROGRAMS = 60
"""Enough for a cell to take as long as a report."""
SIX_CELLS = (
    *("sweep", "--traces", "t.jsonl", "--policies", "fcfs,continuum,infercept"),
    *("--jps", "0.2,0.5", "--out", RUN, "--workers", "2"),
)


class Straight(NamedTuple):
    lasts_s: float
    content: dict[str, bytes]


@pytest.fixture(scope="module")
def straight(warm: Warm, tmp_path_factory: pytest.TempPathFactory) -> Straight:
    folder = sweep_folder(tmp_path_factory.mktemp("straight"), PROGRAMS)
    since_s = time.monotonic()
    assert warm.run(folder, SIX_CELLS) == 0, output_of(folder)
    return Straight(time.monotonic() - since_s, bytes_of(folder / RUN))


def test_killed_at_random_moments_the_same_command_ends_the_run(
    warm: Warm, straight: Straight, tmp_path: Path
) -> None:
    rng, killed, lasts_s = random.Random(7), 0, straight.lasts_s
    for number in count():
        folder, left = sweep_folder(tmp_path / str(number), PROGRAMS), []
        for _ in range(IN_A_ROW):
            after_s = rng.uniform(0, lasts_s)
            if warm.stopped(folder, SIX_CELLS, after_s, signal.SIGKILL) == 0:
                lasts_s *= 0.9
                break
            killed += 1
            left.append(Left.by(folder / RUN))
        resumes(warm, folder, SIX_CELLS, straight.content, left)
        if killed >= KILLS:
            break


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_stopped_at_random_moments_it_prints_how_to_resume(
    warm: Warm, straight: Straight, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    rng = random.Random(8)
    for trial in range(max(KILLS // 8, 2)):
        folder = sweep_folder(tmp_path / str(trial), PROGRAMS)
        found = warm.stopped(folder, SIX_CELLS, rng.uniform(0, straight.lasts_s), number)
        # Before `bench` has begun, and after it has ended, Python ends as it does.
        assert found in (code, 0, -number), output_of(folder)
        assert "Traceback" not in output_of(folder) or found == -number
        if found == code:
            assert "bench: stopped" in output_of(folder)
        resumes(warm, folder, SIX_CELLS, straight.content)


@pytest.fixture
def afresh(bench: str, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """As people start it: its workers are new processes too."""
    folder = sweep_folder(tmp_path / "afresh", PROGRAMS)
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
def test_killed_as_people_start_it(
    warm: Warm,
    straight: Straight,
    afresh: subprocess.Popen[bytes],
    tmp_path: Path,
    cells: int,
) -> None:
    """After so many cells."""
    deadline_s = time.monotonic() + 120
    while len(list((tmp_path / "afresh" / RUN).glob("*/done.json"))) < cells:
        assert time.monotonic() < deadline_s
        time.sleep(0.001)
    afresh.kill()
    afresh.wait()
    until_nothing_of(afresh.pid)
    resumes(warm, tmp_path / "afresh", SIX_CELLS, straight.content)
