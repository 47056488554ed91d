"""How a router of another project starts, fails and stops."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from servers.basics.errors import ServerFailed
from servers.foreign_routers.process import RouterProcess, launch_router
from servers.processes import server as server_process
from servers.processes.port import Port, request
from servers.processes.supervisor import descendants
from servers.routing import ForeignRouter
from tests.bench.trivial_server import trivial_server
from tests.foreign_routers.replaying import deployment, installation
from tests.processes import session_of, wait_until, wait_until_none
from tests.sentences import mentions

ROUND_ROBIN = ForeignRouter("vllm-router", "round_robin")


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with trivial_server() as url:
        yield url


def launched(server: str, folder: Path) -> RouterProcess:
    return launch_router(ROUND_ROBIN, installation(), deployment(server), folder / "router.log")


def test_it_serves_on_loopback_without_a_proxy_and_leaves_no_process_and_no_port(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing listens on port 9, so through that proxy the router finds no healthy server."""
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with launched(server, tmp_path) as router:
        port = int(router.base_url.removeprefix("http://127.0.0.1:"))
        assert request(port, "/v1/models")[0] == 200
        addresses = listening(descendants(router.pid))
        assert len(addresses) == 2  # its own, and that of its metrics
        assert {host for host, _ in addresses} == {"127.0.0.1"}
        assert router.failure() is None
    assert session_of(router.pid) == []
    for _, number in addresses:
        Port(number).close()


def test_a_killed_router_has_failed_and_leaves_no_process(server: str, tmp_path: Path) -> None:
    with launched(server, tmp_path) as router:
        for pid in descendants(router.pid):
            os.kill(pid, signal.SIGKILL)
        wait_until(router.failure)
        assert mentions(str(router.failure()), "vllm-router:round_robin", "signal 9")
        wait_until_none(lambda: session_of(router.pid))


def test_a_router_that_cannot_start_fails_with_the_cause_in_its_log(tmp_path: Path) -> None:
    with pytest.raises(ServerFailed) as failed:
        launched("nonsense", tmp_path)
    cause = "ValueError", "'worker_url': nonsense", f"(log: {tmp_path / 'router.log'})"
    assert mentions(str(failed.value), "vllm-router:round_robin", "code 1", *cause)


def test_a_router_without_healthy_servers_is_given_up(tmp_path: Path) -> None:
    log = tmp_path / "router.log"
    with pytest.raises(ServerFailed, match=r"was not healthy after 0.5 s: "):
        launch_router(
            ROUND_ROBIN, installation(), deployment("http://127.0.0.1:9"), log, ready_within_s=0.5
        )


def test_other_ports_are_used_if_another_process_takes_one(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After they were reserved, another process gets the first router's own port, and the port of
    the second one's metrics. The third router serves."""
    reserved: list[int] = []
    with ExitStack() as thieves:

        class Reserved(Port):
            def __init__(self, number: int | None = None) -> None:
                super().__init__(number)
                if len(reserved) in (0, 3):
                    thief = thieves.enter_context(socket.socket())
                    thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    thief.bind(("127.0.0.1", self.number))
                    thief.listen()
                reserved.append(self.number)

        monkeypatch.setattr(server_process, "Port", Reserved)
        with launched(server, tmp_path) as router:
            assert router.failure() is None
            assert router.base_url == f"http://127.0.0.1:{reserved[4]}"
    assert len(reserved) == 6


def listening(pids: list[int]) -> set[tuple[str, int]]:
    """Return the addresses on which the processes listen, from the kernel's tables."""
    inodes = set()
    for pid in pids:
        links = [os.readlink(entry) for entry in Path(f"/proc/{pid}/fd").iterdir()]
        inodes |= {link[8:-1] for link in links if link.startswith("socket:[")}
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                host, _, port = fields[1].partition(":")
                address = socket.inet_ntoa(bytes.fromhex(host)[::-1]) if table == "tcp" else host
                found.add((address, int(port, 16)))
    return found
