"""CPU time of vLLM between the steps of the GPU and before them, what an offload tier adds to it,
and the sources of step times.

docs/reference/profiles.md has the sources and the measurements. Times are whole picoseconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TypeVar

from servers.profiles.profile import Profile


class StepTimes(StrEnum):
    TABLES = "tables"
    """Operator tables measured on the GPU, and the analytic formula where none cover it."""
    ANALYTIC = "analytic"
    """Published peaks × assumed efficiencies."""


class Scheduling(StrEnum):
    ASYNC = "async"
    """The CPU schedules the next step while the GPU computes: vLLM's default since 0.14."""
    SYNC = "sync"
    """The GPU waits for the scheduler between steps, as in older versions."""

    @property
    def ahead(self) -> bool:
        return self is Scheduling.ASYNC


@dataclass(frozen=True, slots=True)
class CpuTime:
    """Time that the engine's CPU thread adds to the steps of the GPU, and that of the API server
    before them."""

    step_ps: int
    """CPU time of each step without an offload tier."""
    offload_step_ps: int
    """Additional CPU time of each step of an engine with an offload tier."""
    load_ps: int
    """CPU time of the admission of a turn that loads KV from a tier."""
    load_token_ps: int
    """The same, for each loaded token."""
    sequence_ps: int = 0
    """CPU time of each turn in a step for which the GPU waits: to prepare its inputs, and to
    process and send its token. Under asynchronous scheduling most of it overlaps with the GPU."""
    request_ps: int = 0
    """CPU time of the API server for a request with an empty prompt."""
    request_token_ps: int = 0
    """CPU time of the API server for each token of a prompt."""


REQUEST_PS = 1_900_000_000
REQUEST_TOKEN_PS = 1_500_000
"""The median of published times of tokenizers, 1.15 µs per token, times the ratio of all work to
that of the tokenizer that was measured on vLLM for CPUs."""

CPU_TIME: Mapping[Scheduling, CpuTime] = {
    Scheduling.ASYNC: CpuTime(
        step_ps=200_000_000,
        offload_step_ps=100_000_000,
        load_ps=1_350_000_000,
        load_token_ps=270_000,
        sequence_ps=14_000_000,
        request_ps=REQUEST_PS,
        request_token_ps=REQUEST_TOKEN_PS,
    ),
    Scheduling.SYNC: CpuTime(
        step_ps=950_000_000,
        offload_step_ps=1_380_000_000,
        load_ps=0,
        load_token_ps=0,
        sequence_ps=50_000_000,
        request_ps=REQUEST_PS,
        request_token_ps=REQUEST_TOKEN_PS,
    ),
}
"""`ASYNC`: published times per token minus operator tables, and measured costs of the tier. `SYNC`:
Continuum v3, Table 4, 0.95 ms per step, and 2.33 ms with DRAM offload, which includes loads.
`sequence_ps` of both is calibrated on half of the measurements of `tools.silicon`."""

P = TypeVar("P", bound=Profile)


def with_cpu_time(profile: P, cpu: CpuTime, *, ahead: bool, offload: bool) -> P:
    """Add the CPU time to the step times of a profile that lacks it. `ahead` is
    `Profile.schedules_ahead`."""
    profile = replace(
        profile,
        base_ps=profile.base_ps + cpu.step_ps,
        request_ps=profile.request_ps + cpu.request_ps,
        request_token_ps=cpu.request_token_ps,
        sequence_ps=profile.sequence_ps + cpu.sequence_ps,
        schedules_ahead=ahead,
    )
    if not offload:
        return profile
    return replace(
        profile,
        base_ps=profile.base_ps + cpu.offload_step_ps,
        load_ps=cpu.load_ps,
        load_token_ps=cpu.load_token_ps,
    )
