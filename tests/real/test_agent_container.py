"""Containers as mini-swe-agent's environment `docker` starts and uses them, with our run_args."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agents.sandbox.bubblewrap import Limits
from agents.sandbox.container import Containers
from tests.agents.planner import planner
from tests.real.podman import IMAGE, SYSTEM, needs_podman, podman_at

pytestmark = needs_podman
MOUNTS = [f"--volume={path}:{path}:ro" for path in SYSTEM]
LIMITS = Limits(processes=50, memory_bytes=200 << 20)


@pytest.fixture(scope="module")
def podman(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with podman_at(tmp_path_factory.mktemp("podman")) as podman:
        yield podman


@pytest.fixture
def containers(podman: Path, tmp_path: Path) -> Containers:
    found = Containers(str(podman), tmp_path, LIMITS)
    found.check()
    return found


def start(containers: Containers, program: str = "a") -> str:
    args = [*containers.run_args(program), *MOUNTS, IMAGE, "sleep", "2h"]
    return said_by(containers, "run", "-d", "-w", "/", *args).strip()


def said_by(containers: Containers, *command: str) -> str:
    return subprocess.run(
        [containers.executable, *command], capture_output=True, text=True, check=True
    ).stdout


def bash(containers: Containers, container: str, script: str) -> str:
    return said_by(containers, "exec", "-w", "/", container, "bash", "-lc", f"exec 2>&1; {script}")


def test_its_network_is_its_own_loopback(containers: Containers) -> None:
    with containers.cleaned_up(containers.folder / "log"):
        said = bash(containers, start(containers), "tail -n +3 /proc/net/dev | cut -d: -f1")
    assert said.split() == ["lo"]


def test_a_fork_bomb_is_contained_and_removed(containers: Containers) -> None:
    with containers.cleaned_up(containers.folder / "log"):
        container = start(containers)
        said = bash(
            containers,
            container,
            "(:(){ :|:& };:) 2>/dev/null; "
            "until set -- /proc/[0-9]* && (( $# > 40 )); do :; done; echo $#",
        )
        # While the shell lists them, some go and others come: never more than 50 at a time.
        assert int(said.splitlines()[-1]) <= 100
    assert said_by(containers, "ps", "-aq") == ""


def test_memory_of_all_processes_together_has_an_end(containers: Containers) -> None:
    with containers.cleaned_up(containers.folder / "log"):
        hog = "python3 -c 'bytearray(300 << 20)'; echo $?"
        assert bash(containers, start(containers), hog).splitlines()[-1] == "137"


def test_orphans_are_reaped(containers: Containers) -> None:
    with containers.cleaned_up(containers.folder / "log"):
        container = start(containers)
        orphan = (
            "(sleep 0.1 & echo $! > /tmp/orphan); while [ -d /proc/$(cat /tmp/orphan) ]; do :; done"
        )
        assert (
            bash(containers, container, f"timeout 60 bash -c '{orphan}' && echo reaped")
            == "reaped\n"
        )


def test_what_an_earlier_run_in_the_folder_left_is_removed_and_nothing_else(
    containers: Containers, tmp_path: Path
) -> None:
    other = Containers(containers.executable, tmp_path / "other", LIMITS)
    left, kept = start(containers), start(other)
    with containers.cleaned_up(tmp_path / "log"):
        assert said_by(containers, "ps", "-aq", "--no-trunc").split() == [kept]
    assert left != kept
    other.remove()
    assert said_by(containers, "ps", "-aq") == ""


def test_no_container_outlives_a_bench_that_was_killed(
    containers: Containers, tmp_path: Path
) -> None:
    script = (
        "import subprocess, sys\n"
        "from pathlib import Path\n"
        "from agents.sandbox.container import Containers\n"
        "podman, folder, *rest = sys.argv[1:]\n"
        "containers = Containers(podman, Path(folder))\n"
        "with containers.cleaned_up(Path(folder, 'log')):\n"
        "    command = [podman, 'run', '-d', *containers.run_args('a'), *rest, 'sleep', '2h']\n"
        "    subprocess.run(command, check=True)\n"
        "    input()\n"
    )
    args = [containers.executable, str(tmp_path), *MOUNTS, IMAGE]
    with subprocess.Popen(
        [sys.executable, "-c", script, *args],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as bench:
        assert bench.stdout is not None
        container = bench.stdout.readline().strip()
        assert said_by(containers, "ps", "-aq", "--no-trunc").split() == [container]
        bench.send_signal(signal.SIGKILL)
    deadline_s = time.monotonic() + 60
    while said_by(containers, "ps", "-aq"):
        assert time.monotonic() < deadline_s
        time.sleep(0.1)


@pytest.mark.skipif("TURNSTILE_AGENT_PYTHON" not in os.environ, reason="no mini-swe-agent")
def test_mini_swe_agent_does_its_task_in_the_tasks_image(podman: Path, tmp_path: Path) -> None:
    """That image holds nothing, so podman is told to show it this machine's system."""
    shown = "".join(f'"{path}:{path}:ro",' for path in SYSTEM)
    conf = podman.with_name("containers.conf")
    conf.write_text(conf.read_text().replace("[engine]", f"volumes = [{shown}]\n[engine]"))
    plan = ["echo hi > x", "ls /work /root; cat x", "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"]
    task = {"instance_id": "a", "problem_statement": json.dumps(plan), "image_name": IMAGE}
    (tmp_path / "tasks.jsonl").write_text(json.dumps(task))
    (tmp_path / "mini.yaml").write_text(
        "agent: {instance_template: '{{task}}', system_template: 's'}\n"
        "environment: {cwd: /tmp, interpreter: [bash, -c]}\n"
    )
    bench = str(Path(sys.executable).parent / "bench")
    with planner() as url:
        run = subprocess.run(
            [
                *(bench, "run", "--engine", url, "--agent", "mini-swe-agent", "--jps", "1"),
                *("--sandbox", "container", "--tasks", "tasks.jsonl", "--out", "o"),
                *("--agent-config", "mini.yaml"),
            ],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "PATH": f"{podman.parent}:{os.environ['PATH']}"},
        )
    (cell,) = (tmp_path / "o").glob("as-served*")
    (end,) = [json.loads(line) for line in (cell / "programs.jsonl").read_text().splitlines()]
    assert (end["exit_status"], end["error"]) == ("Submitted", None), run.stderr
    (trajectory,) = cell.glob("agents/*/trajectory.json")
    outputs = [str(m["content"]) for m in json.loads(trajectory.read_text())["messages"][2:]]
    assert any("cannot access '/work'" in output and "hi" in output for output in outputs)
    assert subprocess.run([podman, "ps", "-aq"], capture_output=True, check=True).stdout == b""
