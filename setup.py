"""Builds the wheel; TURNSTILE_COMPILE=1 adds the compiled core: docs/howto/cluster.md."""

from __future__ import annotations

import os
import re
import sys
import tomllib
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).parent
TYPED = ("msgspec", "numpy", "orjson", "pydantic")
"""Packages whose types mypy needs, since the sources of the core import them."""


class CompileCore(build_ext):
    def run(self) -> None:
        if self.editable_mode:
            raise SystemExit("TURNSTILE_COMPILE=1: of an editable install, run make compile")
        sys.path.insert(0, str(ROOT))
        from harness.compile import GROUP, compile_core

        compile_core((Path(self.build_lib) / GROUP).absolute())


def build_requirements() -> list[str]:
    """Return what an isolated build needs besides setuptools."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    dependencies = [*project["dependencies"], *project["optional-dependencies"]["compile"]]
    return [each for each in dependencies if re.split(r"\W", each)[0] in (*TYPED, "mypy")]


if os.environ.get("TURNSTILE_COMPILE") == "1":
    setup(
        ext_modules=[Extension("turnstile_core", [])],
        cmdclass={"build_ext": CompileCore},
        setup_requires=build_requirements(),
    )
else:
    setup()
