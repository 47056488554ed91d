"""Runs bubblewrap with a filter of system calls: `python filtered.py HEX BWRAP ARGUMENT…`.

bubblewrap reads the filter from an open file, and applies it to all processes in the sandbox,
including its own first process. Otherwise a process could use ptrace to make that first process
call what the filter refuses.
"""

from __future__ import annotations

import os
import sys


def main(program: bytes, command: list[str]) -> None:
    fd = os.memfd_create("filter", 0)
    os.write(fd, program)
    os.lseek(fd, 0, os.SEEK_SET)
    try:
        os.execv(command[0], [command[0], "--seccomp", str(fd), *command[1:]])  # noqa: S606
    except OSError as error:
        sys.exit(f"{command[0]}: {error.strerror}")


if __name__ == "__main__":
    main(bytes.fromhex(sys.argv[1]), sys.argv[2:])
