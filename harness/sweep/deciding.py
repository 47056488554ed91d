"""What decides a cell, and finished cells that the same settings have already decided.

In: the contents of `cell.json`. Out: the folder of a finished cell with the same result, wherever
under `runs/` it was run. What only words a message, reads a run folder or draws a report decides
nothing: a half-finished sweep goes on after such a change.
"""

from __future__ import annotations

import hashlib
import inspect
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson

from harness.cells.folder import is_done, read_json
from reports.run_folder.atomic import sync
from servers.errors import CannotWrite, InvalidInput
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
"""Fields of `cell.json` that are kept for people."""
RUNS = Path("runs")
COPYING = ".aside-copy"
"""No report reads a folder of this name, and it goes with what else was set aside."""


def code_sha256(agents: bool = False) -> str:
    """Hash of our sources that decide a cell, by path and content."""
    files = {
        file
        for pattern in (DECIDING_AGENTS if agents else DECIDING)
        for path in ROOT.glob(pattern)
        for file in (path.rglob("*.py") if path.is_dir() else [path])
    }
    digest = hashlib.sha256()
    for file in sorted(files):
        digest.update(str(file.relative_to(ROOT)).encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:12]


def policy_sha256(variant: Variant) -> str | None:
    """Hash of the source file of a policy from outside; None for ours, which `code_sha256` has."""
    file = Path(inspect.getfile(variant.policy))
    if file.is_relative_to(ROOT / "servers"):
        return None
    return hashlib.sha256(file.read_bytes()).hexdigest()[:12]


def same_cell(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two contents of `cell.json` decide the same turns."""
    return bool(_deciding(one) == _deciding(other))


def _deciding(config: Mapping[str, Any]) -> Any:
    kept = {name: value for name, value in config.items() if name not in NOT_DECIDING}
    return orjson.loads(orjson.dumps(kept))


def finished_elsewhere(
    wanted: Mapping[str, Mapping[str, Any]], out: Path, runs: Path = RUNS
) -> dict[str, Path]:
    """Finished cells under `runs` but not in `out`, by name of the wanted cell."""
    found: dict[str, Path] = {}
    for cell in _finished_cells(runs, wanted):
        if cell.name in found or cell.parent.resolve() == out.resolve():
            continue
        with suppress(OSError, InvalidInput):  # damaged: not finished
            if same_cell(read_json(cell / "cell.json"), wanted[cell.name]):
                found[cell.name] = cell
    return found


def _finished_cells(runs: Path, names: Iterable[str]) -> Iterator[Path]:
    wanted = frozenset(names)
    for folder, subfolders, _ in os.walk(runs):
        cells = sorted(wanted.intersection(subfolders))
        if (Path(folder) / "sweep.json").is_file():
            subfolders.clear()
            yield from (Path(folder) / name for name in cells if is_done(Path(folder) / name))
        subfolders.sort()


def copy_cell(cell: Path, target: Path) -> None:
    """Makes `target` a copy of a finished cell, complete or not at all. Files are linked where the
    file system allows, since nothing writes into a finished cell."""
    copying = target.with_name(target.name + COPYING)
    try:
        shutil.rmtree(copying, ignore_errors=True)
        shutil.copytree(cell, copying, symlinks=True, copy_function=_link)
        os.rename(copying, target)
        sync(target.parent)
    except OSError as error:
        shutil.rmtree(copying, ignore_errors=True)
        raise CannotWrite.of(target, error) from None


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:
        shutil.copy2(source, target, follow_symlinks=False)
