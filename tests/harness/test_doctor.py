"""`bench doctor` on machines on which something is missing or broken."""

from __future__ import annotations

import socket
import sys
import threading
from pathlib import Path

import pytest

from harness.cli.checks import checks
from harness.installation import InstallationCheck
from servers.basics import checkout
from tests.sentences import mentions


def check_of(name: str) -> InstallationCheck:
    return next(check for check in checks() if check.name == name)


def test_virtual_time_runs_anywhere() -> None:
    assert check_of("engine sim").passed


def test_a_package_that_another_distribution_has_overwritten_is_not_ok(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """openai-agents installs its package `agents` into the same folder as ours."""
    other = tmp_path / "openai_agents-1.0.dist-info"
    other.mkdir()
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: openai-agents\nVersion: 1.0\n")
    (other / "top_level.txt").write_text("agents\n")
    assert check_of("package agents").passed
    monkeypatch.syspath_prepend(str(tmp_path))
    check = check_of("package agents")
    assert not check.passed
    assert check.finding.endswith(", also a package of openai-agents")


def test_gpus_are_named_with_the_hardware_to_give(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["NVIDIA L4", "NVIDIA L4", "NVIDIA L40"]
    monkeypatch.setattr("servers.vllm.launch.find_vllm.gpu_names", lambda: names)
    l4, l40 = "2 x NVIDIA L4 (--hardware l4)", "NVIDIA L40"
    assert mentions(check_of("GPUs").finding, l4, l40, "docs/howto/my-gpu.md")


def test_an_unusable_vllm_path_is_not_ok_and_gives_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TURNSTILE_VLLM_PYTHON", str(tmp_path / "python"))
    found = {check.name: check for check in checks()}
    check = found["engine vllm"]
    assert not check.passed
    assert str(tmp_path / "python") in check.remedy
    assert "get it with: " in check.remedy
    assert "LMCache" not in found


@pytest.mark.parametrize(
    ("project", "package", "variable"),
    [
        ("vllm-router", "vllm-router", "TURNSTILE_ROUTERS_PYTHON"),
        ("dynamo", "ai-dynamo", "TURNSTILE_DYNAMO_PYTHON"),
    ],
)
def test_a_missing_router_passes_and_gives_the_command_to_install_it(
    project: str, package: str, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, sys.executable)
    check = check_of(project)
    assert check.passed
    assert check.state == "not installed"
    assert check.finding.startswith(f"needed only for --router {project}:…; {package} is")
    assert "install it with: make routers" in check.finding


def test_an_installed_wheel_is_not_told_to_run_make(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wheel has no Makefile beside its packages."""
    for variable in ("TURNSTILE_ROUTERS_PYTHON", "TURNSTILE_DYNAMO_PYTHON"):
        monkeypatch.setenv(variable, sys.executable)
    monkeypatch.setenv("TURNSTILE_VLLM_PYTHON", str(tmp_path / "python"))
    monkeypatch.setattr(checkout, "ROOT", tmp_path)
    found = {check.name: check for check in checks()}
    assert not [check for check in found.values() if "make " in check.finding + check.remedy]
    assert ".venv-routers/bin/pip install vllm-router" in found["vllm-router"].finding


def test_a_missing_sglang_passes_and_an_unusable_one_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TURNSTILE_SGLANG_PYTHON", sys.executable)
    check = check_of("engine sglang")
    assert check.passed
    assert check.state == "not installed"
    assert check.finding.startswith("not needed for sim; ")
    assert ".venv-sglang/bin/pip install sglang" in check.finding
    monkeypatch.setenv("TURNSTILE_SGLANG_PYTHON", str(tmp_path / "python"))
    check = check_of("engine sglang")
    assert not check.passed
    assert "No such file" in check.remedy


def test_a_missing_container_service_passes_and_gives_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for url in (f"unix://{tmp_path}/none.sock", "tcp://127.0.0.1:9", "nonsense"):
        monkeypatch.setenv("DOCKER_HOST", url)
        check = check_of("containers")
        assert check.passed
        assert check.state == "not running"
        assert "start one with: podman system service" in check.finding


def test_a_container_service_that_responds_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as service:
        service.bind(str(path))
        service.listen()

        def answer() -> None:
            client, _ = service.accept()
            with client:
                assert client.recv(100).startswith(b"GET /_ping ")
                client.sendall(b"HTTP/1.0 200 OK\r\n\r\nOK")

        thread = threading.Thread(target=answer)
        thread.start()
        monkeypatch.setenv("DOCKER_HOST", f"unix://{path}")
        assert check_of("containers").finding == f"unix://{path}"
        thread.join(5)


def test_a_missing_bubblewrap_passes_and_gives_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    check = check_of("bubblewrap")
    assert check.passed
    assert "install it with: apt-get install bubblewrap" in check.finding


def test_a_bubblewrap_that_cannot_be_used_is_not_ok(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bwrap = tmp_path / "bwrap"
    bwrap.write_text("#!/bin/sh\necho 'bwrap: setting up uid map: Permission denied' >&2; exit 1\n")
    bwrap.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    check = check_of("bubblewrap")
    assert not check.passed
    assert "setting up uid map: Permission denied" in check.remedy
