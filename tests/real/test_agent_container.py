"""Containers with our run_args, started and used as mini-swe-agent's `docker` environment does."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agents.sandbox.bubblewrap import SandboxLimits
from agents.sandbox.container import Containers
from tests.agents.planner import planner
from tests.lines import read_lines
from tests.processes import wait_until_none
from tests.real.podman import IMAGE, SYSTEM, needs_podman, podman_at

pytestmark = needs_podman
MOUNTS = [f"--volume={path}:{path}:ro" for path in SYSTEM]
LIMITS = SandboxLimits(processes=50, memory_bytes=200 << 20)


@pytest.fixture(scope="module")
def podman(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with podman_at(tmp_path_factory.mktemp("podman")) as podman:
        yield podman


@pytest.fixture
def containers(podman: Path, tmp_path: Path) -> Containers:
    containers = Containers(str(podman), tmp_path, LIMITS)
    containers.check()
    return containers


def start(containers: Containers, program: str = "a") -> str:
    args = [*containers.run_args(program), *MOUNTS, IMAGE, "sleep", "2h"]
    return output_of(containers, "run", "-d", "-w", "/", *args).strip()


def output_of(containers: Containers, *command: str) -> str:
    return subprocess.run(
        [containers.executable, *command], capture_output=True, text=True, check=True
    ).stdout


def bash(containers: Containers, container: str, script: str) -> str:
    return output_of(
        containers, "exec", "-w", "/", container, "bash", "-lc", f"exec 2>&1; {script}"
    )


def test_the_only_network_of_a_container_is_its_loopback(containers: Containers) -> None:
    with containers.cleaned_up(containers.folder / "log"):
        interfaces = bash(containers, start(containers), "tail -n +3 /proc/net/dev | cut -d: -f1")
    assert interfaces.split() == ["lo"]


def test_a_fork_bomb_is_contained_and_removed(containers: Containers) -> None:
    with containers.cleaned_up(containers.folder / "log"):
        container = start(containers)
        counts = bash(
            containers,
            container,
            "(:(){ :|:& };:) 2>/dev/null; "
            "until set -- /proc/[0-9]* && (( $# > 40 )); do :; done; echo $#",
        )
        # Processes end and start while the shell lists them, never more than 50 at a time.
        assert int(counts.splitlines()[-1]) <= 100
    assert output_of(containers, "ps", "-aq") == ""


def test_the_memory_of_all_processes_together_is_limited(containers: Containers) -> None:
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


def test_containers_of_an_earlier_run_in_the_folder_are_removed_and_no_others(
    containers: Containers, tmp_path: Path
) -> None:
    other = Containers(containers.executable, tmp_path / "other", LIMITS)
    left, kept = start(containers), start(other)
    with containers.cleaned_up(tmp_path / "log"):
        assert output_of(containers, "ps", "-aq", "--no-trunc").split() == [kept]
    assert left != kept
    other.remove()
    assert output_of(containers, "ps", "-aq") == ""


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
        assert output_of(containers, "ps", "-aq", "--no-trunc").split() == [container]
        bench.send_signal(signal.SIGKILL)
    wait_until_none(lambda: output_of(containers, "ps", "-aq"))


@pytest.mark.skipif("TURNSTILE_AGENT_PYTHON" not in os.environ, reason="no mini-swe-agent")
def test_mini_swe_agent_works_in_the_image_of_its_task(podman: Path, tmp_path: Path) -> None:
    """The image is empty, so podman mounts this machine's system folders into it."""
    mounts = "".join(f'"{path}:{path}:ro",' for path in SYSTEM)
    conf = podman.with_name("containers.conf")
    conf.write_text(conf.read_text().replace("[engine]", f"volumes = [{mounts}]\n[engine]"))
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
                *(
                    bench,
                    "sweep",
                    "--one",
                    "--engine",
                    url,
                    "--agent",
                    "mini-swe-agent",
                    "--jps",
                    "1",
                ),
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
    (end,) = read_lines(cell / "programs.jsonl")
    assert (end["exit_status"], end["error"]) == ("Submitted", None), run.stderr
    (trajectory,) = cell.glob("agents/*/trajectory.json")
    outputs = [str(m["content"]) for m in json.loads(trajectory.read_text())["messages"][2:]]
    assert any("cannot access '/work'" in output and "hi" in output for output in outputs)
    assert subprocess.run([podman, "ps", "-aq"], capture_output=True, check=True).stdout == b""
