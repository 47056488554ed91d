"""Runs bubblewrap under a filter of system calls: `python filtered.py HEX BWRAP ARGUMENT…`.

bubblewrap takes it from an open file, and puts it on all processes inside, its own first one too:
what is not under it there could be made (ptrace) to call what the filter refuses.
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
