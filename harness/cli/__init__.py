"""The command line. In: command-line arguments. Out: run folders, tables on stdout, an exit code.

`main` holds the application; `commands` has one file per command. `start` is what `bench` calls.
"""

from __future__ import annotations

import os
import signal
from types import FrameType


def start() -> None:
    """Run `bench`. A signal that arrives during the imports ends the process at once, since nothing
    has to be undone."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        if signal.getsignal(number) != signal.SIG_IGN:  # nohup
            signal.signal(number, _end)
    from harness.cli.main import main

    main()


def _end(number: int, _frame: FrameType | None) -> None:
    os.write(2, b"bench: stopped\n")
    os._exit(128 + number)
