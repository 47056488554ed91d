"""Runs every cell of a plan once, in parallel processes, and resumes an unfinished run folder.

In: a `SweepPlan` and a folder. Out: the filled folder, and the cells that failed. The number of
workers changes the time a sweep takes and nothing else.
"""

from __future__ import annotations

import hashlib
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from harness.cells.folder import (
    is_done,
    locked,
    mark_failed,
    read_json,
    write_json,
)
from harness.cells.names import slug
from harness.cells.workers import Ended, Started, Tick, Ticked, run_jobs
from harness.console import complain
from harness.redact import hidden_words
from harness.sweep.cell import Work, run_cell
from harness.sweep.plan import Cell, SweepPlan
from harness.sweep.progress import SweepProgress
from reports.phrasing import listed
from reports.run_folder.atomic import make_folder
from servers.errors import CannotWrite, InvalidInput

MADE_BY = "made_by"
"""The part of `sweep.json` that is not the plan: the command, the user and the machine."""
PART = ".sweep.json.part"
"""All that a sweep killed at its very start leaves."""


@dataclass(frozen=True, slots=True)
class Outcome:
    folder: Path
    cells: int
    found_done: int
    """Finished by an earlier run of the same plan."""
    failed: Mapping[str, str]
    """Cell name → error."""


def default_folder(plan: SweepPlan) -> Path:
    """A readable name, which is the same for equal plans only."""
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
    held, wanted = read_json(folder / "sweep.json"), plan.as_json()
    if "format" not in held:
        raise InvalidInput(
            f"--out {folder}: its sweep.json lacks format, so it is damaged or not ours; "
            "name another folder, or remove this one"
        )
    for field in [*wanted, *held]:
        if field != MADE_BY and held.get(field) != orjson.loads(orjson.dumps(wanted.get(field))):
            what = _difference(field, held.get(field), wanted.get(field))
            raise InvalidInput(
                f"--out {folder}: holds another sweep ({what}); "
                "name another folder, or remove this one"
            )


def _difference(field: str, held: Any, wanted: Any) -> str:
    if isinstance(held, dict) and isinstance(wanted, dict):
        inner = next(key for key in [*wanted, *held] if held.get(key) != wanted.get(key))
        return _difference(f"{field}.{inner}", held.get(inner), wanted.get(inner))
    if field in ("code_sha256", "turnstile_version"):
        return f"it was begun with other code of Turnstile, {field} {held}, now {wanted}"
    if field == "variants" and held and wanted:
        held, wanted = (",".join(v["name"] for v in vs) for vs in (held, wanted))
        return (
            f"policies {held}, now {wanted}" if held != wanted else "the policies' settings differ"
        )
    return f"{field} is {held}, now {wanted}"


def run_sweep(
    plan: SweepPlan,
    folder: Path,
    *,
    workers: int,
    stop_on_error: bool = False,
    run: Callable[[Work, Cell, Tick], None] = run_cell,
    on_begin: Callable[[], None] = lambda: None,
) -> Outcome:
    """`on_begin` is called once the plan and its folder are known to be valid."""
    with _claimed(folder, plan):
        on_begin()
        cells = plan.cells()
        todo = [cell for cell in cells if not _is_finished(folder / cell.name)]
        if again := [cell.name for cell in todo if (folder / cell.name).exists()]:
            complain(f"set aside what an earlier run left of {listed(again)}, to run again")
        failed: dict[str, str] = {}
        if todo:
            failed = _run_cells(todo, Work(plan, folder), workers, stop_on_error, run)
    return Outcome(folder, len(cells), len(cells) - len(todo), failed)


def _is_finished(cell: Path) -> bool:
    """One that no report can read is not, which is told."""
    if not is_done(cell):
        return False
    from reports.run_folder.read import AGAIN, check_finished
    from servers.errors import InvalidRunFolder

    try:
        check_finished(cell)
    except InvalidRunFolder as error:
        complain(f"damaged: {str(error).removesuffix(f'; {AGAIN}')}")
        return False
    return True


@contextmanager
def _claimed(folder: Path, plan: SweepPlan) -> Iterator[None]:
    """The folder is there, ours alone, and says what it answers; or nothing is left behind."""
    check_folder(folder, plan)
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        make_folder(folder)
        with locked(folder):
            check_folder(folder, plan)
            if not (folder / "sweep.json").exists():
                write_json(folder / "sweep.json", {**plan.as_json(), MADE_BY: made_by()})
            yield
    finally:
        with suppress(OSError):  # those with a run in them stay
            for path in made:
                path.rmdir()


def _run_cells(
    todo: list[Cell],
    work: Work,
    workers: int,
    stop_on_error: bool,
    run: Callable[[Work, Cell, Tick], None],
) -> dict[str, str]:
    failed: dict[str, str] = {}
    if not work.plan.engine.side_by_side:
        workers = 1
    progress = SweepProgress(len(todo), work.plan.workload.turns, min(workers, len(todo)))
    with progress, closing(run_jobs(todo, run, work, workers)) as events:
        for event in events:
            name = event.job.name
            if isinstance(event, Started):
                progress.started(name)
            elif isinstance(event, Ticked):
                progress.ticked(name, event.amount, event.stage)
            elif isinstance(event, Ended):
                if event.error is not None:
                    failed[name] = event.error
                    mark_failed(work.folder / name, event.error)
                progress.finished(name, event.error)
                if failed and stop_on_error:
                    break
    return failed


def made_by() -> dict[str, Any]:
    return {
        "argv": ["bench", *hidden_words(sys.argv[1:])],
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
