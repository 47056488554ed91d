"""Compiles the core of the simulator with mypyc: `python -m harness.compile`.

With `--check` it only tests whether this machine can compile; `bench doctor` says whether the core
is current.

In: the sources that `servers.basics.compiled_core` names. Out: a folder of extension modules for
this Python. Needs a C compiler, mypy and setuptools, and nothing else, so that `setup.py` can use
it.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
import sysconfig
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import chdir
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from servers.basics.compiled_core import FOLDER, MANIFEST, ROOT, SUFFIX, modules, sources_sha256
from servers.basics.cores import cpu_cores

if TYPE_CHECKING:
    from setuptools import Extension

GROUP = "turnstile_core"
"""Name of the library with all compiled modules, to which each module's own refers."""
OPTIMIZATION = "1"
"""A higher level takes twice as long to compile, for 5% of speed."""
FLAGS = ["-ffp-contract=off", "-fvisibility=hidden", "-Wno-all", "-w"]
"""Without fused multiplications and additions, which round once, while Python rounds twice; with
direct calls between files; and without warnings of the C code, whose analysis takes a third of the
time."""
INEXACT = re.compile(r"= CPyTagged_TrueDivide\(")
"""mypyc's division of integers, which rounds those above 2**53 before it divides them."""


class InexactDivision(Exception):
    """A compiled module divides integers with `/`: use `servers.basics.clock.quotient`."""


def obstacle() -> str | None:
    """Return why nothing can be compiled here, in one line; None if there is a C compiler."""
    compiler = (sysconfig.get_config_var("CC") or "cc").split()[0]
    if shutil.which(compiler) is None:
        return f"no C compiler: {compiler} is not installed"
    if not Path(sysconfig.get_path("include"), "Python.h").is_file():
        return "no Python.h: the headers of this Python are not installed"
    return None


def compile_core(folder: Path = FOLDER) -> None:
    """Replace the folder by a core that is compiled from the present sources."""
    with tempfile.TemporaryDirectory() as work:
        built = Path(work) / "built"
        _build(built, Path(work) / "c")
        manifest = {"suffix": SUFFIX, "sources_sha256": sources_sha256()}
        (built / MANIFEST).write_text(json.dumps(manifest), "utf-8")
        # Renamed as a whole: a sweep that runs looks for the core before each cell.
        complete = folder.with_name(f"{folder.name}.new")
        shutil.rmtree(complete, ignore_errors=True)
        shutil.copytree(built, complete)
        shutil.rmtree(folder, ignore_errors=True)
        complete.rename(folder)


def _build(folder: Path, c_folder: Path) -> None:
    from mypyc.build import mypycify
    from setuptools import Distribution
    from setuptools.command.build_ext import build_ext

    class BuildOnAllCores(build_ext):  # type: ignore[misc]
        def build_extension(self, ext: Extension) -> None:
            compiled = partial(
                self.compiler.compile,
                output_dir=self.build_temp,
                include_dirs=ext.include_dirs,
                extra_postargs=ext.extra_compile_args,
            )
            with ThreadPoolExecutor(cpu_cores()) as pool:
                objects = pool.map(compiled, [[source] for source in ext.sources])
            ext.sources, ext.extra_objects = [], [path for paths in objects for path in paths]
            super().build_extension(ext)

    with chdir(ROOT):  # Module names and the file names in tracebacks are relative to it.
        extensions = mypycify(
            ["--config-file=", "--ignore-missing-imports", *map(str, modules())],
            opt_level=OPTIMIZATION,
            debug_level="0",
            target_dir=str(c_folder),
            group_name=GROUP,
            multi_file=True,
        )
        _refuse_inexact_division(c_folder)
        for extension in extensions:
            extension.extra_compile_args += FLAGS
        command = BuildOnAllCores(Distribution({"ext_modules": extensions}))
        command.build_lib, command.build_temp = str(folder), str(c_folder / "objects")
        command.ensure_finalized()
        command.run()


def _refuse_inexact_division(c_folder: Path) -> None:
    for path in c_folder.glob("__native*.c"):
        code = path.read_text("utf-8")
        for found in INEXACT.finditer(code):
            function = re.findall(r"^\S.*?(\w+)\(.*\{$", code[: found.start()], re.MULTILINE)[-1]
            raise InexactDivision(f"{function} divides integers: use servers.basics.clock.quotient")


if __name__ == "__main__":
    if reason := obstacle():
        sys.exit(f"make compile: {reason}")
    if sys.argv[1:] not in ([], ["--check"]):
        sys.exit("usage: python -m harness.compile [--check]")
    if not sys.argv[1:]:
        compile_core()
