"""`bench sweep --cluster`: cells on the nodes of a Ray cluster, whose nodes and workers may die."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil
import pytest

from tests.leaks import descendants
from tests.processes import session_of, wait_until, wait_until_none
from tests.sentences import mentions

pytest.importorskip("ray", reason="Ray is not installed: pip install 'turnstile-bench[ray]'")

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {
    "GIT_DIR": os.devnull,
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": "ab" * 32,
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
}
NODES = 2
SWEEP = (
    *("sweep", "--once", "--programs", "50", "--jps", "0.2,0.3"),
    *("--policies", "fcfs,waiting:Waits", "--out", "run"),
)
WAITS = """
import os, time
from pathlib import Path
from servers.policies import user_code
from servers.policies.base import Policy

user_code.CALL_LIMIT_S = 400.0

HERE = Path(__file__).parent

class Waits(Policy):
    \"\"\"Stock vLLM, which in a run waits for at most 5 min while a file `wait` exists.\"\"\"

    name = "waits"

    def finished(self, request, now_s):
        waiting = (HERE / "run").is_dir() and (HERE / "wait").exists()
        if waiting:
            (HERE / f"waits-{os.getpid()}").touch()
        end_s = time.monotonic() + 300
        while waiting and (HERE / "wait").exists() and time.monotonic() < end_s:
            time.sleep(0.05)
        return super().finished(request, now_s)
"""
ENDLESS = ("sweep", "--once", "--programs", "2000", "--policies", "fcfs,continuum", "--out", "run")
KILLS_ITSELF = """
import os, signal
from servers.policies.base import Policy

class KillsItself(Policy):
    \"\"\"Kills its process at its hundredth turn.\"\"\"

    name = "kills-itself"
    turns = 0

    def finished(self, request, now_s):
        KillsItself.turns += 1
        if KillsItself.turns == 100:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().finished(request, now_s)
"""


@dataclass(slots=True)
class Nodes:
    """A running `tests.cluster.nodes`."""

    process: subprocess.Popen[str]
    address: str

    def kill_one(self) -> int:
        """Kill a node; return how many are left."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(file=self.process.stdin, flush=True)
        return int(self.process.stdout.readline())


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    # Short, since it is part of the names of Ray's sockets. Killed workers leave files there.
    with (
        TemporaryDirectory() as folder,
        subprocess.Popen(
            [sys.executable, "-m", "tests.cluster.nodes", str(NODES)],
            cwd=ROOT,
            env={**os.environ, **ENVIRONMENT, "TMPDIR": folder},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        ) as process,
    ):
        assert process.stdout is not None
        yield Nodes(process, process.stdout.readline().strip())


@pytest.fixture(autouse=True)
def _workers_of_earlier_sweeps_have_ended(request: pytest.FixtureRequest) -> Iterator[None]:
    """End the idle worker processes of a sweep, of which Ray keeps some for the next one."""
    yield
    if "nodes" in request.fixturenames:
        running: Nodes = request.getfixturevalue("nodes")

        def workers() -> list[int]:
            return [pid for pid in descendants(running.process.pid) if is_worker(pid)]

        def end_workers() -> list[int]:
            for pid in workers():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            return workers()

        wait_until_none(end_workers)


def is_worker(pid: int) -> bool:
    with suppress(OSError):
        title = Path(f"/proc/{pid}/cmdline").read_bytes()
        return title.startswith(b"ray::") and not title.startswith((b"ray::Dash", b"ray::Runtime"))
    return False


@contextmanager
def started(
    program: str, folder: Path, *argv: str, environment: dict[str, str] | None = None
) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [program, *argv],
        cwd=folder,
        env={**os.environ, **(ENVIRONMENT if environment is None else environment)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        yield process


def cells(run: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(run)): path.read_bytes()
        for path in sorted(run.glob("*_seed*/**/*"))
        if path.is_file()
    }


def test_a_sweep_on_nodes_of_which_one_is_killed_has_the_bytes_of_one_machine(
    bench: str, nodes: Nodes, tmp_path: Path
) -> None:
    local = tmp_path / "local"
    local.mkdir()
    for folder in (tmp_path, local):
        (folder / "waiting.py").write_text(WAITS)
    with started(bench, local, *SWEEP, "--shard", "1/1") as sweep:  # writes no report
        assert "the sweep is finished" in sweep.communicate(timeout=300)[0]
    wait = tmp_path / "wait"
    wait.touch()
    with started(bench, tmp_path, *SWEEP, "--cluster", nodes.address) as sweep:
        # Then each node has a cell that goes on only after one of the nodes has been killed.
        wait_until(lambda: len(list(tmp_path.glob("waits-*"))) == NODES, process=sweep)
        assert nodes.kill_one() == NODES - 1
        wait.unlink()
        _, err = sweep.communicate(timeout=300)
    assert sweep.returncode == 0, err
    assert "running 4 cells of 533 turns on 2 workers" in err
    assert "(NodeDiedError); it runs again, retry 1 of 3" in err
    assert len(list(tmp_path.glob("run/*/done.json"))) == 4
    assert cells(tmp_path / "run") == cells(local / "run")
    assert (tmp_path / "run/report.html").is_file()
    assert not list(tmp_path.glob("run/*.aside*"))


def test_in_a_ray_job_a_cell_that_kills_its_worker_fails_after_three_retries(
    bench: str, nodes: Nodes, tmp_path: Path
) -> None:
    """`examples/cluster/ray_job.sh`, which `ray job submit` gives the address of its cluster."""
    for name in ("ray_job.sh", "sweep.toml"):
        shutil.copy(ROOT / "examples/cluster" / name, tmp_path)
    (tmp_path / "killing.py").write_text(KILLS_ITSELF)
    policies = ("--policies", "fcfs,killing:KillsItself", "--jps", "0.3")
    job = {
        **ENVIRONMENT,
        "OUT": "run",
        "PATH": f"{Path(bench).parent}:{os.environ['PATH']}",
        "RAY_ADDRESS": nodes.address,
    }
    options = ("ray_job.sh", "--once", "--seeds", "1", "--programs", "20", *policies)
    with started("bash", tmp_path, *options, environment=job) as sweep:
        _, err = sweep.communicate(timeout=300)
    assert sweep.returncode == 1
    assert [line.rpartition(", ")[2] for line in err.splitlines() if "runs again" in line] == [
        f"retry {number} of 3" for number in (1, 2, 3)
    ]
    assert mentions(err, "failed: kills-itself_jps0.3_seed1", "died 4 times")
    assert (tmp_path / "run/fcfs_jps0.3_seed1/done.json").is_file()


def test_cells_that_no_node_can_run_are_refused(nodes: Nodes) -> None:
    code = f"""
from harness.cluster.connection import Needs, connected
from servers.basics.errors import InvalidInput
try:
    with connected({nodes.address!r}, 1, Needs(cores=1, gpus=2)):
        pass
except InvalidInput as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, **ENVIRONMENT},
        capture_output=True,
        text=True,
    )
    needs = f"--cluster {nodes.address}", "2 GPUs on one node", "0"
    assert mentions(done.stdout, *needs), done.stderr
    assert len(done.stdout.splitlines()) == 1


def test_the_cluster_of_this_machine_is_on_loopback_and_leaves_nothing_when_it_is_stopped(
    bench: str, tmp_path: Path
) -> None:
    own = {"GIT_DIR": os.devnull, "HOME": str(tmp_path)}
    with started(bench, tmp_path, *ENDLESS, "--cluster", "ray", environment=own) as sweep:
        wait_until(
            lambda: (
                list(tmp_path.glob("run/*/sweep.json")) or list(tmp_path.glob("run/sweep.json"))
            ),
            process=sweep,
        )
        wait_until(lambda: any(map(is_worker, descendants(sweep.pid))), process=sweep)
        addresses = listening(sweep.pid)
        assert len(addresses) > 3
        assert set(addresses) == {"127.0.0.1"}
        folders = folders_of(sweep.pid)
        assert folders
        sweep.terminate()
        _, err = sweep.communicate(timeout=300)
    assert sweep.returncode == 143
    assert mentions(err, "stopped", "resume with: bench sweep")
    wait_until_none(lambda: session_of(sweep.pid))
    assert not [folder for folder in folders if folder.exists()]
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != ".cache") == ["run"]


def folders_of(pid: int) -> set[Path]:
    """Return Ray's folders in /tmp that the command lines of the descendants of a process name."""
    found: set[Path] = set()
    for each in descendants(pid):
        with suppress(OSError):
            argv = Path(f"/proc/{each}/cmdline").read_text()
            found.update(map(Path, re.findall("/tmp/turnstile-ray-[^/\\0]+", argv)))  # noqa: S108
    return found


def listening(pid: int) -> list[str]:
    """Return the addresses on which a process and its descendants listen."""
    found: list[str] = []
    for each in {pid, *descendants(pid)}:
        with suppress(psutil.Error):
            sockets = psutil.Process(each).net_connections("inet")
            found += [s.laddr.ip for s in sockets if s.status == psutil.CONN_LISTEN]
    return [address.removeprefix("::ffff:") for address in found]
