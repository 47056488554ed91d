"""Compares two servers by their pages of Prometheus metrics, such as two replicas of an A/B test.

In: pages of each server in order of time, as text. Out: one row per metric with the mean of each
server and their ratio.

The metrics are counters; two pages give their increase in the period between them. With at
least `MIN_PERIODS` periods a ratio has Student's interval over the periods, which are paired: both
servers serve in the same ones. Requests within a period depend on each other, and need no
assumption. A single page of each server is one period from its start, without an interval.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from prometheus_client.parser import text_string_to_metric_families

from reports.statistics.over_seeds import geometric_mean
from servers.basics.errors import InvalidInput

MIN_PERIODS = 5
"""With fewer, an interval is too wide to say anything."""
Counters = dict[str, float]


@dataclass(frozen=True, slots=True)
class ServerMetric:
    """A mean: the increase of one counter over another's."""

    title: str
    above: str
    below: str
    decimals: int = 3


def _seconds(title: str, histogram: str) -> ServerMetric:
    return ServerMetric(f"{title}, s", f"{histogram}_sum", f"{histogram}_count")


REQUESTS = "vllm:e2e_request_latency_seconds_count"
METRICS = (
    _seconds("program", "turnstile:program_seconds"),
    _seconds("request", "vllm:e2e_request_latency_seconds"),
    _seconds("TTFT", "vllm:time_to_first_token_seconds"),
    _seconds("queueing", "vllm:request_queue_time_seconds"),
    _seconds("TPOT", "vllm:request_time_per_output_token_seconds"),
    ServerMetric(
        "prefix-cache hits", "vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total"
    ),
    ServerMetric("prompt tokens", "vllm:prompt_tokens_total", REQUESTS, decimals=1),
    ServerMetric("output tokens", "vllm:generation_tokens_total", REQUESTS, decimals=1),
    ServerMetric("preemptions", "vllm:num_preemptions_total", REQUESTS),
)
"""The tokens, and the numbers of requests, say whether both servers had the same load."""
COUNTED = (("programs", "turnstile:program_seconds_count"), ("requests", REQUESTS))
NAMES = tuple({name for metric in METRICS for name in (metric.above, metric.below)})
HEADS = ("mean", "BASE", "NEW", "NEW ÷ BASE", "95% CI")


def counters(page: str, source: str) -> Counters:
    """Return the counters of a page, summed over its engines. Raises InvalidInput without any."""
    lines = "".join(f"{line}\n" for line in page.splitlines() if line.startswith(NAMES))
    found: Counters = {}
    try:
        for family in text_string_to_metric_families(lines):
            for sample in family.samples:
                if sample.name in NAMES:
                    found[sample.name] = found.get(sample.name, 0.0) + sample.value
    except ValueError as error:
        raise InvalidInput(f"{source}: not a page of Prometheus metrics ({error})") from None
    if REQUESTS not in found:
        raise InvalidInput(
            f"{source}: no {REQUESTS}; give the page /metrics of a vLLM server that serves requests"
        )
    return found


def increases(pages: Sequence[Counters]) -> list[Counters | None]:
    """Return the increases in each period; None where the server was restarted, so that a counter
    fell. A single page has one period, from the start of its server."""
    if len(pages) == 1:
        return list(pages)
    periods: list[Counters | None] = []
    for before, after in pairwise(pages):
        grown = {name: value - before.get(name, 0.0) for name, value in after.items()}
        periods.append(None if min(grown.values()) < 0 or before.keys() - after.keys() else grown)
    return periods


@dataclass(frozen=True, slots=True)
class ServerComparison:
    rows: list[tuple[str, ...]]
    periods: int
    """Those in which no server was restarted."""
    restarts: int


def compare_servers(base: Sequence[Counters], new: Sequence[Counters]) -> ServerComparison:
    if len(base) != len(new):
        raise InvalidInput(
            f"BASE has {len(base)} pages and NEW has {len(new)}; save the pages of both servers at "
            "the same times"
        )
    both = list(zip(increases(base), increases(new), strict=True))
    pairs = [(a, b) for a, b in both if a is not None and b is not None]
    if not pairs:
        raise InvalidInput("a server was restarted in each period; save more pages")
    rows: list[tuple[str, ...]] = []
    for title, name in COUNTED:
        counts = [sum(period.get(name, 0.0) for period in side) for side in _sides(pairs)]
        if any(counts):
            rows.append((title, *(f"{count:,.0f}" for count in counts)))
    rows += [row for metric in METRICS if (row := _row(metric, pairs)) is not None]
    return ServerComparison(rows, len(pairs), len(both) - len(pairs))


Pairs = Sequence[tuple[Counters, Counters]]


def _sides(pairs: Pairs) -> tuple[list[Counters], list[Counters]]:
    return [base for base, _ in pairs], [new for _, new in pairs]


def _row(metric: ServerMetric, pairs: Pairs) -> tuple[str, ...] | None:
    """Return None if a server does not have the metric."""
    means = [_mean(metric, side) for side in _sides(pairs)]
    if None in means:
        return None
    base, new = (mean or 0.0 for mean in means)
    shown = (metric.title, *(f"{mean:,.{metric.decimals}f}" for mean in (base, new)))
    periods = [(_mean(metric, [a]), _mean(metric, [b])) for a, b in pairs]
    paired = [(a, b) for a, b in periods if a is not None and b is not None]
    if len(paired) >= MIN_PERIODS and all(a > 0 and b > 0 for a, b in paired):
        ratio = geometric_mean(b / a for a, b in paired)
        return (*shown, f"{ratio.value:.3f}", f"{ratio.low:.3f} to {ratio.high:.3f}")
    return (*shown, f"{new / base:.3f}" if base else "", "")


def _mean(metric: ServerMetric, periods: Sequence[Counters]) -> float | None:
    below = sum(period.get(metric.below, 0.0) for period in periods)
    above = sum(period.get(metric.above, math.nan) for period in periods)
    return None if not below or math.isnan(above) else above / below
