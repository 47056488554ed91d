"""Workflows call what people call: make targets and scripts, and only such as there are."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
SCRIPTS = sorted(path for path in (ROOT / ".ci").iterdir() if path.suffix == "")
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
KINDS = set(re.findall(r"^(\w+)\)$", (ROOT / ".ci/nightly").read_text(), re.MULTILINE))


def jobs(path: Path) -> dict[str, Any]:
    found = yaml.safe_load(path.read_text())["jobs"]
    assert isinstance(found, dict)
    return found


def commands(job: dict[str, Any]) -> Iterator[str]:
    """Of its steps, once for each value of its matrix."""
    choices = (job.get("strategy") or {}).get("matrix") or {"": [""]}
    for step in job["steps"]:
        for line in (step.get("run") or "").splitlines():
            for name, values in choices.items():
                for value in values:
                    yield line.replace("${{ matrix." + name + " }}", value)


def test_there_is_a_check_of_each_push_and_a_night() -> None:
    asked = {path.stem: yaml.safe_load(path.read_text())[True] for path in WORKFLOWS}
    assert set(asked) == {"ci", "nightly"}  # YAML reads the key `on` as true
    assert "push" in asked["ci"]
    assert "schedule" in asked["nightly"]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_each_step_runs_a_target_or_a_script_that_there_is(path: Path) -> None:
    for name, job in jobs(path).items():
        assert job["runs-on"], name
        for command in commands(job):
            program, *arguments = command.split()
            if program == "make":
                assert arguments[0] in TARGETS, command
            elif program == ".ci/nightly":
                assert arguments[0] in KINDS, command
            elif program != "cat":
                assert os.access(ROOT / program, os.X_OK), command


def test_no_workflow_may_write_to_the_repository() -> None:
    for path in WORKFLOWS:
        assert yaml.safe_load(path.read_text())["permissions"] == {"contents": "read"}


def test_a_machine_with_gpus_is_asked_only_where_there_is_one() -> None:
    gpu = jobs(ROOT / ".github/workflows/nightly.yml")["gpu"]
    assert gpu["if"] == "vars.GPU_RUNNER != ''"
    assert gpu["runs-on"] == "${{ vars.GPU_RUNNER }}"


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_scripts_parse_and_make_what_there_is(script: Path) -> None:
    subprocess.run(["bash", "-n", str(script)], check=True)
    for target in re.findall(r"^\s*make ([\w-]+)", script.read_text(), re.MULTILINE):
        assert target in TARGETS


def test_a_night_of_no_kind_is_refused_in_a_line() -> None:
    found = subprocess.run([ROOT / ".ci/nightly", "often"], capture_output=True, text=True)
    assert found.returncode == 2
    assert found.stderr == "nightly: often: use virtual, cpu or gpu\n"
