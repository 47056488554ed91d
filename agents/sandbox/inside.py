"""The first process in the sandbox. `python inside.py JSON COMMAND…` sets limits and runs COMMAND.

JSON: `processes`, `memory_bytes`, `file_bytes`; `owned`: folders that the command will own;
`socket` (or null): the gateway's socket, to which 127.0.0.1:`port` is forwarded; `uids` (or null):
the file in which sandboxes of root lock their uids. Linux; standard library only.

RLIMIT_NPROC counts the processes of a user, and does not apply to root. So if we are root, the
command runs as a user that no other active sandbox on this machine has.
"""

from __future__ import annotations

import asyncio
import ctypes
import fcntl
import json
import os
import resource
import signal
import socket
import stat
import struct
import sys
from contextlib import suppress
from typing import Any, NoReturn

UIDS = range(61184, 65520)
"""systemd's range for dynamic users of services, which no account has."""
ETC = ("passwd", "group", "hosts")
HOSTNAME = "sandbox"
NOT_FOUND, NOT_EXECUTABLE = 127, 126
"""Exit codes as in shells."""
READ_BYTES = 64 * 1024
RETRY_S = 0.01


def main(launch: dict[str, Any], command: list[str]) -> NoReturn:
    is_root = launch["uids"] is not None
    uid = _lock_uid(os.open(launch["uids"], os.O_RDWR)) if is_root else os.getuid()
    _write_etc(uid)
    _fork_forwarder(launch["socket"], launch["port"])
    _limit(launch)
    if is_root:
        _change_owner(launch["owned"], uid)
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    # Python ignores these signals, and exec would keep them ignored.
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvp(command[0], command)  # noqa: S606
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr, flush=True)
        os._exit(NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE)


def _lock_uid(lock: int) -> int:
    """Lock the byte of a free uid in the lock file, and return the uid.

    The forwarder keeps the file open, and thus the lock. The kernel releases it when the sandbox
    ends.
    """
    first = int.from_bytes(os.urandom(4), "little")
    for number in range(len(UIDS)):
        uid = UIDS[(first + number) % len(UIDS)]
        with suppress(BlockingIOError):
            request = struct.pack("hhqqi0q", fcntl.F_WRLCK, os.SEEK_SET, uid, 1, 0)
            fcntl.fcntl(lock, fcntl.F_OFD_SETLK, request)
            return uid
    sys.exit(f"sandbox: all {len(UIDS)} uids are in use on this machine; end other sandboxes")


def _write_etc(uid: int) -> None:
    """Write the names of the user and the host, which some programs require."""
    home = os.environ["HOME"]
    for name, text in zip(
        ETC,
        (
            f"root:x:0:0::/:/bin/sh\nagent:x:{uid}:{uid}::{home}:/bin/sh\n",
            f"root:x:0:\nagent:x:{uid}:\n",
            f"127.0.0.1 localhost {HOSTNAME}\n::1 localhost\n",
        ),
        strict=True,
    ):
        with open(f"/run/{name}", "w") as file:
            file.write(text)


def _limit(launch: dict[str, Any]) -> None:
    # If the machine runs out of memory, the kernel should kill the sandbox and not the engine.
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as adjustment:
        adjustment.write("1000")
    for kind, limit in (
        (resource.RLIMIT_NPROC, launch["processes"]),
        (resource.RLIMIT_DATA, launch["memory_bytes"]),
        (resource.RLIMIT_FSIZE, launch["file_bytes"]),
        (resource.RLIMIT_CORE, 0),
    ):
        hard = resource.getrlimit(kind)[1]
        bound = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(kind, (bound, bound))


def _change_owner(folders: list[str], uid: int) -> None:
    for folder in folders:
        os.lchown(folder, uid, uid)
        for _, folder_names, file_names, folder_fd in os.fwalk(folder):
            for name in (*folder_names, *file_names):
                os.chown(name, uid, uid, dir_fd=folder_fd, follow_symlinks=False)
    # Otherwise the command cannot open /dev/stdout.
    for fd in (0, 1, 2):
        if stat.S_ISFIFO(os.fstat(fd).st_mode):
            os.fchown(fd, uid, uid)


def _fork_forwarder(path: str | None, port: int) -> None:
    """Start the forwarder. It is not a child of the command, which may wait for its children."""
    listener = socket.create_server(("127.0.0.1", port), backlog=1024) if path else None
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        if listener:
            listener.close()
        return
    if os.fork():
        os._exit(0)
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    # If we are root, the forwarder remains root, which owns the socket, but has no capabilities.
    ctypes.CDLL(None).capset(struct.pack("Ii", 0x20080522, 0), bytes(24))
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    if listener is None or path is None:
        signal.pause()
    else:
        asyncio.run(_forward(listener, path))
    os._exit(0)


async def _forward(listener: socket.socket, path: str) -> None:
    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            upstream = await _connect(path)
        except OSError:
            writer.transport.abort()
            return
        await asyncio.gather(_copy(reader, upstream[1]), _copy(upstream[0], writer))

    server = await asyncio.start_server(connected, sock=listener)
    await server.serve_forever()


async def _connect(path: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    upstream = socket.socket(socket.AF_UNIX)
    upstream.setblocking(False)
    while True:
        try:
            upstream.connect(path)
            return await asyncio.open_unix_connection(sock=upstream)
        except BlockingIOError:  # the queue is full, which asyncio would mistake for a connection
            await asyncio.sleep(RETRY_S)
        except OSError:
            upstream.close()
            raise


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy until the reader ends. Its end is forwarded as an end, and its failure as an abort."""
    try:
        while data := await reader.read(READ_BYTES):
            writer.write(data)
            await writer.drain()
        writer.write_eof()
    except OSError:
        writer.transport.abort()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), sys.argv[2:])
