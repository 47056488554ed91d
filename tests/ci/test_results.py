"""Results in virtual time equal .ci/baseline.json.gz exactly, for every policy."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from servers.basics.compiled_core import CHOICE
from tests.sentences import mentions

ROOT = Path(__file__).parents[2]


def results(root: Path, bench: str, out: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [root / ".ci/results", *options],
        env={**os.environ, "BENCH": bench, "OUT": str(out)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("results")


@pytest.fixture(scope="module")
def checked(bench: str, out: Path) -> subprocess.CompletedProcess[str]:
    """The sweep, which runs once for all tests, and its comparison."""
    return results(ROOT, bench, out)


def cells(baseline: Path) -> Any:
    return json.loads(gzip.decompress(baseline.read_bytes()))["cells"]


def test_the_results_of_every_policy_equal_the_baseline_exactly(
    checked: subprocess.CompletedProcess[str],
) -> None:
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert checked.stdout.endswith("are identical\n")


@pytest.mark.usefixtures("checked")
def test_the_sweep_runs_in_the_compiled_core_that_the_environment_names(out: Path) -> None:
    """As in CI, where this test compares compiled results with the saved ones."""
    if CHOICE not in os.environ:
        pytest.skip(f"{CHOICE} names no core")
    expected = "python" if os.environ[CHOICE] == "python" else "compiled"
    assert json.loads((out / "run/sweep.json").read_text())["made_by"]["core"] == expected


@pytest.mark.usefixtures("checked")
def test_a_job_that_takes_a_nanosecond_longer_fails_with_the_command_to_regenerate(
    bench: str, out: Path, tmp_path: Path
) -> None:
    """The sweep is not run again."""
    comparing = tmp_path / "bench"
    comparing.write_text(f'#!/bin/sh\n[ "$1" = sweep ] || exec {bench} "$@"\n')
    comparing.chmod(0o755)
    shutil.copytree(ROOT / ".ci", tmp_path / ".ci")
    file = tmp_path / ".ci/baseline.json.gz"
    saved = json.loads(gzip.decompress(file.read_bytes()))
    jobs = saved["cells"][0]["jct_s"]
    jobs[next(iter(jobs))] += 1e-9
    file.write_bytes(gzip.compress(json.dumps(saved).encode()))
    ran = results(tmp_path, str(comparing), out)
    assert ran.returncode == 1
    remedy = ran.stderr.splitlines()[-1]
    assert mentions(remedy, "Results changed", "make baseline", ".ci/baseline.json.gz")
    assert results(tmp_path, str(comparing), out, "--renew").returncode == 0
    renewed, ours = (cells(root / ".ci/baseline.json.gz") for root in (tmp_path, ROOT))
    assert renewed == ours
