"""What decides a cell: its settings, and the hash of the sources that act on them.

What only words a message, reads a run folder or draws a report decides nothing: an unfinished sweep
goes on after such a change, and finished cells of the same settings are found again.
"""

from __future__ import annotations

import hashlib
import inspect
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import orjson

from servers.variants import Variant

ROOT = Path(__file__).parents[2]
DECIDING = (
    "servers/*.py",
    "servers/policies",
    "servers/profiles",
    "servers/sim",
    "servers/vllm/launch/command_line.py",
    "servers/vllm/models",
    "servers/vllm/plugin",
    "servers/vllm/virtual_time",
    "harness/replay",
    "harness/load/arrivals.py",
    "harness/load/workload.py",
    "traces",
)
"""Sources that decide the turns of a replay."""
DECIDING_AGENTS = (*DECIDING, "agents", "harness/gateway", "harness/live_agents")
"""Sources that decide the turns of real agents."""
NOT_DECIDING = ("turnstile_version",)
"""Fields of `cell.json` that do not affect the result of a cell."""


def code_sha256(agents: bool = False) -> str:
    """Hash of our sources that decide a cell, by path and content."""
    files = {
        file
        for pattern in (DECIDING_AGENTS if agents else DECIDING)
        for path in ROOT.glob(pattern)
        for file in (path.rglob("*.py") if path.is_dir() else [path])
    }
    return _sha256(sorted(files), ROOT)


def policy_sha256(variant: Variant) -> str | None:
    """Hash of the sources of a policy from outside: its module, or all modules of its package. None
    for a policy of Turnstile, which `code_sha256` covers."""
    file = Path(inspect.getfile(variant.policy))
    if file.is_relative_to(ROOT / "servers"):
        return None
    package = sys.modules[variant.policy.__module__.partition(".")[0]]
    folders = [Path(folder) for folder in getattr(package, "__path__", ())]
    files = {path for folder in folders for path in folder.rglob("*.py")} | {file}
    return _sha256(sorted(files), file.parent)


def _sha256(files: Iterable[Path], root: Path) -> str:
    digest = hashlib.sha256()
    for file in files:
        digest.update(os.path.relpath(file, root).encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:12]


def same_cell(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two contents of `cell.json` decide the same turns."""
    return bool(_deciding(one) == _deciding(other))


def _deciding(config: Mapping[str, Any]) -> Any:
    kept = {name: value for name, value in config.items() if name not in NOT_DECIDING}
    return orjson.loads(orjson.dumps(kept))
