"""Workflows run make targets and scripts that exist, the same ones that CONTRIBUTING.md names."""

from __future__ import annotations

import gzip
import hashlib
import os
import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.sentences import mentions

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
SCRIPTS = sorted(path for path in (ROOT / ".ci").iterdir() if path.suffix == "")
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
RIGHTS = {
    "publish": {"id-token": "write", "attestations": "write"},
    "site": {"pages": "write", "id-token": "write"},
}
"""Of the jobs of a release: they sign packages and publish them and the documentation."""
KINDS = set(re.findall(r"^(\w+)\)$", (ROOT / ".ci/nightly").read_text(), re.MULTILINE))


def jobs(path: Path) -> dict[str, Any]:
    jobs = yaml.safe_load(path.read_text())["jobs"]
    assert isinstance(jobs, dict)
    return jobs


def commands(job: dict[str, Any]) -> Iterator[str]:
    """The commands of a job's steps, once for each value of its matrix."""
    choices = (job.get("strategy") or {}).get("matrix") or {"": [""]}
    for step in job["steps"]:
        for line in (step.get("run") or "").splitlines():
            for name, values in choices.items():
                for value in values:
                    yield line.replace("${{ matrix." + name + " }}", value)


def make_targets(script: Path) -> list[str]:
    """Return the make targets that a script runs."""
    lines = re.findall(r"^\s*(?:stage )?make ([^#\n]+)", script.read_text(), re.MULTILINE)
    return [word for line in lines for word in line.split() if not word.startswith("-")]


def test_workflows_run_on_each_push_every_night_and_on_a_version() -> None:
    # YAML reads the key `on` as true.
    triggers = {path.stem: yaml.safe_load(path.read_text())[True] for path in WORKFLOWS}
    assert set(triggers) == {"ci", "nightly", "release"}
    assert triggers["ci"]["push"] == {"branches": ["main"]}
    assert triggers["release"]["push"] == {"tags": ["v*"]}
    assert "schedule" in triggers["nightly"]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_each_step_runs_a_target_or_a_script_that_exists(path: Path) -> None:
    for name, job in jobs(path).items():
        assert job["runs-on"], name
        for command in commands(job):
            program, *arguments = command.split()
            if program == "make":
                assert arguments[0] in TARGETS, command
            elif program == ".ci/nightly":
                assert arguments[0] in KINDS, command
            elif program not in ("cat", "git"):
                assert os.access(ROOT / program, os.X_OK), command


def test_no_workflow_may_write_to_the_repository() -> None:
    for path in WORKFLOWS:
        assert yaml.safe_load(path.read_text())["permissions"] == {"contents": "read"}
        own = {name: job["permissions"] for name, job in jobs(path).items() if "permissions" in job}
        assert own == (RIGHTS if path.stem == "release" else {})


def test_only_a_tag_publishes_and_only_what_all_other_jobs_have_built() -> None:
    release = jobs(ROOT / ".github/workflows/release.yml")
    publish, site = release.pop("publish"), release.pop("site")
    assert publish["if"] == "github.event_name == 'push' && github.ref_type == 'tag'"
    assert set(publish["needs"]) == set(release)
    assert site["needs"] == "publish"
    assert all("run" not in step for step in (*publish["steps"], *site["steps"]))
    actions = [step["uses"].partition("@")[0] for step in publish["steps"]]
    assert actions[-2:] == ["actions/attest", "pypa/gh-action-pypi-publish"], "signed, then sent"


def tagged(folder: Path, tag: str) -> str:
    """Return what .ci/tag says of a tag, in a checkout of version 1.2.3."""
    for plugin in ("turnstile-formats", "turnstile-vllm"):
        (folder / "plugins" / plugin).mkdir(parents=True, exist_ok=True)
        (folder / "plugins" / plugin / "pyproject.toml").touch()
    (folder / "pyproject.toml").write_text('version = "1.2.3"\n')
    ran = subprocess.run([ROOT / ".ci/tag", tag, folder], capture_output=True, text=True)
    assert (ran.returncode == 0) == (ran.stderr == "")
    return ran.stderr


def test_a_release_needs_a_tag_that_is_the_version_of_all_packages_and_of_the_changelog(
    tmp_path: Path,
) -> None:
    assert mentions(tagged(tmp_path, "1.2.3"), "`1.2.3`", "vX.Y.Z")
    assert mentions(tagged(tmp_path, "v1.2.4"), "pyproject.toml has version 1.2.3", "1.2.4")
    for plugin in ("turnstile-formats", "turnstile-vllm"):
        assert f"plugins/{plugin}/pyproject.toml has version" in tagged(tmp_path, "v1.2.3")
        (tmp_path / "plugins" / plugin / "pyproject.toml").write_text('version = "1.2.3"\n')
    (tmp_path / "CHANGELOG.md").write_text("## 1.2.3 (unreleased)\n")
    assert "no heading `## 1.2.3 (YYYY-MM-DD)`" in tagged(tmp_path, "v1.2.3")
    (tmp_path / "CHANGELOG.md").write_text("## 1.2.3 (2026-12-01)\n")
    assert tagged(tmp_path, "v1.2.3") == ""


def packages() -> dict[str, dict[str, Any]]:
    """Return the metadata of all packages of this repository."""
    files = [ROOT / "pyproject.toml", *(ROOT / "plugins").glob("*/pyproject.toml")]
    projects = [tomllib.loads(file.read_text())["project"] for file in files]
    return {project["name"]: project for project in projects}


def test_all_packages_have_the_version_of_the_newest_entry_of_the_changelog() -> None:
    newest = re.search(r"^## (\S+) \(", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest is not None
    assert {project["version"] for project in packages().values()} == {newest[1]}
    assert packages()["turnstile-formats"]["dependencies"] == [f"turnstile-bench=={newest[1]}"]


def test_a_release_has_all_packages_and_says_what_each_installs() -> None:
    """`bench` advises users to install them."""
    folders = {path.parent.name for path in (ROOT / "plugins").glob("*/pyproject.toml")}
    makefile = (ROOT / "Makefile").read_text()
    built = re.findall(r"-m build .*plugins/([\w-]+)$", makefile, re.MULTILINE)
    (listed,) = re.findall(r"for name in ([a-z ]+); do", makefile)
    assert set(built) == folders
    assert {f"turnstile-{name}" for name in listed.split()} == set(packages())
    steps = jobs(ROOT / ".github/workflows/release.yml")["publish"]["steps"]
    signed = [
        step["with"].get("sbom-path", "")
        for step in steps
        if "subject-path" in step.get("with", {})
    ]
    assert set(filter(None, signed)) == {f"{name}.cdx.json" for name in packages()}


def test_wheels_are_built_for_every_python_that_the_package_supports_and_each_is_checked() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wheels = project["tool"]["cibuildwheel"]
    assert project["project"]["requires-python"] == ">=3.11"
    assert wheels["build"] == "cp31{1,2,3,4}-*"
    assert wheels["environment"] == {"TURNSTILE_COMPILE": "1"}
    assert wheels["test-command"] == "bash {project}/.ci/wheel"


def test_every_action_is_pinned_by_its_commit() -> None:
    """Whoever can move a tag of an action could otherwise run code in our workflows."""
    pages = [*WORKFLOWS, ROOT / "examples/ci/schedulers.github.yml"]
    used = [line for page in pages for line in re.findall(r"uses: (.*)", page.read_text())]
    assert len(used) >= 15
    for action in used:
        assert re.fullmatch(r"(actions|pypa)/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", action), action


def test_make_plotly_accepts_only_the_plotly_js_that_reports_embed() -> None:
    (expected,) = re.findall(
        r"^PLOTLY_SHA256 \?= (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE
    )
    bundled = gzip.decompress((ROOT / "reports/page/plotly-basic.min.js.gz").read_bytes())
    assert hashlib.sha256(bundled).hexdigest() == expected
    version = re.findall(r"^PLOTLY \?= (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)[0]
    assert f"plotly.js {version} (basic" in (ROOT / "NOTICE").read_text()
    assert f"plotly.js (basic - minified) v{version}".encode() in bundled[:100]


def test_the_gpu_job_runs_only_if_a_runner_is_configured() -> None:
    gpu = jobs(ROOT / ".github/workflows/nightly.yml")["gpu"]
    assert gpu["if"] == "vars.GPU_RUNNER != ''"
    assert gpu["runs-on"] == "${{ vars.GPU_RUNNER }}"


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_scripts_parse_and_make_existing_targets(script: Path) -> None:
    subprocess.run(["bash", "-n", str(script)], check=True)
    assert set(make_targets(script)) <= TARGETS


def test_a_push_runs_all_test_commands_of_the_contributors_page() -> None:
    commands = set(
        re.findall(r"^make (test[\w-]*)", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE)
    )
    assert commands == {"test", "test-all", "test-real"}
    assert make_targets(ROOT / ".ci/run") == ["test-all", "environments", "test-real"]
    (test_all,) = re.findall(r"^test-all: (.*)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert test_all.split()[0] == "test"


def test_nightly_refuses_an_unknown_kind_in_one_line() -> None:
    ran = subprocess.run([ROOT / ".ci/nightly", "often"], capture_output=True, text=True)
    assert ran.returncode == 2
    assert mentions(ran.stderr, "unknown kind often", "virtual, cpu or gpu")
    assert len(ran.stderr.splitlines()) == 1


def test_uv_gets_the_settings_of_pip(tmp_path: Path) -> None:
    def script(path: Path, text: str) -> None:
        path.parent.mkdir(parents=True)
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)

    settings = (":env:.index-url='http://one/'", "global.index-url='http://two/'")
    more = ("global.extra-index-url='file:///a file:///b'", "install.constraint='limits.txt'")
    for folder, lines in (("pinned", (*settings, *more)), ("plain", ())):
        text = "\n".join(lines)
        script(tmp_path / folder / "bin/python", f'[ "$3" = config ] && cat <<E\n{text}\nE\ntrue')
    script(tmp_path / ".venv-uv/bin/uv", f'echo "$@" >> {tmp_path}/called')
    for folder in ("pinned", "plain"):
        command = [ROOT / ".ci/install", folder, "vllm==1"]
        subprocess.run(command, cwd=tmp_path, check=True)
    given, plain = (tmp_path / "called").read_text().splitlines()
    assert given.partition("unsafe-best-match ")[2] == (
        "--default-index http://one/ --index file:///a --index file:///b "
        "--constraints limits.txt vllm==1"
    )
    assert plain.endswith("--python plain/bin/python --index-strategy unsafe-best-match vllm==1")
