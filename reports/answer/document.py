"""Writes the answer for machines: `answer.json` (docs/reference/report.md).

In: the answer, the points and `sweep.json`. Out: a document of numbers, strings and null.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import orjson
from msgspec import to_builtins

from reports.answer.capacity_context import MachinePrice, price_of
from reports.answer.costs import JobCost
from reports.answer.fails_first import Bottleneck, FailsFirst, LimitedBy
from reports.answer.verdict import Answer
from reports.capacity.estimate import Capacity
from reports.loads import AGENTS, RATES
from reports.metrics.background import BACKGROUND
from reports.metrics.fairness import FAIRNESS
from reports.metrics.goodput import GOODPUT
from reports.statistics.bootstrap import Estimate
from reports.statistics.capacities import VariantCapacity
from reports.statistics.points import Point
from servers.basics.json_object import JsonObject
from servers.records.sweep import SweepRecord

ANSWER = "answer.json"
UNITS = {RATES: "jobs_per_s", AGENTS: "agents"}
"""Keys of capacities."""
RESOURCES = {
    RATES: ("gpus_per_job_per_s", "usd_per_1000_jobs"),
    AGENTS: ("gpus_per_agent", "usd_per_agent_month"),
}
FORMAT = "turnstile-answer-1"
PROVENANCE = (
    *("engine", "model", "hardware", "gpus", "arrivals", "background", "seeds"),
    *("turnstile_version", "code_sha256", "made_by"),
)
"""Fields of `sweep.json` that the document repeats."""


def document(answer: Answer, points: Sequence[Point], sweep: SweepRecord) -> bytes:
    price = price_of(sweep)
    value = {
        "format": FORMAT,
        "answer": answer.headline,
        "findings": answer.findings,
        "caveats": answer.caveats,
        "slo": sweep.search and sweep.search.slo,
        "baseline": sweep.baseline,
        "winners": answer.winners,
        "references": [v.name for v in sweep.variants if v.reference],
        "capacities": {each.variant: _capacity(each, price, answer) for each in answer.capacities},
        "price": sweep.price and to_builtins(sweep.price),
        "api_price": sweep.api_price and to_builtins(sweep.api_price),
        "costs": {each.variant: _cost(each) for each in answer.costs},
        "ratios": {
            each.variant: _estimate(each.ratio)
            for each in answer.capacities
            if each.ratio is not None
        },
        "points": [_point(point) for point in points],
        "provenance": {
            "sentence": answer.provenance,
            "workload": sweep.workload.name,
            **{name: value for name, value in to_builtins(sweep).items() if name in PROVENANCE},
        },
    }
    return orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def _capacity(capacity: VariantCapacity, price: MachinePrice, answer: Answer) -> JsonObject:
    value = capacity.load
    unit = UNITS[capacity.ladder]
    numbers: dict[str, float | None] = {unit: None, "low": None, "high": None}
    gpus = usd = None
    if value is not None:
        numbers = {unit: value.value, **_limits(value)}
        if not capacity.reference:
            gpus, usd = price.gpus / value.value, price.usd(value.value, capacity.ladder)
    names = RESOURCES[capacity.ladder]
    return {
        "kind": capacity.kind,
        **numbers,
        **dict(zip(names, (gpus, None if usd is None else _number(usd)), strict=True)),
        "other_units": (other := answer.other_units.get(capacity.variant)) and other._asdict(),
        **_limited_by(answer.limited_by.get(capacity.variant)),
        "fails_first": _fails_first(capacity, answer.fails_first.get(capacity.variant)),
        "by_seed": {
            str(seed): _of_seed(own, unit) for seed, own in sorted(capacity.by_seed.items())
        },
    }


def _limited_by(found: LimitedBy | None) -> JsonObject:
    known = None if found is None or found.bottleneck is Bottleneck.UNCLEAR else found.bottleneck
    return {
        "limited_by": known,
        "share_of_unlimited_kv": None if found is None else _estimate(found.share),
    }


def _fails_first(capacity: VariantCapacity, found: FailsFirst | None) -> JsonObject | None:
    if found is None:
        return None
    return {
        "limit": found.limit or None,
        "seeds": found.seeds.seeds,
        UNITS[capacity.ladder]: found.loads,
        "shares": found.shares,
        "sentence": found.sentence(capacity.variant, capacity.ladder),
    }


def _cost(cost: JobCost) -> JsonObject:
    of_api = {"api_usd_per_job": cost.api_usd_per_job, "cheaper_than_api_from": cost.even_load}
    return {
        "usd_per_job": cost.usd_per_job,
        "usd_per_million_tokens": {k: _number(usd) for k, usd in cost.usd_per_mtok.items()},
        **({} if cost.api_usd_per_job is None else of_api),
    }


def _of_seed(capacity: Capacity, unit: str) -> JsonObject:
    return {
        "kind": capacity.kind,
        unit: _number(capacity.load),
        "sustained": capacity.sustained,
        "not_sustained": capacity.not_sustained,
        **({"limit": capacity.limit} if capacity.limit else {}),
    }


def _point(point: Point) -> JsonObject:
    ratio = None if point.against is None else _estimate(point.against.mean)
    return {
        "variant": point.variant,
        UNITS[point.ladder]: point.amount,
        "load": point.load,
        "stable": not point.saturated,
        "unstable_seeds": point.without_steady.seeds if point.without_steady else 0,
        "mean_jct_s": _estimate(point.jct_mean_s),
        **{name: _number(value) for name, value in point.jct_s.items()},
        "speed_up": ratio,
        "jct_lower_bound_s": _number(point.lower_bound_s),
        "rate_bound_jobs_per_s": _number(point.rate_bound_jobs_per_s),
        **{
            metric.column: _number(point.pooled.get(metric.column, math.nan))
            for metric in (
                *FAIRNESS.metrics,
                *(metric for metric in GOODPUT.metrics if metric.column in point.pooled),
                *(BACKGROUND.metrics if point.has_background else ()),
            )
            if metric.pool
        },
    }


def _estimate(estimate: Estimate) -> dict[str, float | None]:
    return {"value": _number(estimate.value), **_limits(estimate)}


def _limits(estimate: Estimate) -> dict[str, float | None]:
    return {"low": _number(estimate.low), "high": _number(estimate.high)}


def _number(value: float) -> float | None:
    """Return null for NaN: one seed has no interval."""
    return None if math.isnan(value) else value
