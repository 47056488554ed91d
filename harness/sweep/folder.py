"""The run folder of a sweep: its default name, the check that it fits a plan, and `sweep.json`.

In: a plan and a folder. Out: the folder, locked while cells are written, with the plan in
`sweep.json` and its settings in `sweep.toml`. A plan may add policies, rates and seeds to those
that the folder has already.
"""

from __future__ import annotations

import hashlib
import platform
import subprocess
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from msgspec import structs, to_builtins
from msgspec.json import decode, encode

from harness.cells.folder import read_json, write_json
from harness.cells.locks import Shard, is_lock, locked, plan_locked
from harness.engines.base import engine_kind
from harness.load.settings import Machine, SweepSettings
from harness.load.settings_file import settings_toml
from harness.sweep.plan import SweepPlan
from reports.run_folder.find import RUNS
from reports.run_folder.members import MEMBERS
from servers.basics.atomic import make_folder, write_file
from servers.basics.compiled_core import find_core
from servers.basics.errors import CannotWrite, InvalidInput
from servers.basics.json_object import JsonObject
from servers.basics.redact import redact_command_line
from servers.basics.text import slug
from servers.profiles.files import is_file
from servers.profiles.machines.gpu_file import is_gpu_file, with_name
from servers.profiles.models.listed import model_copy
from servers.records.sweep import MadeBy, MembersRecord, SweepRecord

CODE = "code_sha256"
MADE_BY = "made_by"
"""Field of `sweep.json` with the command, the commit and the Python that ran the sweep."""
GROWING = ("variants", "jps", "agents", "seeds", "repeats", "members")
"""Fields of `sweep.json` to which a later plan may add values."""
IGNORED_FIELDS = (
    *(MADE_BY, "baseline", "search", "turnstile_version", "profile_notes"),
    *("left_out", "rejected_files", "repairs", "price", "api_price"),
)
"""Fields of `sweep.json` that do not affect the cells."""
SETTINGS = "sweep.toml"
GPU = "gpu.toml"
"""Copy of the file that describes the GPU, if --hardware names one."""
PROFILE = "profile.json"
"""Copy of the profile, if --hardware names a file of `bench profile`."""
MODEL = "model.json"
"""Copy of the config.json that --model leads to, in virtual time."""
SWEEP = "sweep.json"


def default_folder(plan: SweepPlan) -> Path:
    """Return a readable name that ends with a hash of the plan."""
    digest = hashlib.sha256(encode(without_prices(plan.sweep_record()))).hexdigest()[:8]
    engine = plan.engine
    parts = [plan.workload.name, engine.model, engine.hardware]
    if engine.kind.name != Machine().engine:
        parts.append(engine.kind.name)
    return RUNS / "_".join([*map(slug, parts), digest])


def without_prices(sweep: SweepRecord) -> SweepRecord:
    """Return the record of a plan without prices, which change no cell and so no folder."""
    return structs.replace(sweep, price=None, api_price=None)


def _stored_plan(folder: Path, document: str) -> JsonObject:
    """Return the contents of `sweep.json`, or of another document; an empty dict for an empty
    folder. Only a part of the document remains if a sweep is killed while it writes it."""
    try:
        names = {path.name for path in folder.iterdir() if not is_lock(path)}
        if names <= {f".{document}.part"}:
            return {}
    except OSError as error:
        raise CannotWrite.of(folder, error) from None
    for other, count in ((SWEEP, "one machine"), (MEMBERS, "several machines")):
        if other != document and (folder / other).is_file():
            raise InvalidInput(
                f"--out {folder}: contains a run on {count}; name another folder, from which "
                "finished cells of this one are copied if both are in runs/"
            )
    if not (folder / document).is_file():
        raise InvalidInput(
            f"--out {folder}: contains files that are not a run; name a new or empty folder"
        )
    stored = read_json(folder / document)
    if "format" not in stored:
        raise InvalidInput(
            f"--out {folder}: its {document} has no field 'format', so it is damaged or was not "
            "written by bench; name another folder, or remove this one"
        )
    return stored


def _check_extends(planned: JsonObject, stored: JsonObject, folder: Path) -> None:
    for field in sorted([*planned, *stored], key=CODE.__eq__):  # other fields may cause it
        if field in IGNORED_FIELDS or stored.get(field) == planned.get(field):
            continue
        if field in GROWING and _adds_to(*(_values(side, field) for side in (stored, planned))):
            continue
        what = _difference(field, stored.get(field), planned.get(field))
        if field in GROWING:
            what += "; policies, rates, seeds and machines can be added, but not removed"
        raise InvalidInput(
            f"--out {folder}: contains cells with other settings ({what}); "
            "name another folder, or remove this one"
        )


def _values(sweep: JsonObject, field: str) -> Any:
    """Return the values of a field. A field is absent if each cell runs once, or if no number of
    agents was given."""
    return sweep.get(field, {"repeats": [1], "agents": []}.get(field))


def _adds_to(stored: Any, planned: Any) -> bool:
    return (
        isinstance(stored, list)
        and isinstance(planned, list)
        and all(each in planned for each in stored)
    )


def _difference(field: str, stored: Any, planned: Any) -> str:
    if isinstance(stored, dict) and isinstance(planned, dict):
        inner = next(key for key in [*planned, *stored] if stored.get(key) != planned.get(key))
        return _difference(f"{field}.{inner}", stored.get(inner), planned.get(inner))
    if field == CODE:
        return f"they were run with another version of the code: {field} {stored}, now {planned}"
    if field == "variants" and stored and planned:
        before, now = ({variant["name"]: variant for variant in side} for side in (stored, planned))
        if changed := [name for name in before if name in now and before[name] != now[name]]:
            return f"the code or the settings of {', '.join(changed)} differ"
        return f"policies {','.join(before)}, now {','.join(now)}"
    if field == "members":
        return f"machines or bursts are {stored}, now {planned}"
    return f"{field} is {stored}, now {planned}"


@contextmanager
def claimed(
    folder: Path,
    sweep: SweepRecord | MembersRecord,
    settings: Mapping[str, bytes],
    document: str = SWEEP,
    *,
    arguments: Sequence[str] = (),
    shard: Shard | None = None,
) -> Iterator[None]:
    """Create and lock the folder, and write `sweep` to `document` and `settings`, contents by
    name, to further files. Raise `InvalidInput`, and leave no new folder behind, if the folder
    contains anything but cells of this sweep. Shards claim a folder together. `arguments` of the
    command go into `made_by`."""
    if folder.exists() and not folder.is_dir():
        raise InvalidInput(f"--out {folder}: is a file; name a folder")
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    planned: JsonObject = decode(encode(sweep))
    try:
        make_folder(folder)
        with locked(folder, shard):
            with nullcontext() if shard is None else plan_locked(folder):
                stored = _stored_plan(folder, document)
                if stored:
                    _check_extends(planned, stored, folder)
                is_private = bool((planned.get("workload") or {}).get("private"))
                hidden = _traces(settings) if is_private else frozenset[str]()
                made_with = stored.pop(MADE_BY, None) or to_builtins(made_by(arguments, hidden))
                if stored != planned:
                    write_json(folder / document, {**planned, MADE_BY: made_with})
                for name, content in settings.items():
                    path = folder / name
                    if not path.exists() or path.read_bytes() != content:
                        write_file(path, content)
            yield
    finally:
        with suppress(OSError):  # Folders that contain a run are kept.
            for path in made:
                path.rmdir()


def settings_files(settings: SweepSettings) -> dict[str, bytes]:
    """Return the contents of `sweep.toml` and of copies of the files that --hardware and --model
    name. `sweep.toml` then names the copies, since the originals may change, and without their
    folder, since the run folder may be moved."""
    settings, copies = with_copies(settings)
    return {SETTINGS: settings_toml(settings), **copies}


def with_copies(settings: SweepSettings) -> tuple[SweepSettings, dict[str, bytes]]:
    """Return the settings with copies instead of files, and the contents of the copies by name."""
    machine, hardware = settings.machine, settings.machine.hardware or ""
    copies: dict[str, bytes] = {}
    if is_gpu_file(hardware):
        copies[GPU] = with_name(Path(hardware))
    elif is_file(hardware):
        copies[PROFILE] = Path(hardware).read_bytes()
    for name in copies:
        machine = replace(machine, hardware=name)
    if (
        machine.model
        and engine_kind(machine.engine).is_virtual
        and (content := model_copy(machine.model))
    ):
        copies[MODEL] = content
        machine = replace(machine, model=MODEL)
    return replace(settings, machine=machine), copies


def made_by(arguments: Sequence[str], hidden: Collection[str] = ()) -> MadeBy:
    """Return what made the run. `hidden`: paths that its reports must not show."""
    arguments = redact_command_line(_of_all_shards(arguments))
    return MadeBy(
        argv=("bench", *(_without(hidden, argument) for argument in arguments)),
        git_commit=git_commit(),
        python=platform.python_version(),
        core="python" if find_core().folder is None else "compiled",
    )


def _traces(settings: Mapping[str, bytes]) -> frozenset[str]:
    return frozenset(tomllib.loads(settings.get(SETTINGS, b"").decode()).get("traces", ()))


def _without(hidden: Collection[str], argument: str) -> str:
    option, equals, value = argument.rpartition("=")
    return f"{option}{equals}TRACES" if value in hidden else argument


def _of_all_shards(arguments: Sequence[str]) -> list[str]:
    """Return the arguments without `--shard`, so that all shards write the same document."""
    return [
        argument
        for index, argument in enumerate(arguments)
        if not argument.startswith("--shard=")
        and "--shard" not in arguments[max(index - 1, 0) : index + 1]
    ]


def git_commit() -> str | None:
    """Return the commit of the checkout; None if Turnstile was installed from a package."""
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
