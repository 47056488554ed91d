"""Identify cells with equal results by their settings and a hash of the code that runs them.

The hash omits code that only prints messages, reads run folders or writes reports. After a change
of such code, a sweep still resumes, and its finished cells are reused.
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
REPLAY_SOURCES = (
    "servers/*.py",
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
IGNORED_FIELDS = ("turnstile_version",)
"""Fields of `cell.json` that do not affect the result of a cell."""


def code_sha256(agents: bool = False) -> str:
    """Return a hash of the paths and contents of the sources that determine a cell."""
    files = {
        file
        for pattern in (AGENT_SOURCES if agents else REPLAY_SOURCES)
        for path in ROOT.glob(pattern)
        for file in (path.rglob("*.py") if path.is_dir() else [path])
    }
    return _sha256(sorted(files), ROOT)


def policy_sha256(variant: Variant) -> str | None:
    """Return a hash of the module of a third-party policy and of all modules of its package. None
    for a policy of Turnstile, which `code_sha256` covers."""
    if variant.policy.__module__.startswith("servers."):
        return None
    file = Path(inspect.getfile(variant.policy))
    package = sys.modules[variant.policy.__module__.partition(".")[0]]
    folders = [Path(folder) for folder in getattr(package, "__path__", ())]
    files = {path for folder in folders for path in folder.rglob("*.py")} | {file}
    return _sha256(sorted(files), file.parent)


def _sha256(files: Iterable[Path], root: Path) -> str:
    digest = hashlib.sha256()
    for file in files:
        digest.update(os.path.relpath(file, root).encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:12]


def same_cell(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    """Return whether two `cell.json` contents determine the same turns."""
    return bool(_compared_fields(a) == _compared_fields(b))


def _compared_fields(config: Mapping[str, Any]) -> Any:
    fields = {name: value for name, value in config.items() if name not in IGNORED_FIELDS}
    return orjson.loads(orjson.dumps(fields))
