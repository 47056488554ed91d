"""Fork `bench` from a process that has already run it: a start takes milliseconds, so that tests
can kill hundreds of them.

`python -m tests.crash.warm` reads JSON lines, each a list of runs (`argv`, `cwd`, `env`, `output`
and `fault`) at the same time. It prints their process ids, which are also their session ids, and
then their exit codes. Workers are forked too, whereas `bench` itself starts them as new processes.
"""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import signal
import sys
from contextlib import redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from harness.cli.main import main as bench
from tests.crash.faults import Fault
from tests.crash.small_sweep import ALONE, ROOT, sweep_folder


def main() -> None:
    fork = multiprocessing.get_context("fork")
    multiprocessing.get_context = lambda _kind=None: fork
    os.register_at_fork(after_in_child=_reset_child)
    _warm_up()
    gc.freeze()
    for line in sys.stdin:
        pids = [_fork(order) for order in json.loads(line)]
        print(*pids, sep="\n", flush=True)
        for pid in pids:
            _, status = os.waitpid(pid, 0)
            print(os.waitstatus_to_exitcode(status), flush=True)


def _fork(order: dict[str, Any]) -> int:
    pid = os.fork()
    if pid == 0:
        _become(order)
        bench()
    return pid


def _warm_up() -> None:
    """Run once, for the imports and for what libraries initialise at their first use."""
    with TemporaryDirectory() as folder, open(os.devnull, "w") as nowhere:
        os.chdir(sweep_folder(Path(folder)))
        sys.argv = ["bench", *ALONE]
        with redirect_stdout(nowhere), redirect_stderr(nowhere), suppress(SystemExit):
            bench()
        os.chdir(ROOT)


def _reset_child() -> None:
    """Drop the parent's signal handler and its lock on a folder."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for handle in Path("/proc/self/fd").iterdir():
        if handle.is_dir():
            os.close(int(handle.name))


def _become(order: dict[str, Any]) -> None:
    os.setsid()
    os.chdir(order["cwd"])
    os.environ.clear()
    os.environ.update(order["env"])
    output = os.open(order["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.argv = ["bench", *order["argv"]]
    if order["fault"] is not None:
        Fault(**order["fault"]).install()


if __name__ == "__main__":
    main()
