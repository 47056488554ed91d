"""The folder of a sweep: its default name, whether it may take these cells, and its plan.

In: a plan and a folder. Out: the folder, locked while it is filled, with the plan in `sweep.json`
and the settings that it was made from in `sweep.toml`. A folder takes a plan that adds policies,
rates or seeds to its own.
"""

from __future__ import annotations

import hashlib
import platform
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import orjson

from harness.cells.folder import locked, read_json, write_json
from harness.cells.names import slug
from harness.load.settings_file import settings_toml
from harness.redact import redact_command_line
from harness.sweep.plan import SweepPlan
from reports.run_folder.atomic import make_folder, write_file
from servers.errors import CannotWrite, InvalidInput

MADE_BY = "made_by"
"""Field of `sweep.json` with the command, the commit and the Python that ran the sweep."""
GROWING = ("variants", "jps", "seeds")
"""Fields of `sweep.json` that a later plan may add to."""
NOT_DECIDING = (MADE_BY, "baseline", "turnstile_version", "left_out", "rejected_files", "repairs")
"""Fields of `sweep.json` that decide no cell."""
SETTINGS = "sweep.toml"
PART = ".sweep.json.part"
"""All that a sweep killed at its very start leaves."""


def default_folder(plan: SweepPlan) -> Path:
    """A readable name, the same for the same plan only."""
    digest = hashlib.sha256(orjson.dumps(plan.as_json())).hexdigest()[:8]
    engine = plan.engine
    parts = [plan.workload.name, engine.model, engine.hardware]
    if engine.name != "sim":
        parts.append(engine.name)
    return Path("runs") / "_".join([*map(slug, parts), digest])


def check_folder(folder: Path, plan: SweepPlan) -> None:
    """Raises if the folder is not free and does not hold this plan."""
    if folder.exists() and not folder.is_dir():
        raise InvalidInput(f"--out {folder}: is a file; name a folder")
    try:
        if not folder.exists() or {path.name for path in folder.iterdir()} <= {PART}:
            return
    except OSError as error:
        raise CannotWrite.of(folder, error) from None
    if not (folder / "sweep.json").is_file():
        raise InvalidInput(f"--out {folder}: holds files, but no run; name a new or empty folder")
    held = read_json(folder / "sweep.json")
    if "format" not in held:
        raise InvalidInput(
            f"--out {folder}: its sweep.json lacks format, so it is damaged or not ours; "
            "name another folder, or remove this one"
        )
    wanted = orjson.loads(orjson.dumps(plan.as_json()))
    for field in [*wanted, *held]:
        if field in NOT_DECIDING or held.get(field) == wanted.get(field):
            continue
        if field in GROWING and _adds_to(held.get(field), wanted.get(field)):
            continue
        what = _difference(field, held.get(field), wanted.get(field))
        raise InvalidInput(
            f"--out {folder}: holds cells of other settings ({what}); "
            "name another folder, or remove this one"
        )


def _adds_to(held: Any, wanted: Any) -> bool:
    return isinstance(held, list) and isinstance(wanted, list) and all(h in wanted for h in held)


def _difference(field: str, held: Any, wanted: Any) -> str:
    if isinstance(held, dict) and isinstance(wanted, dict):
        inner = next(key for key in [*wanted, *held] if held.get(key) != wanted.get(key))
        return _difference(f"{field}.{inner}", held.get(inner), wanted.get(inner))
    if field == "code_sha256":
        return f"they were run with other code of Turnstile, {field} {held}, now {wanted}"
    if field == "variants" and held and wanted:
        held, wanted = (",".join(v["name"] for v in vs) for vs in (held, wanted))
        same = "the policies' settings differ"
        return f"policies {held}, now {wanted}" if held != wanted else same
    return f"{field} is {held}, now {wanted}"


@contextmanager
def claimed(folder: Path, plan: SweepPlan) -> Iterator[None]:
    """Makes and locks the folder and writes its plan, or leaves nothing behind."""
    check_folder(folder, plan)
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        make_folder(folder)
        with locked(folder):
            check_folder(folder, plan)
            _write_plan(folder, plan)
            yield
    finally:
        with suppress(OSError):  # those with a run in them stay
            for path in made:
                path.rmdir()


def _write_plan(folder: Path, plan: SweepPlan) -> None:
    """Writes `sweep.json` and `sweep.toml`, again if the plan has grown or its settings differ."""
    path = folder / "sweep.json"
    held = read_json(path) if path.exists() else {}
    made = held.pop(MADE_BY, None) or made_by()
    wanted = plan.as_json()
    if held != orjson.loads(orjson.dumps(wanted)):
        write_json(path, {**wanted, MADE_BY: made})
    settings, toml = folder / SETTINGS, settings_toml(plan.settings)
    if not settings.exists() or settings.read_bytes() != toml:
        write_file(settings, toml)


def made_by() -> dict[str, Any]:
    return {
        "argv": ["bench", *redact_command_line(sys.argv[1:])],
        "git_commit": git_commit(),
        "python": platform.python_version(),
    }


def git_commit() -> str | None:
    """Of our own checkout; None where Turnstile was installed from a package."""
    checkout = Path(__file__).parents[2]
    if not (checkout / ".git").exists():
        return None
    try:
        found = subprocess.run(
            ["git", "rev-parse", "HEAD"],  # noqa: S607
            cwd=checkout,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return found.stdout.strip()
