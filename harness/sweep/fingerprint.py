"""Identify cells with equal results by their settings and a hash of the code that runs them.

The hash omits code that only prints messages, reads run folders or writes reports. After a change
of such code, a sweep still resumes, and its finished cells are reused.
"""

from __future__ import annotations

import ast
import hashlib
import os
import sys
import sysconfig
import warnings
from collections.abc import Iterable, Iterator
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

from msgspec.structs import replace

from harness.installation import PACKAGES
from servers.policies.user_code import roots_of
from servers.records.cell import CellRecord

ROOT = Path(__file__).parents[2]
REPLAY_SOURCES = (
    "servers/*.py",
    "servers/basics",
    "servers/records",
    "servers/foreign_routers/sglang_router.py",
    "servers/foreign_routers/thunderagent_org.py",
    "servers/foreign_routers/dynamo.py",
    "servers/foreign_routers/mocker_times.py",
    "servers/foreign_routers/vllm_router.py",
    "servers/policies",
    "servers/profiles",
    "servers/routers",
    "servers/sglang/command_line.py",
    "servers/sglang/schedulers.py",
    "servers/sim",
    "servers/vllm/launch/command_line.py",
    "servers/vllm/models",
    "servers/vllm/plugin",
    "servers/vllm/virtual_time",
    "harness/replay",
    "harness/cells/job_times.py",
    "harness/load/arrivals.py",
    "harness/load/stream.py",
    "harness/load/workload.py",
    "harness/sweep/idle.py",
    "traces",
)
"""Sources that determine the turns of a replay."""
AGENT_SOURCES = (*REPLAY_SOURCES, "agents", "harness/gateway", "harness/live_agents")
"""Sources that determine the turns of real agents."""
NOT_HASHED = frozenset({*PACKAGES, *sys.stdlib_module_names})
"""Modules that the code of a user imports and that do not count as part of it."""
INSTALLED = ("site-packages", "dist-packages")


def code_sha256(agents: bool = False) -> str:
    """Return a hash of the paths and contents of the sources that determine a cell."""
    files = {
        file
        for pattern in (AGENT_SOURCES if agents else REPLAY_SOURCES)
        for path in ROOT.glob(pattern)
        for file in (path.rglob("*.py") if path.is_dir() else [path])
    }
    return _sha256(sorted(files), ROOT)


def class_sha256(cls: type) -> str | None:
    """Return a hash of the modules or packages of a third-party policy or router, of its base
    classes, and of everything that they import and that is not installed in `site-packages`. None
    for a class of Turnstile, which `code_sha256` covers."""
    if cls.__module__.startswith("servers."):
        return None
    found: dict[Path, list[Path]] = {}
    stack = [root for root in roots_of(cls) if not _is_of_python(root)]
    while stack:
        root = stack.pop()
        if root not in found:
            found[root] = sorted(root.rglob("*.py")) if root.is_dir() else [root]
            for file in found[root]:
                stack += _imported(file)
    digest = hashlib.sha256()
    # Names are relative to the folder of each module, which differs between machines.
    for root in sorted(found, key=lambda root: (root.name, root)):
        digest.update(_sha256(found[root], root.parent).encode())
    return digest.hexdigest()[:12]


def _imported(file: Path) -> Iterator[Path]:
    """Yield the files and folders of the top-level modules that a file imports."""
    names = _imported_names(file.read_bytes()) if file.suffix == ".py" else frozenset()
    for name in names - NOT_HASHED:
        try:
            spec = find_spec(name)
        except (ImportError, ValueError):  # a module without a specification, such as `__main__`
            continue
        if spec is None:
            continue
        folders = spec.submodule_search_locations
        places = folders if folders is not None else [spec.origin] if spec.has_location else []
        for place in places:
            path = Path(str(place)).absolute()
            if not _is_of_python(path) and not set(INSTALLED).intersection(path.parts):
                yield path


@lru_cache(maxsize=1024)
def _imported_names(source: bytes) -> frozenset[str]:
    """Return the top-level modules of all absolute imports, also of those within functions."""
    try:
        with warnings.catch_warnings(action="ignore"):
            tree = ast.parse(source)
    except (SyntaxError, ValueError):  # a file of the package that nothing can import
        return frozenset()
    names: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.append(node.module)
    return frozenset(name.partition(".")[0] for name in names)


def _is_of_python(path: Path) -> bool:
    """Return whether a module is part of Python's standard library."""
    library = Path(sysconfig.get_path("stdlib"))
    return library in path.parents and not set(INSTALLED).intersection(path.parts)


def _sha256(files: Iterable[Path], root: Path) -> str:
    digest = hashlib.sha256()
    for file in files:
        digest.update(os.path.relpath(file, root).encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:12]


def same_cell(a: CellRecord, b: CellRecord) -> bool:
    """Return whether two cells have the same turns: their version does not affect them."""
    return replace(a, turnstile_version=b.turnstile_version) == b
