"""Parses `--slo`, the service level that a load must meet to be sustained.

In: text such as `mean<=2x,ttft_p95<=5s,speed_p90>=30`. Out: limits of statistics of the job
completion time (JCT) and of the latencies of turns. `2x` is twice the value on an idle machine. All
limits must hold.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import NamedTuple

from servers.basics.errors import InvalidInput, refuse_twice
from servers.basics.nearest import did_you_mean
from servers.basics.phrasing import listed
from servers.basics.text import quoted
from servers.records.done import PERCENTS, Summary, Times

DEFAULT_SLO = "mean<=2x"
DEFAULT_SLO_OF_AGENTS = "ttft_p95<=5s"
"""Recorded sessions are mostly tool calls and pauses, so their mean JCT hardly shows how long each
turn waits: it can be within twice an idle machine's at a P95 TTFT of minutes."""
MEAN = "mean"
STATISTICS = (MEAN, *(f"p{percent}" for percent in PERCENTS))
UNITS_S = {"ms": 0.001, "s": 1.0, "min": 60.0, "h": 3600.0}
SPEED = "speed"
LIMIT = re.compile(
    r"(?:(?P<measure>[a-z_]+)_)?(?P<statistic>mean|p\d+)\s*(?P<sign><=|>=)\s*"
    r"(?P<value>\d{1,9}(?:\.\d{1,6})?)\s*(?P<unit>x|ms|s|min|h|tok(?:ens)?/s|)",
    re.ASCII | re.IGNORECASE,
)
EXAMPLE = "use for example 'mean<=2x' or 'ttft_p95<=5s,speed_p90>=30'"


class Measure(NamedTuple):
    """What a limit applies to."""

    field: str
    """Of `Times`."""
    title: str


JCT = "jct"
MEASURES = {
    JCT: Measure("jct", "JCT"),
    "ttft": Measure("ttft", "TTFT"),
    "first_ttft": Measure("first_ttft", "TTFT of first turns"),
    "tpot": Measure("tpot", "TPOT"),
    SPEED: Measure("per_token", "output tokens/s"),
}
"""`speed` is the number of output tokens of a turn divided by its latency from sending to the last
token (end-to-end normalised interactivity in AgentX). Its P90 is what 90% of the turns reach."""


@dataclass(frozen=True, slots=True)
class Limit:
    statistic: str
    value: float
    unit: str
    """`x`: times the statistic on an idle machine; `tok/s`; otherwise a unit of time."""
    measure: str = JCT

    def __str__(self) -> str:
        unit = "" if self.unit == "tok/s" else self.unit
        sign = ">=" if self.is_speed else "<="
        return f"{self.name}{sign}{self.number}{unit}"

    @property
    def name(self) -> str:
        """The statistic as SLOs are written, such as `p95` or `ttft_p95`."""
        return self.statistic if self.measure == JCT else f"{self.measure}_{self.statistic}"

    @property
    def is_speed(self) -> bool:
        return self.measure == SPEED

    @property
    def number(self) -> str:
        """The value without an exponent, as SLOs are written."""
        return f"{self.value:.6f}".rstrip("0").rstrip(".")

    @property
    def idle_meets(self) -> bool:
        """Whether an idle machine meets the limit whatever its times are."""
        return self.unit == "x" and (self.value <= 1 if self.is_speed else self.value >= 1)

    def limit_s(self, idle: Times) -> float:
        """Return the longest time that meets the limit; of a speed, the time per output token."""
        if self.unit == "x":
            factor = 1 / self.value if self.is_speed else self.value
            return factor * self.of(idle)
        return 1 / self.value if self.is_speed else self.value * UNITS_S[self.unit]

    def of(self, times: Times) -> float:
        """Return the statistic that is limited; 0 if there is nothing to measure."""
        summary: Summary | None = getattr(times, MEASURES[self.measure].field)
        if summary is None:
            return 0.0
        if self.statistic == MEAN:
            return summary.mean
        return summary.percentile(int(self.statistic[1:]))

    def share_of(self, times: Times, idle: Times) -> float:
        """Return the ratio of the statistic to its limit: at most 1 if the limit holds."""
        value, limit_s = self.of(times), self.limit_s(idle)
        return value / limit_s if limit_s > 0 else math.inf if value > 0 else 0.0

    @property
    def title(self) -> str:
        """The statistic in words, such as `P95 TTFT`."""
        name = self.statistic if self.statistic == MEAN else self.statistic.upper()
        return f"{name} {MEASURES[self.measure].title}"

    def describe(self) -> str:
        """Return a phrase such as `mean JCT at most 2x an idle machine's`."""
        if self.unit == "x":
            side = "at least" if self.is_speed else "at most"
            return f"{self.title} {side} {self.number}x an idle machine's"
        if self.is_speed:
            percent = self.statistic[1:]
            who = "on average" if self.statistic == MEAN else f"in {percent}% of the turns"
            return f"at least {self.number} output tokens/s {who}"
        return f"{self.title} at most {self.number} {self.unit}"


@dataclass(frozen=True, slots=True)
class Slo:
    limits: tuple[Limit, ...]

    def __str__(self) -> str:
        return ",".join(map(str, self.limits))

    def tightest(self, times: Times, idle: Times) -> float:
        """Return the largest ratio of a statistic to its limit: at most 1 if all limits hold."""
        return self.tightest_limit(times, idle).share_of(times, idle)

    def tightest_limit(self, times: Times, idle: Times) -> Limit:
        """Return the limit with the largest such ratio."""
        return max(self.limits, key=lambda each: each.share_of(times, idle))

    def describe(self) -> str:
        return listed([limit.describe() for limit in self.limits])


def parse_slo(text: str) -> Slo:
    """Raises InvalidInput."""
    limits = tuple(_limit(text, item.strip()) for item in text.split(","))
    for is_relative in (True, False):
        names = [limit.name for limit in limits if (limit.unit == "x") == is_relative]
        refuse_twice(f"--slo {quoted(text)}", names)
    return Slo(limits)


def _limit(text: str, item: str) -> Limit:
    match = LIMIT.fullmatch(item)
    if match is None:
        raise _invalid(text, f"{quoted(item)} is not STATISTIC<=VALUE; {EXAMPLE}")
    measure, statistic = (match["measure"] or JCT).lower(), match["statistic"].lower()
    if measure not in MEASURES:
        hint = did_you_mean(measure, MEASURES, f"use {listed([*MEASURES], 'or')}")
        raise _invalid(text, f"{quoted(measure)} is not measured{hint}")
    if statistic not in STATISTICS:
        raise _invalid(text, f"{quoted(statistic)} is not known; use mean or p1 to p99")
    return _checked(text, Limit(statistic, float(match["value"]), match["unit"], measure), match)


def _checked(text: str, limit: Limit, match: re.Match[str]) -> Limit:
    """Return the limit with its unit, or refuse a sign or a unit that does not fit."""
    if limit.value == 0:
        raise _invalid(text, f"a limit of zero cannot be met; {EXAMPLE}")
    if (match["sign"] == ">=") != limit.is_speed:
        sides = (
            "a speed has a lower limit, >=" if limit.is_speed else "a time has an upper limit, <="
        )
        raise _invalid(text, f"{quoted(match[0])}: {sides}")
    unit = limit.unit.lower()
    if limit.is_speed and unit in ("", "tok/s", "tokens/s"):
        return Limit(limit.statistic, limit.value, "tok/s", limit.measure)
    if unit == "x" or (unit in UNITS_S and not limit.is_speed):
        return Limit(limit.statistic, limit.value, unit, limit.measure)
    wanted = "tok/s or x" if limit.is_speed else "ms, s, min, h or x"
    raise _invalid(text, f"{quoted(match[0])} needs a unit: {wanted}; {EXAMPLE}")


def _invalid(text: str, reason: str) -> InvalidInput:
    return InvalidInput(f"--slo {quoted(text)}: {reason}")
