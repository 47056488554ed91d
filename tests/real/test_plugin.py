"""The scheduler plug-in inside vLLM's own scheduler: runs tests/real/plugin with vLLM's Python.

vLLM's environment needs none of our test tools: our packages are appended to its search path.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from servers.vllm.virtual_time.client import QUIET

ROOT = Path(__file__).parents[2]
RUN = """
import sys
sys.path.append(sys.argv[1])
import pytest
sys.exit(pytest.main(sys.argv[2:]))
"""


def test_all_tests_of_the_plug_in_pass_inside_vllm(tmp_path: Path) -> None:
    python = os.environ.get("TURNSTILE_VLLM_PYTHON")
    if not python:
        pytest.skip("TURNSTILE_VLLM_PYTHON is not set: make test-real sets it")
    our_packages = sysconfig.get_path("purelib")
    tests = str(ROOT / "tests" / "real" / "plugin")
    # vLLM's own warnings are not our_packages to fix.
    plain = ["-q", "-p", "no:cacheprovider", "-o", "filterwarnings=default", "--no-header"]
    # With `make test-real` other tests run beside these; with `make test-scheduler` none do.
    workers = "0" if "PYTEST_XDIST_WORKER" in os.environ else str(os.cpu_count())
    done = subprocess.run(
        [python, "-c", RUN, our_packages, *plain, "-n", workers, tests],
        cwd=ROOT,
        env=os.environ | QUIET | {"PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=3600,
    )
    sys.stdout.write(done.stdout)
    assert done.returncode == 0, done.stdout[-4000:]
