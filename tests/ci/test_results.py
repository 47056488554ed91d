"""Results in virtual time, held to the digit: every policy does what .ci/baseline.json.gz says."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of its sweep, which is run once."""
    return tmp_path_factory.mktemp("results")


def results(root: Path, bench: str, out: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [root / ".ci/results", *options],
        env={**os.environ, "BENCH": bench, "OUT": str(out)},
        capture_output=True,
        text=True,
        check=False,
    )


def cells(baseline: Path) -> Any:
    return json.loads(gzip.decompress(baseline.read_bytes()))["cells"]


def test_every_policy_does_to_the_digit_what_the_baseline_says(bench: str, out: Path) -> None:
    found = results(ROOT, bench, out)
    assert found.returncode == 0, found.stdout + found.stderr
    assert found.stdout.endswith("identical to the digit\n")


def test_a_nanosecond_of_one_job_fails_and_says_how_to_renew(
    bench: str, out: Path, tmp_path: Path
) -> None:
    shutil.copytree(ROOT / ".ci", tmp_path / ".ci")
    file = tmp_path / ".ci/baseline.json.gz"
    told = json.loads(gzip.decompress(file.read_bytes()))
    jobs = told["cells"][0]["jct_s"]
    jobs[next(iter(jobs))] += 1e-9
    file.write_bytes(gzip.compress(json.dumps(told).encode()))
    found = results(tmp_path, bench, out)
    assert found.returncode == 1
    assert found.stderr.splitlines()[-1] == (
        "Results changed. If that is meant: make baseline, look at what it prints, commit "
        ".ci/baseline.json.gz."
    )
    assert results(tmp_path, bench, out, "--renew").returncode == 0
    renewed, ours = (cells(root / ".ci/baseline.json.gz") for root in (tmp_path, ROOT))
    assert renewed == ours
