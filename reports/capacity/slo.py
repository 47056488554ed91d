"""Parses `--slo`, the service level that a rate must meet to be sustained.

In: text such as `mean<=2x,p95<=300s`. Out: limits of statistics of the job completion time (JCT).
`2x` is twice the value on an idle machine. All limits must hold.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from servers.basics.errors import InvalidInput
from servers.basics.phrasing import listed
from servers.records.done import Jct

DEFAULT_SLO = "mean<=2x"
STATISTICS = ("mean", "p50", "p90", "p95", "p99")
UNITS_S = {"s": 1.0, "min": 60.0, "h": 3600.0}
LIMIT = re.compile(
    r"(?P<statistic>\w+)\s*<=\s*(?P<value>\d{1,9}(?:\.\d{1,6})?)\s*(?P<unit>x|s|min|h)", re.ASCII
)
EXAMPLE = "use for example 'mean<=2x' or 'mean<=2x,p95<=300s'"


@dataclass(frozen=True, slots=True)
class Limit:
    statistic: str
    value: float
    unit: str
    """`x`: times the statistic on an idle machine; otherwise a unit of time."""

    def __str__(self) -> str:
        return f"{self.statistic}<={self.number}{self.unit}"

    @property
    def number(self) -> str:
        """The value without an exponent, as SLOs are written."""
        return f"{self.value:.6f}".rstrip("0").rstrip(".")

    def limit_s(self, idle_jct_s: Jct) -> float:
        if self.unit == "x":
            return self.value * self.of(idle_jct_s)
        return self.value * UNITS_S[self.unit]

    def of(self, jct_s: Jct) -> float:
        """Return the statistic that is limited."""
        return float(getattr(jct_s, self.statistic))

    def describe(self) -> str:
        """Return a phrase such as `mean JCT at most 2x that of an idle machine`."""
        name = self.statistic if self.statistic == "mean" else self.statistic.upper()
        limit = "x that of an idle machine" if self.unit == "x" else f" {self.unit}"
        return f"{name} JCT at most {self.number}{limit}"


@dataclass(frozen=True, slots=True)
class Slo:
    limits: tuple[Limit, ...]

    def __str__(self) -> str:
        return ",".join(map(str, self.limits))

    def tightest(self, jct_s: Jct, idle_jct_s: Jct) -> float:
        """Return the largest ratio of a statistic to its limit: at most 1 if all limits hold."""
        return max(each.of(jct_s) / each.limit_s(idle_jct_s) for each in self.limits)

    def describe(self) -> str:
        return listed([limit.describe() for limit in self.limits])


def parse_slo(text: str) -> Slo:
    """Raises InvalidInput."""
    return Slo(tuple(_limit(text, item.strip()) for item in text.split(",")))


def _limit(text: str, item: str) -> Limit:
    match = LIMIT.fullmatch(item)
    if match is None:
        raise _invalid(text, f"{_quoted(item)} is not STATISTIC<=VALUE; {EXAMPLE}")
    limit = Limit(match["statistic"].lower(), float(match["value"]), match["unit"])
    if limit.statistic not in STATISTICS:
        known = listed(STATISTICS, "or")
        reason = (
            f"{_quoted(match['statistic'])} is not a statistic of the job completion time (JCT)"
        )
        raise _invalid(text, f"{reason}; use {known}{_latency(limit.statistic)}")
    if limit.value == 0:
        raise _invalid(text, f"a limit of zero cannot be met; {EXAMPLE}")
    return limit


def _latency(statistic: str) -> str:
    """Point to the latencies of single turns, if the unknown statistic looks like one."""
    if not statistic.startswith(("ttft", "tpot", "itl", "latency")):
        return ""
    return (
        f". {statistic.partition('_')[0].upper()} does not limit a capacity: the report and"
        " cells.csv have ttft_p95_s and tpot_p95_s of each cell"
    )


def _invalid(text: str, reason: str) -> InvalidInput:
    return InvalidInput(f"--slo {_quoted(text)}: {reason}")


def _quoted(text: str) -> str:
    return ascii(text if len(text) <= 60 else text[:57] + "...")
