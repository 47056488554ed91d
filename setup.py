"""Builds the wheel; TURNSTILE_COMPILE=1 adds the compiled core: docs/howto/compiled-core.md."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).parent


class CompileCore(build_ext):
    def run(self) -> None:
        if self.editable_mode:
            raise SystemExit("TURNSTILE_COMPILE=1: of an editable install, run make compile")
        sys.path.insert(0, str(ROOT))
        from harness.compile import GROUP, compile_core

        compile_core((Path(self.build_lib) / GROUP).absolute())


if os.environ.get("TURNSTILE_COMPILE") == "1":
    setup(
        ext_modules=[Extension("turnstile_core", [])],
        cmdclass={"build_ext": CompileCore},
        setup_requires=["mypy>=2.0"],
    )
else:
    setup()
