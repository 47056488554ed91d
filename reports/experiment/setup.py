"""Describes the machine, the clock and the admission rule of an experiment's arms.

In: `sweep.json` of each arm. Out: one `Setup` for all arms that share it, for the page, the JSON
file and the terminal.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from servers.basics.phrasing import listed
from servers.profiles.kv_memory import KvMemory
from servers.records.settings import LimitsRecord, ProfileRecord
from servers.records.sweep import SweepRecord

STEP_TIMES = {
    "operator-table": "measured: operator tables",
    "measured": "measured: bench profile",
    "analytic": "analytic: published peaks",
}


@dataclass(frozen=True, slots=True)
class Setup:
    """What determines the durations of steps and the memory of an arm."""

    machine: str
    model: str
    step_times: str
    """Where they come from."""
    kv_tokens: int | None
    """None on a live server that did not report it."""
    admission: str
    scheduling: str
    """Whether the GPU waits for the scheduler: `sync` or `async`."""
    step_tokens: int | None
    max_num_seqs: int | None
    notes: tuple[str, ...] = ()
    """Origin, errors and caveats of the step times."""

    @property
    def on(self) -> str:
        return f"{self.model} on {self.machine}" if self.model else self.machine

    @property
    def limits(self) -> str:
        if self.step_tokens is None or self.max_num_seqs is None:
            return ""
        return f"{self.step_tokens:,} tokens and {self.max_num_seqs:,} turns a step"

    def __str__(self) -> str:
        memory = f"{self.kv_tokens:,} KV tokens" if self.kv_tokens else ""
        admission = f"{self.admission} admission" if self.admission else ""
        scheduling = f"{self.scheduling} scheduling" if self.scheduling else ""
        parts = (self.on, f"step times {self.step_times}", memory, admission, scheduling)
        return ", ".join(filter(None, parts))


def setups(sweeps: Mapping[str, SweepRecord]) -> dict[Setup, tuple[str, ...]]:
    """Return each setup with the names of its arms. In: `sweep.json` by name of the arm."""
    found: dict[Setup, tuple[str, ...]] = {}
    for arm, sweep in sweeps.items():
        setup = _setup(sweep)
        found[setup] = (*found.get(setup, ()), arm)
    return found


def as_json(found: Mapping[Setup, tuple[str, ...]]) -> list[dict[str, Any]]:
    return [{"arms": list(arms), **asdict(setup)} for setup, arms in found.items()]


def sentences(found: Mapping[Setup, tuple[str, ...]]) -> list[str]:
    """Return a line for all setups that differ only in limits, with the arms if there are more."""
    arms_of: dict[str, tuple[str, ...]] = {}
    for setup, arms in found.items():
        arms_of[str(setup)] = (*arms_of.get(str(setup), ()), *arms)
    if len(arms_of) == 1:
        return list(arms_of)
    return [f"{listed([f'“{arm}”' for arm in arms])}: {setup}" for setup, arms in arms_of.items()]


def notes(found: Mapping[Setup, tuple[str, ...]]) -> list[tuple[str, tuple[str, ...]]]:
    """Return each machine with the notes on its step times."""
    return list(dict.fromkeys((setup.on, setup.notes) for setup in found if setup.notes))


def _setup(sweep: SweepRecord) -> Setup:
    profile, limits = sweep.profile, sweep.limits
    gpus, hardware = sweep.gpus or 1, str(sweep.hardware or "unknown machine")
    return Setup(
        machine=hardware if gpus == 1 else f"{gpus} x {hardware}",
        model=str(sweep.model or ""),
        step_times=_step_times(sweep, profile),
        kv_tokens=_kv_tokens(profile, limits),
        admission=str(limits.admission or ""),
        scheduling=str(sweep.scheduling or ""),
        step_tokens=limits.step_tokens,
        max_num_seqs=limits.max_num_seqs,
        notes=tuple(sweep.profile_notes),
    )


def _kv_tokens(profile: ProfileRecord, limits: LimitsRecord) -> int | None:
    blocks, step, block = profile.kv_blocks, limits.step_tokens, profile.block_tokens
    if blocks is None or step is None or block is None or profile.max_model_len is None:
        return None
    groups, lengths = profile.kv_groups, profile.block_lengths
    memory = KvMemory(blocks, block, kv_groups=groups, block_lengths=lengths)
    return memory.kv_tokens(step, profile.max_model_len)


def _step_times(sweep: SweepRecord, profile: ProfileRecord) -> str:
    if sweep.virtual_time is None:
        return "of the live server"
    return STEP_TIMES.get(str(profile.provenance), "of unknown provenance")
