"""Computes times to tokens and hit ratios of a cell, over its turns without an error."""

from __future__ import annotations

import math

import numpy as np

from reports.metrics.metric import (
    NONE,
    SECONDS,
    SHARE,
    Facts,
    Group,
    Metric,
    Unit,
    Value,
    mean,
    percentiles,
)
from reports.metrics.waterfall import before_first_token_s
from reports.numbers import whole
from reports.run_folder.turns import HITS

SHOWN_PERCENTS = (50, 95, 99)


def _latency(facts: Facts) -> dict[str, Value]:
    """Return TTFT, and TPOT of answers with at least two tokens."""
    outputs = facts.good["output_tokens"]
    many = outputs > 1
    per_token_s = facts.good["decode_s"][many] / (outputs[many] - 1)
    found: dict[str, Value] = {}
    for name, times_s in (("ttft", before_first_token_s(facts.good)), ("tpot", per_token_s)):
        values = times_s[~np.isnan(times_s)]  # answers that were not streamed have neither
        found[f"{name}_mean_s"] = mean(values)
        for percent, value in zip(SHOWN_PERCENTS, percentiles(values, SHOWN_PERCENTS), strict=True):
            found[f"{name}_p{percent}_s"] = value
    return found


def _hits(facts: Facts) -> dict[str, Value]:
    good, cell = facts.good, facts.cell
    prompt = float(good["prompt_tokens"].sum()) or math.nan
    device, dram, ssd = (float(good[hit].sum()) / prompt for hit in HITS)
    shared = (cell.done.window or cell.config.workload).shared_prefix_tokens
    kept = float(good["kept_tokens"].sum())
    return {
        "hit_ratio": device + dram + ssd,
        "device_hit_ratio": device,
        "dram_hit_ratio": dram,
        "ssd_hit_ratio": ssd,
        "computed_ratio": 1.0 - (device + dram + ssd),
        "hit_bound_ratio": math.nan if shared is None else (kept + shared) / prompt,
    }


def _per_job(facts: Facts) -> dict[str, Value]:
    jobs = len(facts.kept["jct_s"]) or math.nan
    names = ("prompt_tokens", "kept_tokens", "output_tokens")
    return {f"{name}_per_job": float(facts.good[name].sum()) / jobs for name in names}


TOKENS = Unit("tokens", whole)
TOKENS_OF_JOBS = Group(
    _per_job,
    (
        Metric("prompt_tokens_per_job", TOKENS).means("Mean prompt tokens of all turns of a job."),
        Metric("kept_tokens_per_job", TOKENS).means(
            "Those that earlier turns of the same job contain."
        ),
        Metric("output_tokens_per_job", TOKENS).means("Mean generated tokens of a job."),
    ),
)
LATENCY = Group(
    _latency,
    (
        Metric("ttft_mean_s", SECONDS, "lower", "TTFT").means(
            "Mean time from sending a turn to its first output token.",
            "`first_token_at_s` − `sent_at_s`, of finished turns.",
        ),
        Metric("ttft_p50_s", SECONDS, "lower").means("Median TTFT."),
        Metric("ttft_p95_s", SECONDS, "lower", "TTFT P95").means(
            "95% of the turns have their first output token within this time."
        ),
        Metric("ttft_p99_s", SECONDS, "lower").means("P99 TTFT."),
        Metric("tpot_mean_s", Unit("s"), "lower", "TPOT, s").means(
            "Mean time between the output tokens of a turn.",
            "`decode_s` ÷ (`output_tokens` − 1), of finished turns with at least two tokens;"
            " without preemptions.",
        ),
        Metric("tpot_p50_s", SECONDS, "lower").means("Median TPOT."),
        Metric("tpot_p95_s", SECONDS, "lower").means("P95 TPOT."),
        Metric("tpot_p99_s", SECONDS, "lower").means("P99 TPOT."),
    ),
)
HITS_OF_CELL = Group(
    _hits,
    (
        Metric("hit_ratio", NONE, "higher").means("The sum of the next three."),
        Metric("device_hit_ratio", SHARE, "higher", "Device hits").means(
            "Share of prompt tokens whose KV was on the device.",
            "Σ hit tokens ÷ Σ `prompt_tokens` of finished turns, at first admission.",
        ),
        Metric("dram_hit_ratio", SHARE, "higher", "DRAM hits").means(
            "Share of prompt tokens whose KV was reloaded from DRAM."
        ),
        Metric("ssd_hit_ratio", SHARE, "higher", "SSD hits").means(
            "Share of prompt tokens whose KV was reloaded from SSD."
        ),
        Metric("computed_ratio", SHARE, title="Computed").means(
            "Share of prompt tokens that were computed.", "1 − hit ratio."
        ),
        Metric("hit_bound_ratio", SHARE, title="Hit bound").means(
            "Largest share of prompt tokens that a cache of any size could hit.",
            "H∞ = (Σ `kept_tokens` + shared prefixes) ÷ Σ `prompt_tokens` of finished turns."
            " Only whole blocks are hit, so a cache that never evicts is slightly below.",
        ),
    ),
)
