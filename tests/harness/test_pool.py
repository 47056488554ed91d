"""Jobs on worker processes: each ends once, a dead worker costs one job, and no worker is left."""

from __future__ import annotations

import errno
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness.cells.workers import Ended, Started, Tick, Ticked, run_jobs
from servers.basics.errors import CannotWrite
from tests.leaks import has_ended
from tests.processes import wait_until
from tests.sentences import mentions


def work(shared: str, job: str, tick: Tick) -> None:
    """Do what the job's name says."""
    tick(len(shared), "")
    if job == "raise":
        raise KeyError("of a policy")
    if job == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if job == "exit":
        os._exit(3)
    if job == "full":
        raise CannotWrite("cannot write x: no space left on device")
    if job == "no space":
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "cell/server.json")
    if job == "sleep":
        time.sleep(60)


def outcomes(jobs: list[str], workers: int) -> dict[str, str | None]:
    ends = [e for e in run_jobs(jobs, work, "shared", workers) if isinstance(e, Ended)]
    assert len(ends) == len(jobs)
    return {end.job: end.error and end.error.splitlines()[0] for end in ends}


@pytest.mark.usefixtures("spawned_workers")
@pytest.mark.parametrize("workers", [1, 5])
def test_every_job_starts_ticks_and_ends_once(workers: int) -> None:
    events = list(run_jobs(["a", "b", "c"], work, "1234", workers))
    for job in "abc":
        assert [e for e in events if e.job == job] == [
            Started(job),
            Ticked(job, 4, ""),
            Ended(job, None),
        ]


def test_an_exception_or_a_dead_worker_fails_only_its_job() -> None:
    found = outcomes(["die", "a", "raise", "exit", "b", "c"], workers=2)
    died, ended = found.pop("die"), found.pop("exit")
    assert found == {"a": None, "b": None, "c": None, "raise": "KeyError: 'of a policy'"}
    assert mentions(died or "", "SIGKILL", "out of memory?", "--workers")
    assert mentions(ended or "", "worker process", "exit code 3")


def test_an_exception_is_reported_with_its_traceback() -> None:
    (end,) = (e for e in run_jobs(["raise"], work, "", 1) if isinstance(e, Ended))
    assert end.error is not None
    assert 'raise KeyError("of a policy")' in end.error


@pytest.mark.parametrize("job", ["full", "no space"])
def test_a_full_disk_ends_all_jobs_wherever_it_occurs(job: str) -> None:
    with pytest.raises(CannotWrite, match="no space left"):
        list(run_jobs([job, "sleep"], work, "", 2))
    assert multiprocessing.active_children() == []


def test_closing_kills_running_workers() -> None:
    events = run_jobs(["sleep", "sleep"], work, "", 2)
    assert isinstance(next(events), Started)
    assert len(multiprocessing.active_children()) == 1
    events.close()
    assert multiprocessing.active_children() == []


PARENT = """
import sys
from tests.harness.test_pool import work
from harness.cells.workers import Ticked, run_jobs
import multiprocessing
if __name__ == "__main__":
    for event in run_jobs(["sleep"], work, "", 1):
        if isinstance(event, Ticked):
            print(multiprocessing.active_children()[0].pid, flush=True)
"""


def test_workers_die_with_a_killed_parent(tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    parent = subprocess.Popen(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert parent.stdout is not None
    worker = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    parent.stdout.close()
    wait_until(lambda: has_ended(worker))
