"""`examples/turnstile-extras`, installed: a policy and a trace format from another package."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the package with pip, without an index; return the folder. The build runs on a copy,
    since it writes next to its sources."""
    folder = tmp_path_factory.mktemp("extras")
    shutil.copytree(ROOT / "examples/turnstile-extras", folder / "turnstile-extras")
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation",
         "--no-index", "--no-compile", "--target", str(folder / "site"),
         str(folder / "turnstile-extras")],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    return folder / "site"


def bench(installed: Path, cwd: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(filter(None, [str(installed), os.environ.get("PYTHONPATH")]))
    return subprocess.run(
        [str(Path(sys.executable).parent / "bench"), *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_sweep_uses_the_policy_and_the_trace_format(installed: Path, tmp_path: Path) -> None:
    trace = str(ROOT / "examples/turnstile-extras/turns.csv")
    policies = "fcfs, short-prompts-first(hold_s=2), short-prompts-first+"
    ran = bench(
        installed, tmp_path,
        "sweep", "--traces", trace, "--policies", policies, "--once", "--jps", "0.5",
        "--out", "run",
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert "turns.csv: 3 programs, 7 turns; 3 policies" in ran.stdout + ran.stderr
    sweep = json.loads((tmp_path / "run/sweep.json").read_text())
    assert [(v["name"], v.get("policy_arguments", {})) for v in sweep["variants"]] == [
        ("fcfs", {}),
        ("short-prompts-first(hold_s=2.0)", {"hold_s": 2.0}),
        ("short-prompts-first+", {}),
    ]
    cell = tmp_path / "run/short-prompts-first-hold-s-2.0_jps0.5_seed1/cell.json"
    assert json.loads(cell.read_text())["policy_arguments"] == {"hold_s": 2.0}


def test_bench_list_and_completion_know_the_policy(installed: Path, tmp_path: Path) -> None:
    listed = bench(installed, tmp_path, "list", "policies").stdout
    assert "short-prompts-first\tThe shortest prompt goes first" in listed
    refused = bench(installed, tmp_path, "sweep", "--policies", "short-prompt-first")
    assert refused.returncode == 2
    assert "did you mean short-prompts-first?" in refused.stderr
