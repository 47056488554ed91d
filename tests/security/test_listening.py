"""Servers listen on this machine's loopback, unless the user chooses another address."""

from __future__ import annotations

import os
import re
import socket
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from harness.gateway.access import TOKEN
from servers.basics.errors import InvalidInput
from servers.processes.supervisor import descendants
from servers.vllm.launch.command_line import ServerConfig, flags
from servers.vllm.launch.find_vllm import vllm_in_image
from servers.vllm.models.model_folder import resolve_model
from tests.agents.planner import planner
from tests.agents.test_runs import CELL, WITHOUT_SANDBOX, begin, check_end
from tests.crash.trials import Warm
from tests.processes import wait_until

LISTENS = "0A"
LOOPBACK = {"0100007F", "00000000000000000000000001000000"}
"""127.0.0.1 and ::1 as /proc/net/tcp writes them, on a machine that is little endian."""


def listening(pid: int) -> set[str]:
    """Return the addresses on which a process and its descendants listen."""
    inodes = set()
    for each in (pid, *descendants(pid)):
        with suppress(FileNotFoundError, ProcessLookupError):  # A descendant may have ended.
            for fd in Path(f"/proc/{each}/fd").iterdir():
                with suppress(OSError):
                    inodes |= set(re.findall(r"^socket:\[(\d+)\]$", os.readlink(fd)))
    rows = [
        line.split()
        for table in ("tcp", "tcp6")
        for line in Path("/proc/net", table).read_text().splitlines()[1:]
    ]
    return {row[1].partition(":")[0] for row in rows if row[3] == LISTENS and row[9] in inodes}


def gateway(
    bench: str, folder: Path, url: str, *options: str, named: str = "127.0.0.1"
) -> set[str]:
    with subprocess.Popen(
        [bench, "gateway", url, *options],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, TOKEN: "sixteen-characters"},
    ) as running:
        assert running.stdout is not None
        assert running.stdout.readline().startswith(f"http://{named}:")
        found = listening(running.pid)
        running.terminate()
        running.communicate()
    return found


def test_a_gateway_listens_on_loopback_by_default(bench: str, tmp_path: Path) -> None:
    with planner() as url:
        assert gateway(bench, tmp_path, url) == {"0100007F"}
        named, anywhere = socket.gethostname(), ("--listen", "0.0.0.0")  # noqa: S104
        everywhere = gateway(bench, tmp_path, url, *anywhere, named=named)
    assert everywhere == {"00000000"}


def test_a_run_of_agents_listens_only_on_loopback(warm: Warm, tmp_path: Path) -> None:
    with planner() as url:
        until_seen = "for i in $(seq 600); do [ -e seen ] && break; sleep 0.1; done"
        plan = [f"touch here; {until_seen}"]
        run = begin(warm, tmp_path, url, {"a": plan}, *WITHOUT_SANDBOX)
        pattern = f"o/{CELL}/agents/*/workspace/here"
        wait_until(lambda: list(tmp_path.glob(pattern)))
        found = listening(run)
        next(tmp_path.glob(pattern)).with_name("seen").touch()
        check_end(warm, tmp_path)
    assert found
    assert found <= LOOPBACK


@pytest.mark.parametrize(
    ("given", "remedy"),
    [
        (("--host", "0.0.0.0"), "use bench gateway --listen"),  # noqa: S104
        (("--host=::",), "use bench gateway --listen"),
        (("--api-key", "hush"), "set VLLM_API_KEY in the environment"),
        (("--api_key=hush",), "set VLLM_API_KEY in the environment"),
        (("--hf-token", "hush"), "set HF_TOKEN in the environment"),
    ],
)
def test_flags_of_vllm_that_open_it_or_show_a_key_are_refused(
    given: tuple[str, ...], remedy: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidInput, match=remedy) as refused:
        flags(
            ServerConfig(flags=given),
            vllm_in_image(None),
            resolve_model("tiny", "dummy", tmp_path),
            8000,
        )
    assert "hush" not in str(refused.value)
