"""`examples/cluster`: what the scheduler would run is run here, with its variables."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.load.settings_file import read_settings
from tests.sentences import mentions

EXAMPLES = Path(__file__).parents[2] / "examples/cluster"
SMALL = ("--once", "--programs", "3", "--seeds", "1", "--jps", "0.1,0.3", "--fresh")
"""Six cells."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(EXAMPLES, tmp_path / "cluster"))


def environment(bench: str, **more: str) -> dict[str, str]:
    return {**os.environ, "PATH": f"{Path(bench).parent}:{os.environ['PATH']}", **more}


def test_the_settings_search_no_capacities() -> None:
    settings = read_settings(EXAMPLES / "sweep.toml")
    assert settings["no_capacity"]
    assert settings["policies"] == "fcfs,continuum,infercept"


def test_the_array_of_slurm_has_a_task_for_each_shard(bench: str, folder: Path) -> None:
    script = (folder / "shards.sbatch").read_text()
    options = dict(re.findall(r"^#SBATCH --([\w-]+)=(\S+)$", script, re.MULTILINE))
    assert options["array"] == "1-16"
    assert re.findall(r"^SHARDS=(\d+)$", script, re.MULTILINE) == ["16"]
    task = environment(bench, SLURM_ARRAY_TASK_ID="2", SLURM_CPUS_PER_TASK="1")
    done = subprocess.run(
        ["bash", "shards.sbatch", *SMALL], cwd=folder, env=task, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert mentions(done.stdout, "shard 2/16", "1 of 6 cells", "5")
    assert len(list(folder.glob("runs/cluster/*/done.json"))) == 1


def test_the_kubernetes_job_has_an_index_for_each_shard(bench: str, folder: Path) -> None:
    job: dict[str, Any] = yaml.safe_load((folder / "job.yaml").read_text())
    assert (job["apiVersion"], job["kind"]) == ("batch/v1", "Job")
    assert job["spec"]["completionMode"] == "Indexed"
    assert job["spec"]["completions"] == 16
    pod = job["spec"]["template"]["spec"]
    assert pod["restartPolicy"] == "Never"  # which podFailurePolicy requires
    (container,) = pod["containers"]
    (variable,) = container["env"]
    assert variable["valueFrom"] == {"resourceFieldRef": {"resource": "limits.cpu"}}
    shell, option, command = container["command"]
    task = environment(bench, JOB_COMPLETION_INDEX="15", CORES="1")
    done = subprocess.run(
        [shell, option, f"{command} {shlex.join(SMALL)}"],
        cwd=folder, env=task, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert mentions(done.stdout, "shard 16/16", "no cells", "6")
