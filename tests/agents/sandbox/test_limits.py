"""What a program in the sandbox can use up, and that nothing of it is left."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from agents.sandbox.bubblewrap import Limits
from agents.sandbox.memory import memory_of
from tests.agents.sandbox.conftest import WITHIN_S, Boxed

MIB = 1 << 20


def processes_of(boxed: Boxed) -> int:
    """On the host, that name the workspace: bubblewrap, what it runs, the forwarder."""
    return len(
        [
            pid
            for path in Path("/proc").glob("[0-9]*/cmdline")
            if (pid := path.parent.name) and boxed.workspace.name in contents(path)
        ]
    )


def contents(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def until(claim: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + WITHIN_S
    while not claim():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def named(boxed: Boxed, script: str) -> list[str]:
    """Processes that it forks show the workspace in their command line."""
    return boxed.command("bash", "-c", f"{script} # {boxed.workspace.name}")


def test_a_fork_bomb_is_contained_and_gone_with_its_sandbox(boxed: Boxed) -> None:
    bomb = boxed.limited(processes=50)
    with bomb.start(named(bomb, ":(){ :|:& };:; sleep 600"), stderr=subprocess.DEVNULL) as started:
        until(lambda: processes_of(bomb) > 40)
        # Of the limit's 50, plus bubblewrap outside, and as root what is not the command's user.
        assert max(processes_of(bomb) for _ in range(100)) <= 53
        started.kill()
    until(lambda: processes_of(bomb) == 0)


def test_two_sandboxes_do_not_share_their_processes(boxed: Boxed) -> None:
    bomb, other = boxed.limited(processes=30), boxed.limited(processes=30)
    with bomb.start(named(bomb, ":(){ :|:& };:; sleep 600"), stderr=subprocess.DEVNULL) as started:
        until(lambda: processes_of(bomb) > 20)
        assert other.sh("for i in $(seq 20); do sleep 0.1 & done; wait; echo fine") == "fine\n"
        started.kill()


def test_a_process_that_takes_too_much_memory_dies_alone(boxed: Boxed) -> None:
    hog = "python3 -c 'bytearray(300 * 2**20)' 2>&1 | tail -1; echo the others live"
    said = boxed.limited(memory_bytes=200 * MIB).sh(hog)
    assert said == "MemoryError\nthe others live\n"


def test_memory_that_is_only_reserved_is_free(boxed: Boxed) -> None:
    """WebAssembly, garbage collectors and malloc's arenas reserve far more than they use."""
    reserve = "import mmap; mmap.mmap(-1, 2**33, mmap.MAP_PRIVATE, prot=0)"
    said = boxed.limited(memory_bytes=200 * MIB).sh(f"python3 -c '{reserve}' && echo fine")
    assert said == "fine\n"


def test_memory_is_counted_once_over_all_that_share_it(boxed: Boxed) -> None:
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
        # Four processes share 100 MiB; each has a few of its own, as have Python and bubblewrap.
        assert 100 * MIB < memory_of(started.pid) < 200 * MIB
        assert 400 * MIB < memory_of(started.pid, more_than_bytes=1 << 40) < 500 * MIB
        started.kill()


def test_memory_of_what_is_gone_is_none() -> None:
    with subprocess.Popen(["true"]) as gone:
        pass
    assert memory_of(gone.pid) == 0


def test_the_kernel_would_take_the_sandbox_first(boxed: Boxed) -> None:
    assert boxed.sh("cat /proc/self/oom_score_adj") == "1000\n"


def test_a_file_above_the_limit_fails(boxed: Boxed) -> None:
    said = boxed.limited(file_bytes=MIB).sh("head -c 2M /dev/zero > big; wc -c < big")
    assert "File size limit exceeded" in said
    assert said.splitlines()[-1] == str(MIB)


@pytest.mark.parametrize("folder", ["/tmp", "/dev/shm", "/run"])  # noqa: S108
def test_folders_in_memory_have_an_end(boxed: Boxed, folder: str) -> None:
    fill = f"for i in $(seq 80); do head -c 1M /dev/zero > {folder}/$i || break; done"
    said = boxed.limited(file_bytes=2 * MIB).sh(fill)
    assert "No space left on device" in said or "Permission denied" in said


def test_no_core_is_dumped(boxed: Boxed) -> None:
    boxed.run("bash", "-c", "ulimit -c unlimited; kill -SEGV $$")
    assert list(boxed.workspace.iterdir()) == []


def test_what_the_program_leaves_in_the_background_ends_with_it(boxed: Boxed) -> None:
    with boxed.start(named(boxed, "setsid nohup sleep 600 & bash -c 'sleep 600' & exit 4")) as ran:
        pass
    assert ran.returncode == 4
    until(lambda: processes_of(boxed) == 0)


def test_a_program_may_wait_for_all_of_its_children(boxed: Boxed) -> None:
    wait = "import os; os.fork() or os._exit(5); print(os.waitstatus_to_exitcode(os.wait()[1]))"
    childless = "import os\ntry: os.wait()\nexcept ChildProcessError: print('no more')"
    assert boxed.run("python3", "-c", f"{wait}\n{childless}").stdout == "5\nno more\n"


def test_sigkill_of_the_parent_leaves_nothing(boxed: Boxed) -> None:
    command = named(boxed, "echo up; sleep 600 & sleep 600")
    with boxed.start(["sh", "-c", '"$@" & wait', "sh", *command]) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "up\n"
        assert processes_of(boxed) > 2
        parent.send_signal(signal.SIGKILL)
        until(lambda: processes_of(boxed) == 0)


@pytest.mark.skipif(os.getuid() != 0, reason="only root's sandboxes have uids of their own")
def test_sandboxes_of_root_are_users_of_their_own_at_the_same_time(own: Boxed) -> None:
    command = own.command("bash", "-c", "id -u; read end")
    started = [own.start(command, stdin=subprocess.PIPE) for _ in range(8)]
    uids = [int(each.stdout.readline()) for each in started if each.stdout is not None]
    for each in started:
        each.communicate("end\n", timeout=WITHIN_S)
    assert len(set(uids)) == 8
    assert all(61184 <= uid <= 65519 for uid in uids)


def test_limits_cannot_be_raised_inside(boxed: Boxed) -> None:
    limited = boxed.limited(processes=40, memory_bytes=1 << 30, file_bytes=MIB)
    for option, hard in (("u", 40), ("d", 1 << 20), ("f", 1024)):
        said = limited.sh(f"ulimit -{option} {hard + 1} || ulimit -H{option}").splitlines()
        assert "cannot modify limit" in said[0]
        assert said[1] == str(hard)


def test_the_defaults_leave_room_for_a_build() -> None:
    assert Limits() == Limits(processes=256, memory_bytes=4 << 30, file_bytes=1 << 30)
