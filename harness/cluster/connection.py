"""Connects to a Ray cluster, or starts one on this machine for the length of a sweep.

In: `--cluster`. Out: a connection that `harness.cluster.tasks` uses. A cluster that does not answer
is refused here, before a run folder is made.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NamedTuple

from servers.basics.errors import InvalidInput, Unavailable
from servers.basics.text import one_line
from servers.processes.deferred import ENDING

LOCAL = "ray"
ADDRESS = "RAY_ADDRESS"
"""Set by Ray for the command of a job, to the cluster that runs it."""
ANSWER_TIMEOUT_S = 10.0
LOCAL_SETTINGS = {
    # Ray's switch for its loopback address on all systems; otherwise its ports are open to the
    # network, and a cluster on 127.0.0.1 cannot be found.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
}


class Needs(NamedTuple):
    """What one cell needs of its node."""

    cores: int
    gpus: int


@contextmanager
def connected(cluster: str, cores: int, needs: Needs) -> Iterator[None]:
    """Connect to the cluster, or start a local one with `cores` cores. Raises InvalidInput if no
    node is large enough for a cell, and Unavailable if there is no connection."""
    address = _address(cluster)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "error")  # otherwise on stderr
    if address is None or address.startswith(("127.0.0.1:", "localhost:")):
        os.environ.update(LOCAL_SETTINGS)  # before the import, which reads them
    if address is None:
        # Other users of this machine can connect to its loopback ports, too.
        os.environ.setdefault("RAY_AUTH_MODE", "token")
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    ray = import_ray()
    options: dict[str, Any] = {}
    folder = None
    if address is None:
        # Paths of Ray's sockets have at most 107 characters, which a long TMPDIR would exceed.
        folder = tempfile.mkdtemp(prefix="turnstile-ray-", dir="/tmp")
        options = {"num_cpus": cores, "_temp_dir": folder, "include_dashboard": False}
    else:
        refuse_silent(address, cluster)
    try:
        with signals_kept(), _temporary_folder(folder):
            _init(ray, cluster, {"address": address or "local", **options})
        _refuse_too_small(ray, needs, cluster)
        with _sigterm_told_from_ctrl_c():
            yield
    finally:
        ray.shutdown()
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)


def _address(cluster: str) -> str | None:
    """Return the address of a running cluster; None to start one on this machine."""
    if cluster == LOCAL:
        return os.environ.get(ADDRESS) or None
    if re.fullmatch(r"(ray://)?[A-Za-z0-9._-]+:[0-9]{1,5}", cluster):
        return cluster
    raise InvalidInput(
        f"--cluster {cluster!a}: give ray (a cluster of this machine), HOST:6379 on a node of a "
        "Ray cluster, or ray://HOST:10001"
    )


def import_ray() -> Any:
    try:
        import grpc  # noqa: F401 (of the extra ray[client])
        import ray
    except ImportError:
        raise Unavailable("--cluster: needs Ray; pip install 'turnstile-bench[ray]'") from None
    return ray


def refuse_silent(address: str, cluster: str) -> None:
    """Raise Unavailable unless a gRPC server answers. Ray itself waits for two minutes, and
    then ends the process."""
    if os.environ.get("RAY_USE_TLS", "0") not in ("0", "false"):
        return  # It answers only with Ray's certificates.
    import grpc

    with grpc.insecure_channel(address.removeprefix("ray://")) as channel:
        try:
            grpc.channel_ready_future(channel).result(timeout=ANSWER_TIMEOUT_S)
        except grpc.FutureTimeoutError:
            raise Unavailable(
                f"--cluster {cluster}: no Ray cluster answered within {ANSWER_TIMEOUT_S:.0f} s; "
                "check the address, and that its port can be reached"
            ) from None


def _init(ray: Any, cluster: str, options: dict[str, Any]) -> None:
    logging.getLogger("ray").setLevel(logging.ERROR)
    try:
        ray.init(
            **options, log_to_driver=False, configure_logging=False, logging_level=logging.ERROR
        )
    except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        raise Unavailable(
            f"--cluster {cluster}: cannot use the Ray cluster: {one_line(str(error))}; its Ray and "
            "Python must have the versions of bench, and RAY_AUTH_TOKEN must be its token, if any"
        ) from None


@contextmanager
def signals_kept() -> Iterator[None]:
    """Keep the handlers of bench, which Ray replaces by its own."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, *ENDING)}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


@contextmanager
def _temporary_folder(folder: str | None) -> Iterator[None]:
    """Let the workers of a local cluster write into its folder, since those of an interrupted sweep
    cannot remove their files."""
    if folder is None:
        yield
        return
    before = os.environ.get("TMPDIR")
    os.environ["TMPDIR"] = folder
    try:
        yield
    finally:
        del os.environ["TMPDIR"]
        if before is not None:
            os.environ["TMPDIR"] = before


@contextmanager
def _sigterm_told_from_ctrl_c() -> Iterator[None]:
    """Raise what the handler of SIGTERM raises. While Ray waits, it replaces that by a plain
    KeyboardInterrupt."""
    handler, received = signal.getsignal(signal.SIGTERM), False

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal received
        received = True
        if callable(handler):
            handler(number, frame)

    signal.signal(signal.SIGTERM, note)
    try:
        yield
    except KeyboardInterrupt:
        if received and callable(handler):
            handler(signal.SIGTERM, None)
        raise
    finally:
        signal.signal(signal.SIGTERM, handler)


def _refuse_too_small(ray: Any, needs: Needs, cluster: str) -> None:
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    if any(
        node.get("CPU", 0) >= needs.cores and node.get("GPU", 0) >= needs.gpus for node in nodes
    ):
        return
    most = max((int(node.get("GPU", 0)) for node in nodes), default=0)
    what = f"{needs.gpus} GPUs on one node, but the largest has {most}" if needs.gpus else "a core"
    raise InvalidInput(f"--cluster {cluster}: a cell needs {what}; add a larger node")
