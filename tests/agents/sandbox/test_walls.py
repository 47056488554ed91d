"""The files, processes and networks that a program in a sandbox can and cannot reach."""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from agents.sandbox.bubblewrap import INSIDE_PORT, Bubblewrap
from tests.agents.sandbox.conftest import Boxed


def test_a_program_starts_in_its_workspace_and_its_files_there_persist(boxed: Boxed) -> None:
    assert boxed.sh("pwd; echo kept > answer") == f"{boxed.workspace}\n"
    assert (boxed.workspace / "answer").read_text() == "kept\n"


def test_files_already_in_the_workspace_can_be_changed(boxed: Boxed) -> None:
    (boxed.workspace / "src").mkdir(mode=0o700)
    (boxed.workspace / "src/main.py").write_text("old\n")
    (boxed.workspace / "away").symlink_to("/etc/shadow")
    if os.getuid() != boxed.uid:
        for path in (boxed.workspace / "src", boxed.workspace / "src/main.py"):
            os.chown(path, boxed.uid, -1)
    before = Path("/etc/shadow").stat()
    assert boxed.sh("echo new > src/main.py; cat src/main.py; cat away").splitlines()[0] == "new"
    assert Path("/etc/shadow").stat() == before


@pytest.mark.parametrize("folder", ["/", "/etc", "/usr", "/usr/bin", "/dev", "/var", "/root"])
def test_a_program_cannot_write_outside_its_workspace(boxed: Boxed, folder: str) -> None:
    assert boxed.sh(f"touch {folder}/planted && echo written").startswith("touch: cannot touch")
    assert not os.path.exists(f"{folder}/planted")


def test_a_sandbox_has_a_separate_tmp(boxed: Boxed) -> None:
    planted, workspace_root = Path("/tmp/a-planted-file"), boxed.workspace.parts[2]  # noqa: S108
    assert sorted(boxed.sh(f"touch {planted} && ls /tmp").split()) == sorted(
        ["a-planted-file", "home", workspace_root]
    )
    assert not planted.exists()


def test_further_paths_are_writable_or_readable_as_configured(boxed: Boxed, shared: Path) -> None:
    for name in ("out", "in"):
        (shared / name).mkdir()
        os.chown(shared / name, boxed.uid, -1)
    (shared / "in/data").write_text("given\n")
    script = f"cat {shared}/in/data; echo left > {shared}/out/result; rm {shared}/in/data"
    output = boxed.sh(script, writable=[shared / "out"], readable=[shared / "in"])
    assert output.splitlines()[0] == "given"
    assert "Read-only file system" in output.splitlines()[1]
    assert (shared / "out/result").read_text() == "left\n"


def test_a_readable_folder_may_contain_a_writable_one(boxed: Boxed, shared: Path) -> None:
    (shared / "runs").mkdir()
    os.chown(shared / "runs", boxed.uid, -1)
    output = boxed.sh(
        f"touch {shared}/runs/a && touch {shared}/b",
        readable=[shared],
        writable=[shared / "runs"],
    )
    assert output == f"touch: cannot touch '{shared}/b': Read-only file system\n"
    assert [path.name for path in (shared / "runs").iterdir()] == ["a"]


def test_a_missing_path_is_reported(boxed: Boxed) -> None:
    with pytest.raises(ValueError, match=r"^sandbox: /nowhere/venv does not exist$"):
        boxed.command("true", readable=[Path("/nowhere/venv")])


@pytest.mark.skipif(os.getuid() != 0, reason="makes a folder in /root")
def test_a_venv_in_a_home_is_visible_and_the_rest_of_the_home_is_not(own: Boxed) -> None:
    with tempfile.TemporaryDirectory(dir="/root") as home:
        Path(home, "secret").write_text("hush")
        tool = Path(home, "venv/bin/tool")
        tool.parent.mkdir(parents=True)
        tool.write_text("#!/bin/sh\necho here\n")
        tool.chmod(0o755)
        output = own.sh(f"{tool}; ls -A {home}", readable=[Path(home, "venv")])
    assert output == "here\nvenv\n"


def test_homes_and_keys_of_the_host_are_not_visible(boxed: Boxed) -> None:
    for path in ("/home/*", "/root/.ssh", "/etc/ssh", "/etc/shadow", "/var", "/opt", "/mnt"):
        assert "No such file" in boxed.sh(f"cat {path}")


def test_only_the_given_environment_is_visible_inside(
    boxed: Boxed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("API_SECRET", "hush-hush")
    seen = boxed.sh(
        "env; cat /proc/*/environ 2>/dev/null | tr '\\0' '\\n'", env={"LOCALE": "C", "HOME": "/srv"}
    )
    assert "hush-hush" not in seen
    assert {"LOCALE=C", "HOME=/srv", "USER=agent"} <= set(seen.splitlines())


def test_the_user_and_the_host_name_resolve_inside(boxed: Boxed) -> None:
    assert boxed.sh("whoami; hostname; getent hosts localhost | wc -l") == "agent\nsandbox\n1\n"


def test_a_program_has_no_capabilities_and_cannot_gain_any(boxed: Boxed) -> None:
    status = dict(line.split(":\t") for line in boxed.sh("cat /proc/self/status").splitlines())
    assert {status[name] for name in ("CapPrm", "CapEff", "CapAmb")} == {"0" * 16}
    assert status["NoNewPrivs"] == "1"
    assert "0" not in status["Uid"].split()


def test_processes_of_the_host_are_neither_visible_nor_killable(boxed: Boxed) -> None:
    outside = subprocess.Popen(["sleep", "600"], user=boxed.uid)
    try:
        seen = boxed.sh("ps -A -o args=; kill -9 -1")
        assert "sleep 600" not in seen
        assert outside.poll() is None
    finally:
        outside.kill()
        outside.wait()


@pytest.fixture
def served_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.mark.parametrize("networked", [False, True])
def test_the_network_is_reachable_only_with_the_option(
    boxed: Boxed, served_port: int, networked: bool
) -> None:
    sandbox = boxed.networked() if networked else boxed
    output = sandbox.sh(f"exec 3<>/dev/tcp/127.0.0.1/{served_port} && echo reached")
    assert output.splitlines()[-1:] == ["reached"] if networked else "Connection refused" in output
    interfaces = sandbox.sh("tail -n +3 /proc/net/dev | cut -d: -f1").split()
    assert (interfaces == ["lo"]) == (not networked)


def test_git_works_in_the_workspace(boxed: Boxed) -> None:
    output = boxed.sh(
        "git init -q . && echo one > a && git add a && "
        "git -c user.name=a -c user.email=a@b commit -qm first && echo two > a && git diff"
    )
    assert output.splitlines()[-2:] == ["-one", "+two"]


@pytest.mark.parametrize(
    ("script", "code"),
    [("true", 0), ("exit 3", 3), ("kill -TERM $$", 143), ("kill -KILL $$", 137)],
)
def test_the_exit_code_is_that_of_the_command(boxed: Boxed, script: str, code: int) -> None:
    assert boxed.run("bash", "-c", script).returncode == code


def test_an_unknown_command_gives_the_exit_code_and_error_of_a_shell(boxed: Boxed) -> None:
    ran = boxed.run("no-such-agent")
    assert (ran.returncode, ran.stderr) == (127, "no-such-agent: No such file or directory\n")
    ran = boxed.run("/etc")
    assert (ran.returncode, ran.stderr) == (126, "/etc: Permission denied\n")


def test_stdin_stdout_and_stderr_pass_through(boxed: Boxed) -> None:
    # /dev/stderr needs a pipe of the same user, but these pipes belong to root.
    aside = "/dev/stderr" if boxed.uid == os.getuid() else "&2"
    command = boxed.command("bash", "-c", f"read line; echo got $line; echo aside >{aside}")
    started = boxed.start(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    assert started.communicate("go\n", timeout=300) == ("got go\n", "aside\n")


def test_a_closed_pipe_ends_its_writer_with_sigpipe(boxed: Boxed) -> None:
    assert boxed.sh("yes | head -1; echo ${PIPESTATUS[0]}") == "y\n141\n"


def test_a_missing_bubblewrap_is_reported_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ValueError, match="apt-get install bubblewrap"):
        Bubblewrap().check()


def test_the_gateway_url_depends_on_the_network_of_the_sandbox() -> None:
    """All sandboxes with network share the ports of the host's loopback."""
    assert Bubblewrap().gateway_url("http://127.0.0.1:9000") == f"http://127.0.0.1:{INSIDE_PORT}"
    on_the_host = Bubblewrap(network=True).gateway_url("http://127.0.0.1:9000")
    assert on_the_host == "http://127.0.0.1:9000"


def test_a_failing_bubblewrap_is_reported_with_its_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "bwrap"
    broken.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2; exit 1")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(ValueError, match=r"does not work here: bwrap: No permissions .*; it"):
        Bubblewrap().check()
