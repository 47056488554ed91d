"""`make audit`: the results for the pip-audit report of each environment."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from tests.sentences import mentions

ROOT = Path(__file__).parents[2]
WEAK = {"id": "PYSEC-1", "aliases": ["CVE-1"], "fix_versions": ["2"]}


def audit(
    root: Path, output: str, *environments: str, **env: str
) -> subprocess.CompletedProcess[str]:
    """Run `.ci/audit` in a checkout with these environments, with the shell script `output` in
    place of pip-audit."""
    (root / ".ci").mkdir()
    shutil.copy(ROOT / ".ci/audit", root / ".ci")
    for name in environments:
        if not (root / name).exists():
            (root / name).symlink_to(sys.prefix)
    (root / "pip-audit").write_text(f"#!/bin/sh\n{output}\n")
    (root / "pip-audit").chmod(0o755)
    return subprocess.run(
        [root / ".ci/audit"],
        env={"AUDIT": str(root / "pip-audit"), "PATH": "/usr/local/bin:/usr/bin:/bin"} | env,
        capture_output=True,
        text=True,
        check=False,
    )


def report(*packages: dict[str, object]) -> str:
    return f"echo '{json.dumps({'dependencies': packages})}'; exit 1"


def test_a_vulnerability_in_our_own_environment_fails(tmp_path: Path) -> None:
    sound = {"name": "typer", "version": "1", "vulns": []}
    ran = audit(tmp_path, report(sound, {"name": "x", "version": "1", "vulns": [WEAK]}), ".venv")
    assert (ran.returncode, ran.stderr) == (1, "")
    assert ran.stdout.splitlines() == [
        "x 1: PYSEC-1 CVE-1; fixed in 2",
        ".venv: known vulnerabilities in 1 of 2 packages",
    ]


def test_a_vulnerability_in_the_environment_of_a_tool_is_only_reported(tmp_path: Path) -> None:
    ran = audit(tmp_path, report({"name": "x", "version": "1", "vulns": [WEAK]}), ".venv-vllm")
    assert ran.returncode == 0
    assert "x 1: PYSEC-1 CVE-1; fixed in 2" in ran.stdout


@pytest.mark.parametrize("ci", [{}, {"CI": "true"}])
@pytest.mark.parametrize(
    ("packages", "message"),
    [
        (({"name": "x", "skip_reason": "not found on PyPI"},), "1 of 1 packages, for which"),
        ((), "pip-audit looked up no package"),
    ],
)
def test_packages_that_were_not_looked_up_are_not_audited_and_fail_in_ci(
    tmp_path: Path, packages: tuple[dict[str, object], ...], message: str, ci: dict[str, str]
) -> None:
    ran = audit(tmp_path, report(*packages), ".venv", **ci)
    assert (ran.returncode, ran.stdout) == (bool(ci), "")
    assert ran.stderr.startswith(f".venv: not audited: {message}")


def test_packages_without_advisories_beside_audited_ones_are_only_named(tmp_path: Path) -> None:
    sound = {"name": "typer", "version": "1", "vulns": []}
    skipped = {"name": "x", "skip_reason": "not found on PyPI"}
    ran = audit(tmp_path, report(sound, skipped), ".venv", CI="true")
    assert ran.returncode == 0
    assert ran.stdout == ".venv: known vulnerabilities in 0 of 1 packages\n"
    assert ran.stderr.startswith(".venv: not audited: 1 of 2 packages")


def test_a_missing_network_is_reported(tmp_path: Path) -> None:
    ran = audit(tmp_path, "echo 'Traceback: …' >&2; echo 'ConnectionError: none' >&2", ".venv")
    assert (ran.returncode, ran.stdout) == (0, "")
    assert ran.stderr == ".venv: not audited: ConnectionError: none\n"


@pytest.mark.parametrize("output", ["ConnectionError: none", "HTTPSConnectionPool: Max retries"])
def test_a_missing_network_fails_in_ci(tmp_path: Path, output: str) -> None:
    ran = audit(tmp_path, f"echo '{output}' >&2; exit 1", ".venv", CI="true")
    assert ran.returncode == 1
    assert ran.stderr == f".venv: not audited: {output}\n"


@pytest.mark.parametrize(
    "output",
    [
        *("echo 'pip-audit: No such file or directory' >&2; exit 127", "exit 1", "echo '[]'"),
        "echo \"ModuleNotFoundError: No module named 'pip_audit'\" >&2; exit 1",
    ],
)
@pytest.mark.parametrize("ci", [{}, {"CI": "true"}])
def test_a_failing_pip_audit_fails_in_ci_and_is_only_reported_elsewhere(
    tmp_path: Path, output: str, ci: dict[str, str]
) -> None:
    ran = audit(tmp_path, output, ".venv", **ci)
    assert ran.stderr.startswith(".venv: not audited: ")
    assert ran.returncode == bool(ci)


def test_our_own_environment_must_exist_in_ci(tmp_path: Path) -> None:
    ran = audit(tmp_path, "exit 1", CI="true")
    assert (ran.returncode, ran.stderr.count("\n")) == (1, 1)
    assert mentions(ran.stderr, ".venv", "not audited")


def test_installed_packages_are_listed_without_the_pip_of_the_environment(tmp_path: Path) -> None:
    """Environments created by uv have no pip."""
    venv.create(tmp_path / ".venv", with_pip=False)
    (packages,) = (tmp_path / ".venv/lib").glob("python*/site-packages")
    for name, record in (("there-of-old", None), ("ours", "{}")):
        (packages / f"{name}-1.dist-info").mkdir()
        (packages / f"{name}-1.dist-info/METADATA").write_text(f"Name: {name}\nVersion: 1\n")
        if record:
            (packages / f"{name}-1.dist-info/direct_url.json").write_text(record)
    audited_file = tmp_path / "audited.txt"
    sound = report({"name": "there-of-old", "version": "1", "vulns": []})
    ran = audit(tmp_path, f'cat "$2" >>{audited_file}; {sound}', ".venv", ".venv-vllm", CI="true")
    ours, vllm = ran.stdout.splitlines()
    assert mentions(ours, ".venv", "0 of 1 packages")
    assert mentions(vllm, ".venv-vllm", "0 of 1 packages")
    assert (ran.returncode, ran.stderr) == (0, "")
    first, *others = audited_file.read_text().splitlines()
    assert first == "there-of-old==1"
    assert "ours==1" not in others
