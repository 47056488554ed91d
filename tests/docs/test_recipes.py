"""The workflows in examples/ci for GitHub and GitLab: they are valid, what they cache and publish
is what their sweep writes, and the sweep runs."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.docs.pages import ROOT
from tests.harness.in_process import bench
from tests.sentences import mentions

FOLDER = ROOT / "examples/ci"
GITHUB: dict[str, Any] = yaml.safe_load((FOLDER / "schedulers.github.yml").read_text())
GITLAB: dict[str, Any] = yaml.safe_load((FOLDER / "schedulers.gitlab-ci.yml").read_text())
STEPS = GITHUB["jobs"]["sweep"]["steps"]
JOB = GITLAB["schedulers"]


def used(action: str) -> dict[str, Any]:
    (step,) = [step for step in STEPS if step.get("uses", "").startswith(f"actions/{action}@")]
    return dict(step)


SCRIPTS = {"github": [step["run"] for step in STEPS if "run" in step], "gitlab": JOB["script"]}
CACHED = {"github": [used("cache")["with"]["path"]], "gitlab": JOB["cache"]["paths"]}
PUBLISHED = {
    "github": used("upload-artifact")["with"]["path"].splitlines(),
    "gitlab": JOB["artifacts"]["paths"],
}
NUMBER = re.compile(r"\$\{\{ ?github\.run_id ?\}\}|\$GITHUB_RUN_ID|\$CI_PIPELINE_ID")


def night(text: str, number: int) -> str:
    """Fill in what the service calls the run."""
    return NUMBER.sub(str(number), text)


def sweep(service: str, number: int) -> list[str]:
    """Return the arguments of the only `bench` command."""
    (text,) = [line for line in SCRIPTS[service] if line.startswith("bench ")]
    return shlex.split(night(text, number))[1:]


@pytest.mark.parametrize("service", ["github", "gitlab"])
def test_a_recipe_caches_runs_and_publishes_the_report_of_the_night(service: str) -> None:
    words = sweep(service, 7)
    out = words[words.index("--out") + 1]
    assert CACHED[service] == ["runs"]
    assert out == "runs/7"
    published = [night(path, 7) for path in PUBLISHED[service]]
    assert published == [f"{out}/report.html", f"{out}/answer.json"]
    assert "pip install git+https://github.com/OWNER/turnstile.git@COMMIT" in SCRIPTS[service]


def test_both_recipes_run_each_night_and_publish_also_if_the_condition_does_not_hold() -> None:
    assert "schedule" in GITHUB[True]  # YAML reads the key `on` as true
    assert used("upload-artifact")["if"] == "always()"
    assert JOB["artifacts"]["when"] == JOB["cache"]["when"] == "always"
    assert "schedule" in JOB["rules"][0]["if"]


def test_both_recipes_run_the_same_sweep() -> None:
    assert sweep("github", 7) == sweep("gitlab", 7)


@pytest.mark.acceptance
def test_the_second_night_runs_nothing_and_publishes_the_same_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one seed and of short programs. Their capacities do not differ, so the condition fails."""
    monkeypatch.chdir(tmp_path)
    Path("my-trajectories").mkdir()
    shutil.copy(ROOT / "examples/recorded.jsonl", "my-trajectories")
    less = ("--policies", "fcfs,continuum", "--seeds", "1", "--workers", "1")
    for number in (1, 2):
        code, _, err = bench(*sweep("github", number), *less)
        assert code == 1, err
        assert mentions(err, "capacity(continuum) >= 1.05 * capacity(fcfs)", "does not hold")
        for name in PUBLISHED["github"]:
            assert Path(night(name, number)).is_file()
    cells = [path.parent for path in Path("runs/2").glob("*/done.json")]
    assert cells
    assert all((cell / "taken_from.json").is_file() for cell in cells)
