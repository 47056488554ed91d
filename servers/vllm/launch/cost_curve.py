"""Where a `CostCurve` comes from: a machine's profile, a file, or constants for the tiny model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from msgspec.json import decode

from servers.basics.errors import InvalidInput
from servers.basics.text import MALFORMED, line_problem
from servers.policies.base import Costs
from servers.profiles import costs
from servers.profiles import model as model_named
from servers.profiles.cpu_time import StepTimes
from servers.profiles.files import profile_for
from servers.profiles.fit import least_squares
from servers.profiles.kv_cache_dtype import KvCacheDtype
from servers.profiles.layout import Layout
from servers.profiles.roofline import stage_times
from servers.vllm.plugin.cost_curve import CostCurve, DecodeStep

FIT_FROM_TOKENS = 256
FIT_TO_TURNS = 256


TINY_ON_CPU = CostCurve(
    base_s=0.01,
    linear_s=1.2e-4,
    quadratic_s=1.5e-8,
    reload_s_per_token=1.5e-5,
    decode_step=DecodeStep(base_s=5.1e-3, turn_s=2.0e-4, context_token_s=2.2e-7),
)
"""Measured for the tiny model on two shared cores with vLLM 0.32: prompts of 1000, 4000, 8000 and
16000 tokens took 0.14, 0.71, 1.95 and 6.2 s; loading 16,383 tokens from LMCache's DRAM took 0.24 s.
Decode steps are those of the profile in docs/data/fidelity-tiny-cpu.json. `bench profile`
measures the user's machine."""


def read_costs(path: Path) -> CostCurve:
    try:
        text = path.read_bytes()
    except OSError as error:
        raise InvalidInput(f"--costs {path}: {(error.strerror or str(error)).lower()}") from None
    try:
        return decode(text, type=CostCurve)
    except MALFORMED as error:
        raise InvalidInput(f"{path}: {line_problem(text, error, CostCurve)}") from None


def costs_on(
    model: str,
    hardware: str,
    *,
    gpus: int,
    step_tokens: int,
    step_times: StepTimes,
    kv_cache_dtype: KvCacheDtype = KvCacheDtype.AUTO,
    layout: Layout = Layout.TP,
) -> tuple[CostCurve, str]:
    """Return the curve of a model on a machine, and the provenance of its profile."""
    profile = profile_for(
        hardware,
        model,
        gpus=gpus,
        step_times=step_times,
        kv_cache_dtype=kv_cache_dtype,
        layout=layout,
    )
    stages = None
    if layout == Layout.PP:
        stages = stage_times(hardware, model, gpus)
    exact = costs(profile, step_tokens=step_tokens, offload=True, stages=stages)
    return fit(exact, model_named(model).max_model_len), profile.provenance


def fit(exact: Costs, longest_tokens: int) -> CostCurve:
    """Fit a curve by least squares of the relative error over geometrically spaced contexts."""
    tokens = np.unique(np.geomspace(FIT_FROM_TOKENS, longest_tokens, 60).astype(int))
    seconds = np.array([exact.prefill_s(int(n)) for n in tokens])
    terms = np.stack([np.ones(len(tokens)), tokens, tokens.astype(float) ** 2], axis=1)
    weights, *_ = np.linalg.lstsq(terms / seconds[:, None], np.ones(len(tokens)), rcond=None)
    base_s, linear_s, quadratic_s = (max(float(weight), 0.0) for weight in weights)
    return CostCurve(
        base_s=base_s,
        linear_s=linear_s,
        quadratic_s=quadratic_s,
        reload_s_per_token=exact.reload_s and exact.reload_s(longest_tokens) / longest_tokens,
        step_tokens=exact.step_tokens,
        decode_step=fit_decode_step(exact, longest_tokens),
    )


def fit_decode_step(exact: Costs, longest_tokens: int) -> DecodeStep | None:
    """Fit the decode steps of geometrically spaced batches that fit in the KV memory, also by least
    squares of the relative error. Return None if `exact` does not know its decode steps."""
    if exact.decode_step_s is None:
        return None
    batches = [
        (int(turns), int(turns) * int(context))
        for turns in np.unique(np.geomspace(1, FIT_TO_TURNS, 17).astype(int))
        for context in np.geomspace(FIT_FROM_TOKENS, longest_tokens, 17)
        if int(turns) * int(context) <= exact.kv_tokens
    ]
    seconds = np.array([exact.decode_step_s(*batch) for batch in batches])
    terms = np.array([(1, turns, context) for turns, context in batches], float)
    _, (base_s, turn_s, context_token_s) = least_squares(terms, seconds)
    return DecodeStep(base_s=base_s, turn_s=turn_s, context_token_s=context_token_s)
