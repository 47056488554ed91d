"""Profiles measured on a live engine: the format of the files that `bench profile` writes.

A file (`turnstile-profile-1`) has the measured times, the machine, and the fitted profile. Its path
is accepted in place of a machine's name (`--hardware profile.json`). Times are seconds, lengths are
tokens, sizes are bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Annotated, ClassVar, Literal

from pydantic import Field, field_validator

from servers.basics.errors import InvalidInput
from servers.profiles.cpu_time import CPU_TIME, CpuTime, Scheduling
from servers.profiles.fit import Steps, StrictModel, decode_step, fit_quadratic, fit_steps, prompt
from servers.profiles.kv_cache_dtype import KvCacheDtype
from servers.profiles.kv_memory import FULL_ATTENTION, STATE, STATE_INSIDE, Groups, is_state
from servers.profiles.machines.gpus import PCIE4_X16
from servers.profiles.profile import Profile, profile_of
from servers.profiles.roofline import LINK_EFFICIENCY, SSD_BYTES_PER_S

MIN_MEASUREMENTS = 3
"""Minimum number of prompt lengths, and of decode batches, for a fit."""
LARGE_ERROR = 0.25
"""A fit with a larger relative error gets a note."""
LARGE_SPREAD = 0.3
"""A profile with a larger `Measured.spread` gets a note. On an idle machine it is about 0.15."""


Times = tuple[Annotated[float, Field(gt=0)], ...]


class PrefillTimes(StrictModel):
    """Times from sending a prompt to its first token, with no other request in the engine."""

    tokens: int = Field(ge=1)
    """Number of computed prompt tokens, without the cached ones."""
    cached_tokens: int = Field(ge=0, default=0)
    seconds: Times = Field(min_length=1)


class DecodeTimes(StrictModel):
    """Times of steps in which only decodes ran."""

    batch: int = Field(ge=1)
    context: float = Field(gt=0)
    """Context tokens of each turn, halfway through the measurement."""
    seconds: Times = Field(min_length=1)
    """Step times, each the mean of a few consecutive steps."""


class ReloadTimes(StrictModel):
    """Times from sending a prompt whose KV is in the offload tier to its first token."""

    tokens: int = Field(ge=1)
    from_tier_tokens: int = Field(ge=1)
    seconds: Times = Field(min_length=1)


class Curve(StrictModel):
    """prefill_s(n) = base_s + linear_s · n + quadratic_s · n²"""

    base_s: float = Field(ge=0)
    linear_s: float = Field(ge=0)
    quadratic_s: float = Field(ge=0)

    def seconds(self, tokens: int) -> float:
        return self.base_s + self.linear_s * tokens + self.quadratic_s * tokens**2


class Errors(StrictModel):
    """Absolute values of the relative errors of a fit."""

    median: float
    worst: float
    worst_at: str


class Measured(StrictModel):
    provenance: ClassVar[Literal["measured", "operator-table"]] = "measured"
    format: Literal["turnstile-profile-1", "turnstile-tables-1"] = "turnstile-profile-1"
    date: str
    made_by: str
    machine: str
    engine: str
    """Name and version, such as vLLM 0.32.0."""
    flags: tuple[str, ...]
    model: str
    gpus: int | None
    kv_blocks: int = Field(ge=1)
    block_tokens: int = Field(ge=1)
    max_model_len: int = Field(ge=1)
    kv_bytes_per_token: int = Field(ge=1)
    kv_cache_dtype: KvCacheDtype = KvCacheDtype.AUTO
    kv_groups: tuple[Annotated[int, Field(ge=STATE_INSIDE)] | None, ...] = FULL_ATTENTION
    step_tokens: int = Field(ge=1)
    prefill: tuple[PrefillTimes, ...] = Field(min_length=1)
    decode: tuple[DecodeTimes, ...] = Field(min_length=1)
    reload: ReloadTimes | None
    left_out: tuple[str, ...]
    """Measurements that were skipped for lack of time or memory."""
    curve: Curve
    curve_errors: Errors
    steps: Steps
    prefill_errors: Errors
    decode_errors: Errors
    schedules_ahead: bool = False
    """Whether the measured engine uses asynchronous scheduling, as vLLM does on a GPU."""
    cpu: CpuTime | None = None
    """CPU time between steps, if measured: `step_ps` is added to `steps`, and the other fields are
    the costs of a tier. None: see `cpu_time`."""

    @field_validator("kv_groups")
    @classmethod
    def _supported(cls, groups: Groups) -> Groups:
        others = [group for group in groups if group is None or group > STATE]
        if not groups or (any(map(is_state, groups)) and others != [None]):
            raise ValueError("must have groups, and one of full attention alone beside states")
        return groups

    def cpu_time(self, scheduling: Scheduling) -> CpuTime:
        """Return the CPU time to add to the profile. Measured steps, and steps of operator tables
        with a `base_ps`, already include the CPU time of a step, measured prompts that of the API
        server, and measured reloads that of a load."""
        if self.cpu is not None:
            return self.cpu
        cpu, is_measured = CPU_TIME[scheduling], self.provenance == "measured"
        if is_measured:
            cpu = replace(cpu, request_ps=0, request_token_ps=0)
        if is_measured or self.steps.base_ps > 0:
            cpu = replace(cpu, step_ps=0, sequence_ps=0)
        return cpu if self.reload is None else replace(cpu, load_ps=0, load_token_ps=0)

    @property
    def reload_s_per_token(self) -> float | None:
        """Seconds to reload one token, without the request's round trip; None if not measured."""
        if self.reload is None:
            return None
        seconds = median(self.reload.seconds) - self.steps.request_ps / 1e12
        return max(seconds, 0.0) / self.reload.from_tier_tokens

    def profile(self) -> Profile:
        """Return the fitted profile. Unmeasured bandwidths are assumed to be one PCIe 4 x16
        link's and one NVMe drive's."""
        reload_s = self.reload_s_per_token
        pcie_bytes_per_s = PCIE4_X16 * LINK_EFFICIENCY
        return profile_of(
            {
                "hardware": self.machine,
                "model": self.model,
                "provenance": self.provenance,
                "kv_blocks": self.kv_blocks,
                "block_tokens": self.block_tokens,
                "max_model_len": self.max_model_len,
                "kv_bytes_per_token": self.kv_bytes_per_token,
                "kv_groups": self.kv_groups,
                "dram_bytes_per_s": self.kv_bytes_per_token / reload_s
                if reload_s
                else pcie_bytes_per_s,
                "ssd_bytes_per_s": SSD_BYTES_PER_S * LINK_EFFICIENCY,
                **self.steps.model_dump(),
            }
        )

    @property
    def spread(self) -> float:
        """Median over all measurements of (maximum − minimum) / median of the repeated times."""
        times = [*(p.seconds for p in self.prefill), *(d.seconds for d in self.decode)]
        return median([(max(seconds) - min(seconds)) / median(seconds) for seconds in times])

    def notes(self) -> tuple[str, ...]:
        """Return the caveats for readers of results, in one sentence each."""
        notes = [f"step times were measured: {self.engine}, {self.machine}, {self.date}"]
        notes += large_errors(self.errors)
        if self.spread > LARGE_SPREAD:
            notes.append(
                f"the median difference of repeated times is {self.spread:.0%}: the machine may"
                " have been busy; measure again on an idle one"
            )
        if self.reload is None:
            notes.append("reloads were not measured: one PCIe 4 x16 link is assumed")
        return tuple(notes)

    def all_notes(self) -> tuple[str, ...]:
        """Return the caveats and the errors of the fit, in one sentence each."""
        fits = (
            f"the step formula's median error for {what} is {errors.median:.1%}, and the largest"
            f" is {errors.worst:.1%} ({errors.worst_at})"
            for what, errors in self.errors.items()
        )
        large = large_errors(self.errors)
        return (*(note for note in self.notes() if note not in large), *fits)

    @property
    def errors(self) -> dict[str, Errors]:
        """Errors of the step formula, by kind of step."""
        return {"prefills": self.prefill_errors, "decodes": self.decode_errors}


def large_errors(by_kind: Mapping[str, Errors]) -> list[str]:
    return [
        f"the step formula's error for {what} is up to {errors.worst:.0%} "
        f"({errors.worst_at}), with a median of {errors.median:.0%}"
        for what, errors in by_kind.items()
        if errors.worst > LARGE_ERROR
    ]


def fitted(
    prefill: tuple[PrefillTimes, ...], decode: tuple[DecodeTimes, ...], step_tokens: int
) -> dict[str, Curve | Steps | Errors]:
    """Return the fields of `Measured` that are computed from the times."""
    if len(prefill) < MIN_MEASUREMENTS or len(decode) < MIN_MEASUREMENTS:
        raise InvalidInput(
            f"{len(prefill)} prompt lengths and {len(decode)} decode batches were measured, but a "
            "fit needs 3 of each; give a larger --within-s, --kv-blocks or --max-model-len"
        )
    prompts = [prompt(p.tokens, p.cached_tokens, step_tokens, median(p.seconds)) for p in prefill]
    steps = [decode_step(d.batch, d.context, median(d.seconds)) for d in decode]
    found = fit_steps([*prompts, *steps])
    prefill_names = [prompt_name(p.tokens, p.cached_tokens) for p in prefill]
    decode_names = [decode_name(d.batch, d.context) for d in decode]
    return {
        **fitted_curve(prefill),
        "steps": found,
        "prefill_errors": errors_of(
            [p.seconds for p in prompts], map(found.seconds, prompts), prefill_names
        ),
        "decode_errors": errors_of(
            [s.seconds for s in steps], map(found.seconds, steps), decode_names
        ),
    }


def fitted_curve(prefill: Sequence[PrefillTimes]) -> dict[str, Curve | Errors]:
    """Return the curve of the prefills without cached tokens, and its errors."""
    cold = [(p.tokens, median(p.seconds)) for p in prefill if not p.cached_tokens]
    lengths, cold_s = [n for n, _ in cold], [s for _, s in cold]
    base_s, linear_s, quadratic_s = fit_quadratic(lengths, cold_s)
    curve = Curve(base_s=base_s, linear_s=linear_s, quadratic_s=quadratic_s)
    names = [prompt_name(n, 0) for n in lengths]
    return {"curve": curve, "curve_errors": errors_of(cold_s, map(curve.seconds, lengths), names)}


def decode_name(batch: int, context: float) -> str:
    return f"batch {batch} at {context:.0f} tokens"


def prompt_name(tokens: int, cached_tokens: int) -> str:
    return f"{tokens} tokens" + (f" after {cached_tokens} cached" if cached_tokens else "")


def errors_of(
    measured: Sequence[float], predicted: Iterable[float], names: Sequence[str]
) -> Errors:
    errors = [abs(p / m - 1) for p, m in zip(predicted, measured, strict=True)]
    worst = max(errors)
    return Errors(median=median(errors), worst=worst, worst_at=names[errors.index(worst)])
