"""Builds the tables of the page about a trace: recipes by distance, and tools by total time."""

from __future__ import annotations

from typing import NamedTuple

from reports.figures.drawing import short
from reports.numbers import DASH
from reports.table import Table, texts
from reports.workload.compared import Compared, Described
from servers.basics.phrasing import seconds, share
from traces.stats import GapStats
from traces.synthesis.figures import value_of

MAX_TOOLS = 20


class QuantityRow(NamedTuple):
    head: str
    quantity: str
    """Of `traces.synthesis.figures`."""
    statistic: str
    is_time: bool = False


QUANTITIES = (
    QuantityRow("turns", "turns", "mean"),
    QuantityRow("first prompt", "first prompt", "mean"),
    QuantityRow("new tokens", "new tokens per later turn", "mean"),
    QuantityRow("output", "output tokens", "mean"),
    QuantityRow("final context", "final context", "mean"),
    QuantityRow("tool P50", "gap after a tool", "p50", is_time=True),
    QuantityRow("tool P99", "gap after a tool", "p99", is_time=True),
)
HEADS = ("Workload", "distance", *(q.head for q in QUANTITIES), "cacheable", "sub-agents")
TOOL_HEADS = ("Tool", "calls", "mean", "P50", "P90", "P99", "share of slowest 10%")


def workload_table(compared: Compared) -> Table:
    return Table(HEADS, [texts(each.name, _values(each)) for each in compared.all])


def _values(each: Described) -> list[str]:
    distance = DASH if each.distance is None else f"{each.distance:.2f}"
    agents = len(each.sub_agents) / max(len(each.jobs), 1)
    ends = [share(each.reuse.bound), f"{agents:.2f}" if agents else DASH]
    return [distance, *(_value(each, quantity) for quantity in QUANTITIES), *ends]


def _value(each: Described, quantity: QuantityRow) -> str:
    figure = each.figures.get(quantity.quantity)
    if figure is None:
        return DASH
    value = value_of(figure, quantity.statistic)
    if quantity.is_time:
        return seconds(value)
    return f"{value:,.1f}" if quantity.quantity == "turns" else f"{value:,.0f}"


def tool_table(compared: Compared) -> Table:
    """Return the tools with the most time, after a row for all tools."""
    stats = compared.statistics
    rows = [
        texts(short(tool.tool), _tool_values(tool))
        for tool in (stats.all_tools, *stats.tools[:MAX_TOOLS])
        if tool.calls
    ]
    return Table(TOOL_HEADS, rows)


def _tool_values(tool: GapStats) -> list[str]:
    times = (tool.mean_s, tool.p50_s, tool.p90_s, tool.p99_s)
    return [f"{tool.calls:,}", *map(seconds, times), share(tool.slowest_tenth_share)]
