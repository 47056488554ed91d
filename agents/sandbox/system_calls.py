"""Builds the filter of system calls for programs in a sandbox (seccomp(2)).

The filter refuses system calls that ordinary users may make, few programs need, and attackers have
used to escape from sandboxes: creating user namespaces (which give access to calls reserved for
root), keyrings, BPF programs, io_uring, terminal input injection, and socket families that network
namespaces do not isolate. Out: a classic BPF program, or b"" for processors that are not in
PROCESSORS.

The program is assembled here because pyseccomp, the Python binding on PyPI, has had no release
since January 2021 and needs libseccomp.so on the machine.
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
"""The allowed socket families. AF_VSOCK is not allowed, since it reaches the host of a VM."""
LOAD, JUMP_EQUAL, JUMP_FROM, JUMP_BITS, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
ALLOW, ERROR = 0x7FFF0000, 0x00050000
NUMBER, ARCHITECTURE, FIRST, SECOND = 0, 4, 16, 24
"""Offsets in `struct seccomp_data`; for an argument, the offset of its lower 32 bits."""
X32 = 0x40000000
"""The bit that marks x86-64's second set of system call numbers."""


@dataclass(frozen=True, slots=True)
class Numbers:
    """System call numbers of a processor, from <asm/unistd.h>."""

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
    """Return the filter for a processor, named as in `platform.machine()`."""
    numbers = PROCESSORS.get(processor)
    if numbers is None:
        return b""
    program = [
        (LOAD, 0, 0, ARCHITECTURE),
        *_refuse_unless(JUMP_EQUAL, numbers.architecture, errno.ENOSYS),
        (LOAD, 0, 0, NUMBER),
        *_refuse_if(JUMP_FROM, X32, errno.ENOSYS),
        # A filter cannot read clone3's flags, which are in memory. C libraries fall back to clone.
        *_refuse_if(JUMP_EQUAL, numbers.clone3, errno.ENOSYS),
    ]
    for number in (*numbers.refused, *IO_URING):
        program += _refuse_if(JUMP_EQUAL, number, errno.EPERM)
    program += _for_call(numbers.clone, FIRST, _refuse_if(JUMP_BITS, CLONE_NEWUSER, errno.EPERM))
    terminal = [_refuse_if(JUMP_EQUAL, request, errno.EPERM) for request in (TIOCSTI, TIOCLINUX)]
    program += _for_call(numbers.ioctl, SECOND, [*terminal[0], *terminal[1]])
    allowed = [(JUMP_EQUAL, len(FAMILIES) - k, 0, family) for k, family in enumerate(FAMILIES)]
    program += _for_call(numbers.socket, FIRST, [*allowed, _error(errno.EAFNOSUPPORT)])
    program.append((RETURN, 0, 0, ALLOW))
    return b"".join(struct.pack("=HBBI", *step) for step in program)


def filter_for_this_machine() -> bytes:
    return filter_for(platform.machine())


Step = tuple[int, int, int, int]
"""Code, number of steps to skip if the test is true, number if it is false, constant."""


def _error(number: int) -> Step:
    return (RETURN, 0, 0, ERROR | number)


def _refuse_if(test: int, constant: int, number: int) -> list[Step]:
    return [(test, 0, 1, constant), _error(number)]


def _refuse_unless(test: int, constant: int, number: int) -> list[Step]:
    return [(test, 1, 0, constant), _error(number)]


def _for_call(call: int, argument: int, steps: list[Step]) -> list[Step]:
    """Check an argument of one system call. A call that `steps` do not refuse is allowed."""
    allowed: Step = (RETURN, 0, 0, ALLOW)
    return [(JUMP_EQUAL, 0, len(steps) + 2, call), (LOAD, 0, 0, argument), *steps, allowed]
