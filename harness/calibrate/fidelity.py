"""Prepares the sweeps of `bench fidelity`: the same cells in virtual time and live.

In: settings and a folder. Out: the settings of the sweeps (`OUT/sim`, `OUT/live-1`, …), which
`harness.cli.run_from_settings` runs and resumes, and the profile that all use (`OUT/profile.json`).
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict, replace
from pathlib import Path

import orjson

from harness.load.arrivals import parse_arrivals
from harness.load.machines import refuse_list
from harness.load.settings import Machine, Server, SweepSettings
from harness.sweep.plan import SweepPlan
from harness.sweep.resolve import DEFAULT_JPS, resolve
from servers.basics.atomic import make_folder, write_file
from servers.basics.errors import InvalidInput
from servers.basics.phrasing import counted
from servers.basics.text import slug
from servers.profiles.files import is_file, read_measured
from servers.variants import variants

PROFILE = "profile.json"
OUTPUTS = (PROFILE, "sim", "live-1", "fidelity.html", "fidelity.json")
"""A folder of `bench fidelity` contains at least one of these."""


def check(settings: SweepSettings) -> None:
    """Raises InvalidInput for invalid settings. The machine is not checked, because it may not have
    been measured yet."""
    for variant in variants(settings.policies):
        if variant.offload is not None:
            raise InvalidInput(
                f"--policies {variant.name}: policies with an offload tier are not supported here; "
                "remove it"
            )
    if settings.machine.hardware is not None and not is_file(settings.machine.hardware):
        raise InvalidInput(
            f"--hardware {settings.machine.hardware}: not a measured profile; give a file that "
            "bench profile wrote, or remove the option to measure the engine first"
        )
    if parse_arrivals(settings.load.process).takes_agents:
        raise InvalidInput(
            f"--arrivals {settings.load.process}: a live run has a fixed set of jobs; use closed:N"
        )
    machine = settings.machine
    refuse_list(machine)
    default = Machine(max_num_seqs=machine.max_num_seqs, step_tokens=machine.step_tokens)
    load = replace(settings.load, once=True)
    plan = resolve(replace(settings, machine=default, server=Server(), load=load))
    if settings.jps is None and plan.arrivals.takes_rate:
        raise InvalidInput(
            f"--jps: give rates, such as 0.2,0.5,2; at the default, {DEFAULT_JPS}, the live engine "
            f"would run {counted(len(plan.cells()), 'cell')}, in which jobs arrive for "
            f"{arrivals_s(plan) / 60:,.0f} minutes in total"
        )


def default_folder(settings: SweepSettings) -> Path:
    """Return a folder with a readable name that identifies the settings but `vllm_python`."""
    values = asdict(replace(settings, server=replace(settings.server, vllm_python=None)))
    digest = hashlib.sha256(orjson.dumps(values, default=str)).hexdigest()[:8]
    load = "+".join(Path(source).name for source in settings.load.traces)
    parts = ["fidelity", load, Path(settings.machine.model or "").name, digest]
    return Path("runs") / "_".join(slug(part) for part in parts if part)


def prepare_folder(out: Path, given: str | None) -> Path:
    """Make the folder and copy the given profile into it. Returns the path of the profile."""
    if out.exists() and not out.is_dir():
        raise InvalidInput(f"--out {out}: is a file; give a folder")
    if out.exists() and any(out.iterdir()) and not any((out / name).exists() for name in OUTPUTS):
        raise InvalidInput(f"--out {out}: contains files of something else; give an empty folder")
    profile = out / PROFILE
    if given is not None:
        read_measured(Path(given))
        content = Path(given).read_bytes()
        if profile.exists() and profile.read_bytes() != content:
            raise InvalidInput(
                f"--out {out}: was started with a profile other than {given}; give another folder"
            )
    make_folder(out)
    if given is not None and not profile.exists():
        write_file(profile, content)
    return profile


def live_and_virtual(settings: SweepSettings, profile: Path) -> tuple[SweepSettings, SweepSettings]:
    """Return the settings of each live sweep, and of the one in virtual time.

    Turns have the same memory in both: virtual time gets N − 1 blocks, because one of vLLM's N
    blocks is its null block. Both have the same longest context, so that they drop the same
    programs.
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
    live = replace(settings, machine=machine, load=replace(settings.load, once=True))
    plan = resolve(live)
    machine = replace(
        machine, engine="sim", kv_blocks=blocks - 1, max_model_len=plan.engine.longest.tokens
    )
    virtual = replace(live, machine=machine, server=Server())
    _check_same_workload(plan, resolve(virtual))
    return live, virtual


def _check_same_workload(live: SweepPlan, virtual: SweepPlan) -> None:
    for unit in ("programs", "turns"):
        on_vllm, in_sim = (getattr(plan.workload.record(), unit) for plan in (live, virtual))
        if on_vllm != in_sim:
            raise InvalidInput(
                f"{on_vllm} {unit} fit into vLLM, but {in_sim} in virtual time; give "
                "--max-model-len, so that both drop the same programs"
            )


def arrivals_s(plan: SweepPlan) -> float:
    """Return the seconds during which jobs arrive, summed over all cells.

    This is a lower bound of their duration. It is 0 in a closed loop, where arrivals depend on the
    engine.
    """
    programs = plan.workload.programs
    draws = [plan.arrivals.draw(programs, cell.amount, cell.seed) for cell in plan.cells()]
    return sum(max(starts_s) for starts_s, in_flight in draws if in_flight is None)
