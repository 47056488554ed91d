"""The question of a sweep: what was asked, checked and resolved, before anything runs.

In: the options as given. Out: `Question`, which holds all that decides a sweep's bytes; its cells;
and `sweep.json`. Whatever is wrong raises a ValueError of one line here, not in a cell.
"""

from __future__ import annotations

import hashlib
import inspect
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

from harness.arrivals import Arrivals, parse_arrivals
from harness.rates import parse_rates, parse_seeds
from harness.workload import Workload, load_workload
from servers.profiles import Profile, analytic_profile, hardware, model
from servers.sim import Limits, Offload
from servers.variants import Variant, variants

DEFAULT_JPS = "0.05..0.9"
DEFAULT_BASELINE = "fcfs"
MOST_GB = 1_000_000
CODE = ("harness", "servers", "traces")
"""Packages that decide the bytes of a cell; reports only read them."""


@dataclass(frozen=True, slots=True)
class Asked:
    """The options of `bench sweep`, as given; None where a default depends on others."""

    jps: str | None = None
    policies: str = "all"
    traces: tuple[str, ...] = ()
    engine: str = "sim"
    hardware: str = "b200"
    model: str = "llama-3.1-8b"
    gpus: int | None = None
    programs: int | None = None
    seeds: str = "1"
    arrivals: str = "poisson"
    offload_gb: float | None = None
    ssd_gb: float = 0.0
    max_num_seqs: int = 256
    step_tokens: int = 2048
    max_model_len: int | None = None
    kv_blocks: int | None = None
    baseline: str | None = None
    refuse_overlong: bool = False


@dataclass(frozen=True, slots=True)
class Cell:
    """One run: a variant at a rate, with one draw of the arrivals."""

    variant: str
    jps: float | None
    """Jobs per second; None for a closed loop and recorded arrivals, which have no rate."""
    seed: int
    arrivals: str

    @property
    def name(self) -> str:
        load = _slug(self.arrivals) if self.jps is None else f"jps{self.jps:g}"
        return f"{_slug(self.variant)}_{load}_seed{self.seed}"


@dataclass(frozen=True, slots=True)
class Question:
    variants: tuple[Variant, ...]
    rates: tuple[float | None, ...]
    seeds: tuple[int, ...]
    arrivals: Arrivals
    arrivals_text: str
    profile: Profile
    profile_with_offload: Profile
    limits: Limits
    offload: Offload
    workload: Workload
    baseline: str
    code_sha256: str

    def cells(self) -> tuple[Cell, ...]:
        """High rates first: they take longest, and a long cell should not come last."""
        rates = sorted(self.rates, key=lambda jps: -(jps or 0.0))
        return tuple(
            Cell(variant.name, jps, seed, self.arrivals_text)
            for jps in rates
            for seed in self.seeds
            for variant in self.variants
        )

    def variant(self, name: str) -> Variant:
        return next(variant for variant in self.variants if variant.name == name)

    def profile_of(self, variant: Variant) -> Profile:
        return self.profile_with_offload if variant.offload else self.profile

    def common_json(self) -> dict[str, Any]:
        """What `sweep.json` and each `cell.json` share."""
        return {
            "engine": "sim",
            "arrivals": self.arrivals_text,
            "hardware": self.profile.hardware,
            "model": self.profile.model,
            "limits": asdict(self.limits),
            "workload": self.workload.as_json(),
            "baseline": self.baseline,
            "turnstile_version": metadata.version("turnstile-bench"),
            "code_sha256": self.code_sha256,
        }

    def variant_json(self, variant: Variant) -> dict[str, Any]:
        return {
            "policy": f"{variant.policy.__module__}:{variant.policy.__qualname__}",
            "policy_source": variant.source,
            "bound": variant.bound,
            "offload": asdict(self.offload) if variant.offload else None,
        }

    def as_json(self) -> dict[str, Any]:
        return {
            "format": "turnstile-sweep-1",
            "variants": [
                {"name": v.name, "description": v.description, **self.variant_json(v)}
                for v in self.variants
            ],
            "jps": list(self.rates),
            "seeds": list(self.seeds),
            "profile": asdict(self.profile),
            "profile_with_offload": asdict(self.profile_with_offload),
            **self.common_json(),
            "rejected_files": [asdict(note) for note in self.workload.rejected_files],
            "repairs": [asdict(note) for note in self.workload.repairs],
        }

    def cell_json(self, cell: Cell) -> dict[str, Any]:
        variant = self.variant(cell.variant)
        return {
            "format": "turnstile-cell-1",
            "variant": variant.name,
            **self.variant_json(variant),
            "jps": cell.jps,
            "seed": cell.seed,
            "profile": asdict(self.profile_of(variant)),
            **self.common_json(),
        }


def resolve(asked: Asked) -> Question:
    if asked.engine != "sim":
        raise ValueError(f"--engine {asked.engine}: unknown; the engine there is, is sim")
    arrivals = parse_arrivals(asked.arrivals)
    chosen = tuple(variants(asked.policies))
    profile_for = partial(
        analytic_profile,
        asked.hardware,
        asked.model,
        gpus=asked.gpus,
        max_model_len=asked.max_model_len,
        kv_blocks=asked.kv_blocks,
    )
    profile = profile_for()
    offload = Offload(_offload_gb(asked), asked.ssd_gb)
    for option, gb in (("offload", offload.dram_gb), ("ssd", offload.ssd_gb)):
        if not 0 <= gb <= MOST_GB:
            raise ValueError(f"--{option}-gb {gb:g}: 0 to {MOST_GB:,} GB")
    if any(v.offload for v in chosen) and offload.dram_gb <= 0:
        names = ", ".join(v.name for v in chosen if v.offload)
        raise ValueError(f"--offload-gb {offload.dram_gb:g}: too little for {names}; give some")
    workload = load_workload(
        asked.traces,
        asked.programs,
        profile.max_model_len,
        f"the {profile.max_model_len} that {profile.model} on {profile.hardware} can hold here",
        refuse=asked.refuse_overlong,
    )
    rates, seeds = _rates(asked.jps, arrivals, asked.arrivals), tuple(parse_seeds(asked.seeds))
    arrivals.draw(workload.programs, rates[0], seeds[0])  # recorded ones may be missing
    return Question(
        variants=chosen,
        rates=rates,
        seeds=seeds,
        arrivals=arrivals,
        arrivals_text=asked.arrivals,
        profile=profile,
        profile_with_offload=profile_for(offload=True),
        limits=Limits(asked.max_num_seqs, asked.step_tokens),
        offload=offload,
        workload=workload,
        baseline=_baseline(asked.baseline, [variant.name for variant in chosen]),
        code_sha256=code_sha256(chosen),
    )


def _offload_gb(asked: Asked) -> float:
    if asked.offload_gb is not None:
        return asked.offload_gb
    return hardware(asked.hardware).offload_gb * (asked.gpus or model(asked.model).gpus)


def _rates(jps: str | None, arrivals: Arrivals, text: str) -> tuple[float | None, ...]:
    if arrivals.takes_rate:
        return tuple(parse_rates(DEFAULT_JPS if jps is None else jps))
    if jps is not None:
        raise ValueError(f"--jps {jps}: --arrivals {text} sets the load itself; leave --jps away")
    return (None,)


def _baseline(asked: str | None, names: Sequence[str]) -> str:
    if asked is None:
        return DEFAULT_BASELINE if DEFAULT_BASELINE in names else names[0]
    if asked not in names:
        close = get_close_matches(asked, names, n=1)
        hint = f"did you mean {close[0]}?" if close else "add it to --policies"
        raise ValueError(f"--baseline {asked}: not among the policies of this sweep; {hint}")
    return asked


def code_sha256(chosen: Sequence[Variant]) -> str:
    """Of our sources and of policies from elsewhere: cells of different code must not meet in one
    folder."""
    root = Path(__file__).parent.parent
    ours = {file for package in CODE for file in (root / package).rglob("*.py")}
    theirs = {Path(inspect.getfile(variant.policy)) for variant in chosen} - ours
    digest = hashlib.sha256()
    for path in [*sorted(ours), *sorted(theirs)]:
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]


def _slug(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9.+-]+", "-", text).strip("-.")
