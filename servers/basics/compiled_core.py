"""The compiled core: extension modules built from the simulator's sources by `harness.compile`.

In: a folder of extension modules, and `core.json`, which says from which sources and for which
Python they were built. Out: Python imports these modules instead of their sources. The results are
equal. Only the worker processes of `bench` that simulate cells use the core; all other processes,
among them vLLM's, run the sources.

An environment variable passes the folder from `bench` to its workers, since a new process imports
modules before it gets any other data. Standard library only.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from mypy_extensions import mypyc_attr as mypyc_attr
else:

    def mypyc_attr(**_options: bool) -> Any:
        """Return a decorator that does nothing: only the compiler reads a class's options."""
        return lambda cls: cls


ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "turnstile_core"
MANIFEST = "core.json"
SUFFIX = EXTENSION_SUFFIXES[0]
"""Names the version of Python and the machine, e.g. `.cpython-311-x86_64-linux-gnu.so`."""
CHOICE = "TURNSTILE_CORE"
"""Set by users: `python` for the sources, or the folder of another compiled core."""
WORKER = "TURNSTILE_WORKER_CORE"
"""Set by `bench` for its workers: the folder of their core."""

MODULES = (
    "servers/basics/clock.py",
    "servers/programs.py",
    "servers/policies/**/*.py",
    "servers/routers/*.py",
    "servers/profiles/drafts.py",
    "servers/profiles/kv_memory.py",
    "servers/profiles/profile.py",
    "servers/profiles/rebuild.py",
    "servers/sim/*.py",
    "harness/replay/contents.py",
    "harness/replay/scenario.py",
    "harness/replay/schedule.py",
    "harness/replay/virtual.py",
)
"""Sources that are compiled."""
NOT_COMPILED = (
    "servers/policies/arguments.py",
    "servers/policies/contract.py",
    "servers/policies/user_code.py",
    "servers/sim/settings.py",
)
"""Exceptions: the first two read signatures, which compiled methods lack, and the third reads
frames of code that runs in Python."""
SOURCES = (
    *MODULES,
    "servers/*.py",
    "servers/basics/*.py",
    "servers/records/*.py",
    "servers/profiles/**/*.py",
    "harness/replay/*.py",
    "traces/**/*.py",
)
"""Sources on which the compiled modules depend: the compiler copies constants of other modules."""


class Core(NamedTuple):
    folder: Path | None
    """None: the sources run."""
    finding: str
    is_outdated: bool = False
    """Whether there is a compiled core, which cannot be used."""


SOURCES_ONLY = Core(None, "not used")


def modules() -> list[Path]:
    """Return the sources that are compiled, relative to `ROOT`, sorted."""
    return [
        path
        for path in _files(MODULES)
        if path.name != "__init__.py" and path.as_posix() not in NOT_COMPILED
    ]


def sources_sha256() -> str:
    """Return a hash of the names and contents of the sources on which the core depends."""
    digest = hashlib.sha256()
    for path in _files(SOURCES):
        digest.update(path.as_posix().encode() + b"\0" + (ROOT / path).read_bytes())
    return digest.hexdigest()


def _files(patterns: tuple[str, ...]) -> list[Path]:
    return sorted({file.relative_to(ROOT) for pattern in patterns for file in ROOT.glob(pattern)})


def find_core(environment: Mapping[str, str] = os.environ) -> Core:
    """Return the compiled core that workers use, if one was built from the present sources."""
    choice = environment.get(CHOICE)
    if choice == "python":
        return Core(None, f"not used, since {CHOICE}=python")
    folder = Path(choice).absolute() if choice else FOLDER
    if not (folder / MANIFEST).is_file():
        return Core(None, f"absent: no {MANIFEST} in {folder}" if choice else "absent")
    try:
        manifest = json.loads((folder / MANIFEST).read_bytes())
        suffix, built_from = str(manifest["suffix"]), manifest["sources_sha256"]
    except (OSError, ValueError, LookupError, TypeError):
        return Core(None, f"damaged: {folder / MANIFEST} cannot be read", True)
    if suffix != SUFFIX:
        return Core(None, f"built for {suffix}, not for {SUFFIX}", True)
    if built_from != sources_sha256():
        return Core(None, "built from other sources", True)
    return Core(folder, f"in {folder}")


@contextmanager
def offered_to_workers(core: Core) -> Iterator[None]:
    """Let worker processes that start in this context use the core."""
    if core.folder is None:
        yield
        return
    os.environ[WORKER] = str(core.folder)
    try:
        yield
    finally:
        os.environ.pop(WORKER, None)


def use_offered_core() -> None:
    """Import compiled modules from now on, if this is a worker that was offered a core. Processes
    that it starts are not offered one."""
    folder = os.environ.pop(WORKER, None)
    if folder is not None:
        sys.meta_path.insert(0, _CompiledModules(Path(folder)))


class _CompiledModules:
    def __init__(self, folder: Path) -> None:
        self._files = {
            path.relative_to(folder).as_posix().removesuffix(SUFFIX).replace("/", "."): path
            for path in folder.rglob(f"*{SUFFIX}")
        }

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        file = self._files.get(fullname)
        return None if file is None else spec_from_file_location(fullname, file)
