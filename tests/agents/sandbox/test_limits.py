"""The limits of a program in a sandbox, and the end of all its processes."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from agents.sandbox.bubblewrap import SandboxLimits
from agents.sandbox.memory import memory_of
from tests.agents.sandbox.conftest import TIMEOUT_S, Boxed
from tests.processes import wait_until

MIB = 1 << 20


def processes_of(boxed: Boxed) -> int:
    """Count the host's processes that name the workspace: bubblewrap, its child, the forwarder."""
    pids = filter(str.isdecimal, os.listdir("/proc"))
    return sum(boxed.workspace.name in contents(Path("/proc", pid, "cmdline")) for pid in pids)


def contents(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def marked_command(boxed: Boxed, script: str) -> list[str]:
    """Return a command whose forks have the workspace in their command line."""
    return boxed.command("bash", "-c", f"{script} # {boxed.workspace.name}")


def test_a_fork_bomb_is_contained_and_ends_with_its_sandbox(boxed: Boxed) -> None:
    bomb = boxed.limited(processes=50)
    with bomb.start(
        marked_command(bomb, ":(){ :|:& };:; sleep 600"), stderr=subprocess.DEVNULL
    ) as started:
        wait_until(lambda: processes_of(bomb) > 40, TIMEOUT_S)
        # The limit is 50, plus bubblewrap outside and, under root, processes of other users.
        assert max(processes_of(bomb) for _ in range(100)) <= 53
        started.kill()
    wait_until(lambda: processes_of(bomb) == 0, TIMEOUT_S)


def test_each_sandbox_has_its_own_limit_of_processes(boxed: Boxed) -> None:
    bomb, other = boxed.limited(processes=30), boxed.limited(processes=30)
    with bomb.start(
        marked_command(bomb, ":(){ :|:& };:; sleep 600"), stderr=subprocess.DEVNULL
    ) as started:
        wait_until(lambda: processes_of(bomb) > 20, TIMEOUT_S)
        assert other.sh("for i in $(seq 20); do sleep 0.1 & done; wait; echo fine") == "fine\n"
        started.kill()


def test_a_process_that_exceeds_the_memory_limit_fails_alone(boxed: Boxed) -> None:
    hog = "python3 -c 'bytearray(300 * 2**20)' 2>&1 | tail -1; echo the others go on"
    output = boxed.limited(memory_bytes=200 * MIB).sh(hog)
    assert output == "MemoryError\nthe others go on\n"


def test_memory_that_is_only_reserved_does_not_count(boxed: Boxed) -> None:
    """WebAssembly, garbage collectors and malloc's arenas reserve far more than they use."""
    reserve = "import mmap; mmap.mmap(-1, 2**33, mmap.MAP_PRIVATE, prot=0)"
    output = boxed.limited(memory_bytes=200 * MIB).sh(f"python3 -c '{reserve}' && echo fine")
    assert output == "fine\n"


def test_memory_shared_by_processes_counts_once(boxed: Boxed) -> None:
    forks = (
        "import os, time\n"
        "held = b'x' * (100 << 20)\n"
        "[os.fork() and None for _ in range(2)]\n"
        "print('forked', flush=True)\n"
        "time.sleep(600)\n"
    )
    with boxed.start(boxed.command("python3", "-c", forks)) as started:
        assert started.stdout is not None
        for _ in range(4):
            started.stdout.readline()
        # Four processes share 100 MiB; each has a few more, as have Python and bubblewrap.
        assert 100 * MIB < memory_of(started.pid) < 200 * MIB
        assert 400 * MIB < memory_of(started.pid, more_than_bytes=1 << 40) < 500 * MIB
        started.kill()


def test_the_memory_of_an_ended_process_is_zero() -> None:
    with subprocess.Popen(["true"]) as ended:
        pass
    assert memory_of(ended.pid) == 0


def test_the_out_of_memory_killer_prefers_processes_of_a_sandbox(boxed: Boxed) -> None:
    assert boxed.sh("cat /proc/self/oom_score_adj") == "1000\n"


def test_a_file_above_the_limit_fails(boxed: Boxed) -> None:
    output = boxed.limited(file_bytes=MIB).sh("head -c 2M /dev/zero > big; wc -c < big")
    assert "File size limit exceeded" in output
    assert output.splitlines()[-1] == str(MIB)


@pytest.mark.parametrize("folder", ["/tmp", "/dev/shm", "/run"])  # noqa: S108
def test_folders_in_memory_are_limited(boxed: Boxed, folder: str) -> None:
    fill = f"for i in $(seq 80); do head -c 1M /dev/zero > {folder}/$i || break; done"
    output = boxed.limited(file_bytes=2 * MIB).sh(fill)
    assert "No space left on device" in output or "Permission denied" in output


def test_no_core_dump_is_written(boxed: Boxed) -> None:
    boxed.run("bash", "-c", "ulimit -c unlimited; kill -SEGV $$")
    assert list(boxed.workspace.iterdir()) == []


def test_background_processes_end_with_the_program(boxed: Boxed) -> None:
    with boxed.start(
        marked_command(boxed, "setsid nohup sleep 600 & bash -c 'sleep 600' & exit 4")
    ) as ran:
        pass
    assert ran.returncode == 4
    wait_until(lambda: processes_of(boxed) == 0, TIMEOUT_S)


def test_a_program_can_wait_for_all_of_its_children(boxed: Boxed) -> None:
    wait = "import os; os.fork() or os._exit(5); print(os.waitstatus_to_exitcode(os.wait()[1]))"
    childless = "import os\ntry: os.wait()\nexcept ChildProcessError: print('no more')"
    assert boxed.run("python3", "-c", f"{wait}\n{childless}").stdout == "5\nno more\n"


def test_sigkill_of_the_parent_leaves_no_process(boxed: Boxed) -> None:
    command = marked_command(boxed, "echo up; sleep 600 & sleep 600")
    with boxed.start(["sh", "-c", '"$@" & wait', "sh", *command]) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "up\n"
        assert processes_of(boxed) > 2
        parent.send_signal(signal.SIGKILL)
        wait_until(lambda: processes_of(boxed) == 0, TIMEOUT_S)


@pytest.mark.skipif(os.getuid() != 0, reason="only root's sandboxes have separate uids")
def test_concurrent_sandboxes_of_root_have_different_users(own: Boxed) -> None:
    command = own.command("bash", "-c", "id -u; read end")
    started = [own.start(command, stdin=subprocess.PIPE) for _ in range(8)]
    uids = [int(each.stdout.readline()) for each in started if each.stdout is not None]
    for each in started:
        each.communicate("end\n", timeout=TIMEOUT_S)
    assert len(set(uids)) == 8
    assert all(61184 <= uid <= 65519 for uid in uids)


def test_limits_cannot_be_raised_inside_a_sandbox(boxed: Boxed) -> None:
    limited = boxed.limited(processes=40, memory_bytes=1 << 30, file_bytes=MIB)
    for option, hard in (("u", 40), ("d", 1 << 20), ("f", 1024)):
        output = limited.sh(f"ulimit -{option} {hard + 1} || ulimit -H{option}").splitlines()
        assert "cannot modify limit" in output[0]
        assert output[1] == str(hard)


def test_the_default_limits_allow_a_build() -> None:
    assert SandboxLimits() == SandboxLimits(processes=256, memory_bytes=4 << 30, file_bytes=1 << 30)
