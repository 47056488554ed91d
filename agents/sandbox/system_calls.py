"""The filter of system calls under which a program in a sandbox runs (seccomp(2)).

Refused is what an ordinary user may ask of the kernel, what hardly any program needs, and what has
led out of sandboxes: new user namespaces (with them, all that is root's alone), the kernel's keys,
its own programs and rings, input put into a terminal, and sockets of families that no network
namespace holds. Out: a classic BPF program; none for processors whose numbers are not here.
"""

from __future__ import annotations

import errno
import platform
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass

CLONE_NEWUSER = 0x10000000
TIOCSTI, TIOCLINUX = 0x5412, 0x541C
FAMILIES = (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK)
"""Not AF_VSOCK, which from a virtual machine reaches its host."""
LOAD, JUMP_EQUAL, JUMP_FROM, JUMP_BITS, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
ALLOW, ERROR = 0x7FFF0000, 0x00050000
NUMBER, ARCHITECTURE, FIRST, SECOND = 0, 4, 16, 24
"""Places in `struct seccomp_data`; of arguments the lower half."""
X32 = 0x40000000
"""Bit of x86-64's second set of numbers, for the same calls."""


@dataclass(frozen=True, slots=True)
class Numbers:
    """<asm/unistd.h> of a processor."""

    architecture: int
    clone: int
    clone3: int
    ioctl: int
    socket: int
    refused: tuple[int, ...]
    """unshare, setns, add_key, request_key, keyctl, bpf, perf_event_open, userfaultfd."""


IO_URING = (425, 426, 427)
PROCESSORS: Mapping[str, Numbers] = {
    "x86_64": Numbers(0xC000003E, 56, 435, 16, 41, (272, 308, 248, 249, 250, 321, 298, 323)),
    "aarch64": Numbers(0xC00000B7, 220, 435, 29, 198, (97, 268, 217, 218, 219, 280, 241, 282)),
}


def filter_for(processor: str) -> bytes:
    """As `platform.machine()` names it; b"" for one that is not known."""
    numbers = PROCESSORS.get(processor)
    if numbers is None:
        return b""
    program = [
        (LOAD, 0, 0, ARCHITECTURE),
        *_unless(JUMP_EQUAL, numbers.architecture, errno.ENOSYS),
        (LOAD, 0, 0, NUMBER),
        *_where(JUMP_FROM, X32, errno.ENOSYS),
        # Its flags lie in memory, where no filter looks; callers then take clone.
        *_where(JUMP_EQUAL, numbers.clone3, errno.ENOSYS),
    ]
    for number in (*numbers.refused, *IO_URING):
        program += _where(JUMP_EQUAL, number, errno.EPERM)
    program += _of(numbers.clone, FIRST, _where(JUMP_BITS, CLONE_NEWUSER, errno.EPERM))
    terminal = [_where(JUMP_EQUAL, request, errno.EPERM) for request in (TIOCSTI, TIOCLINUX)]
    program += _of(numbers.ioctl, SECOND, [*terminal[0], *terminal[1]])
    known = [(JUMP_EQUAL, len(FAMILIES) - place, 0, each) for place, each in enumerate(FAMILIES)]
    program += _of(numbers.socket, FIRST, [*known, _error(errno.EAFNOSUPPORT)])
    program.append((RETURN, 0, 0, ALLOW))
    return b"".join(struct.pack("=HBBI", *step) for step in program)


def here() -> bytes:
    return filter_for(platform.machine())


Step = tuple[int, int, int, int]
"""Code, steps over which a jump goes where its test holds, and where not, constant."""


def _error(number: int) -> Step:
    return (RETURN, 0, 0, ERROR | number)


def _where(test: int, constant: int, number: int) -> list[Step]:
    return [(test, 0, 1, constant), _error(number)]


def _unless(test: int, constant: int, number: int) -> list[Step]:
    return [(test, 1, 0, constant), _error(number)]


def _of(call: int, argument: int, steps: list[Step]) -> list[Step]:
    """Of one system call: its argument is looked at; what is not refused is allowed."""
    allowed: Step = (RETURN, 0, 0, ALLOW)
    return [(JUMP_EQUAL, 0, len(steps) + 2, call), (LOAD, 0, 0, argument), *steps, allowed]
