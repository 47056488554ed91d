"""Prepares what `bench fidelity` runs: the same cells in virtual time and, repeatedly, live.

In: settings and a folder. Out: the settings of its sweeps (`OUT/sim`, `OUT/live-1`, …), which
`harness.cli.run_from_settings` runs and resumes like any other, and the profile that both use
(`OUT/profile.json`).
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict, replace
from pathlib import Path

import orjson

from harness.cells.names import slug
from harness.load.settings import Machine, Server, SweepSettings
from harness.sweep.plan import SweepPlan, resolve
from reports.run_folder.atomic import make_folder, write_file
from servers.errors import InvalidInput
from servers.profiles.measured import is_file, read_measured
from servers.variants import variants

PROFILE = "profile.json"
OURS = (PROFILE, "sim", "live-1", "fidelity.html", "fidelity.json")
"""A folder that holds one of these was made by `bench fidelity`."""


def check(settings: SweepSettings) -> None:
    """Raises `InvalidInput` for invalid settings. The machine is not checked: it may not have been
    measured yet."""
    for variant in variants(settings.policies):
        if variant.offload is not None:
            raise InvalidInput(
                f"--policies {variant.name}: a fidelity card has no policies over an offload tier; "
                "remove it"
            )
    if settings.machine.hardware is not None and not is_file(settings.machine.hardware):
        raise InvalidInput(
            f"--hardware {settings.machine.hardware}: is not a measured profile; give a file that "
            "bench profile wrote, or remove it to measure one first"
        )
    machine = settings.machine
    anywhere = Machine(max_num_seqs=machine.max_num_seqs, step_tokens=machine.step_tokens)
    resolve(replace(settings, machine=anywhere, server=Server()))


def default_folder(settings: SweepSettings) -> Path:
    """A readable name, which is the same for equal settings only; `vllm_python` does not count."""
    values = asdict(replace(settings, server=replace(settings.server, vllm_python=None)))
    digest = hashlib.sha256(orjson.dumps(values, default=str)).hexdigest()[:8]
    load = "+".join(Path(source).name for source in settings.load.traces)
    parts = ["fidelity", load, Path(settings.machine.model or "").name, digest]
    return Path("runs") / "_".join(slug(part) for part in parts if part)


def claim(out: Path, given: str | None) -> Path:
    """Makes the folder, copies the given profile into it, and returns the path of the profile."""
    if out.exists() and not out.is_dir():
        raise InvalidInput(f"--out {out}: is a file; name a folder")
    if out.exists() and any(out.iterdir()) and not any((out / name).exists() for name in OURS):
        raise InvalidInput(f"--out {out}: holds files, but no fidelity card; name an empty folder")
    kept = out / PROFILE
    if given is not None:
        read_measured(Path(given))
        content = Path(given).read_bytes()
        if kept.exists() and kept.read_bytes() != content:
            raise InvalidInput(
                f"--out {out}: was begun with another profile than {given}; name another folder"
            )
    make_folder(out)
    if given is not None and not kept.exists():
        write_file(kept, content)
    return kept


def live_and_virtual(settings: SweepSettings, profile: Path) -> tuple[SweepSettings, SweepSettings]:
    """The settings of each live sweep, and of the one in virtual time.

    Both get the same memory: of vLLM's N blocks one is its null block, which no turn gets, so
    virtual time has N − 1. Both take the same longest context, so that none leaves out a program
    that the other runs.
    """
    measured = read_measured(profile)
    blocks = settings.machine.kv_blocks or measured.kv_blocks
    machine = replace(
        settings.machine,
        engine="vllm",
        hardware=str(profile),
        model=settings.machine.model or measured.model,
        kv_blocks=blocks,
    )
    live = replace(settings, machine=machine)
    plan = resolve(live)
    longest, _ = plan.engine.longest
    machine = replace(machine, engine="sim", kv_blocks=blocks - 1, max_model_len=longest)
    virtual = replace(live, machine=machine, server=Server())
    _check_same(plan, resolve(virtual))
    return live, virtual


def _check_same(live: SweepPlan, virtual: SweepPlan) -> None:
    for what in ("programs", "turns"):
        one, other = (q.workload.as_json()[what] for q in (live, virtual))
        if one != other:
            raise InvalidInput(
                f"live {one} {what} fit, in virtual time {other}; give --max-model-len, so that "
                "both drop the same programs"
            )


def arriving_s(settings: SweepSettings, repeats: int) -> float:
    """Seconds for which jobs arrive, summed over all live cells: a lower bound of their duration.
    0 in a closed loop, where arrivals depend on the engine."""
    plan = resolve(settings)
    programs = plan.workload.programs
    draws = [plan.arrivals.draw(programs, cell.jps, cell.seed) for cell in plan.cells()]
    return repeats * sum(max(starts_s) for starts_s, in_flight in draws if in_flight is None)
