"""Builds the compiled core that a wheel contains: python -m tests.compiled.wheel FOLDER"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[2]
PACKAGED = ("agents", "harness", "reports", "servers", "traces")
REQUIREMENTS = """
import json, tomllib
from setuptools import build_meta
fixed = tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"]
print(json.dumps([*fixed, *build_meta.get_requires_for_build_wheel()]))
"""
"""Prints what an isolated build of a wheel installs. pip would take ten times as long for that."""


def build_core(folder: Path) -> None:
    """Move the core to `folder`, from a wheel that a new environment builds with only the packages
    that `setup.py` asks for, from the index. The build runs on a copy, since it writes next to it.
    """
    with TemporaryDirectory() as temporary:
        work = Path(temporary)
        for name in PACKAGED:
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, work / "source" / name, ignore=ignored)
        for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE", "NOTICE"):
            shutil.copy(ROOT / name, work / "source")
        compiled = {**os.environ, "TURNSTILE_COMPILE": "1"}
        asked = subprocess.run(
            [sys.executable, "-c", REQUIREMENTS], cwd=work / "source", env=compiled,
            check=True, capture_output=True, text=True,
        )  # fmt: skip
        needed = json.loads(asked.stdout.splitlines()[-1])
        venv.create(work / "new", with_pip=True)
        subprocess.run([".ci/install", work / "new", *needed], cwd=ROOT, check=True)
        subprocess.run(
            [work / "new/bin/python", "-m", "pip", "wheel", "--quiet", "--no-deps",
             "--no-build-isolation", "--wheel-dir", work, work / "source"],
            check=True, env=compiled,
        )  # fmt: skip
        (wheel,) = work.glob("*.whl")
        zipfile.ZipFile(wheel).extractall(work / "site")
        shutil.rmtree(folder, ignore_errors=True)
        shutil.move(work / "site/turnstile_core", folder)


if __name__ == "__main__":
    build_core(Path(sys.argv[1]))
