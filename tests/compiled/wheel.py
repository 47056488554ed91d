"""Builds the compiled core that a wheel contains: python -m tests.compiled.wheel FOLDER"""

from __future__ import annotations

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
        # mypy also finds packages of the environment that runs pip, even if the build is isolated.
        venv.create(work / "new", with_pip=False)
        subprocess.run(
            [sys.executable, "-m", "pip", "--python", str(work / "new/bin/python"), "wheel",
             "--quiet", "--no-deps", "--wheel-dir", str(work), str(work / "source")],
            check=True, env={**os.environ, "TURNSTILE_COMPILE": "1", "PIP_NO_COMPILE": "1"},
        )  # fmt: skip
        (wheel,) = work.glob("*.whl")
        zipfile.ZipFile(wheel).extractall(work / "site")
        shutil.rmtree(folder, ignore_errors=True)
        shutil.move(work / "site/turnstile_core", folder)


if __name__ == "__main__":
    build_core(Path(sys.argv[1]))
