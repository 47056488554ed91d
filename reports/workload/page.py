"""Draws the page about a trace, with tables of recipes by distance and of tools by total time.

In: a trace that was read, and its name. Out: the file. It contains no path, and everything from the
trace is escaped.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from reports.figures.drawing import Figure
from reports.figures.styles import legend
from reports.numbers import DASH, short
from reports.page.environment import write_page
from reports.table import Table, texts
from reports.workload import phrases
from reports.workload.compared import Compared, Described, compared
from reports.workload.length_figures import (
    Styles,
    prompts_figure,
    reuse_figure,
    tokens_figure,
    turns_figure,
)
from reports.workload.lines import workload_styles
from reports.workload.time_figures import starts_figure, tools_figure
from servers.basics.phrasing import counted, seconds, share
from traces import TraceSet
from traces.stats import GapStats
from traces.synthesis.figures import value_of
from traces.synthesis.nearest import LIKE


def draw(loaded: TraceSet, name: str, out: Path) -> Compared:
    """Write the page, and return what it compares."""
    found = compared(loaded)
    styles = workload_styles(found)
    figures = list(_figures(found, loaded, styles))
    nearest = [pack.name for pack in found.packs[:1] if pack.distance is not None]
    write_page(
        out,
        "workload.html.j2",
        context=_context(found, loaded, name),
        headline=phrases.headline(found),
        basis=phrases.basis(found, loaded),
        tiles=phrases.tiles(found),
        caveats=list(phrases.caveats(found, loaded)),
        findings=list(phrases.findings(found)),
        figures=figures,
        legend=legend(
            [each.name for each in found.all],
            styles,
            [found.trace.name, *nearest],
        ),
        like=LIKE,
        workloads=workload_table(found),
        abouts=[(each.name, each.about) for each in found.all],
        tools=tool_table(found),
        more_tools=max(len(found.statistics.tools) - MAX_TOOLS, 0),
        tool_source=phrases.of_gaps(found.trace.programs, after_tools=True),
        sha256=loaded.sha256,
        names=phrases.of_names(loaded),
    )
    return found


def _figures(found: Compared, loaded: TraceSet, styles: Styles) -> Iterator[Figure]:
    lengths = phrases.of_lengths(loaded)
    yield turns_figure(found, styles, phrases.of_turns(loaded))
    yield prompts_figure(found, styles, lengths)
    yield tokens_figure(found, styles, lengths)
    yield reuse_figure(found, phrases.of_repeats(loaded))
    tool_times = tools_figure(found, phrases.of_gaps(found.trace.programs, after_tools=True))
    starts = starts_figure(found, phrases.of_starts(loaded))
    yield from filter(None, [tool_times, starts])


def _context(found: Compared, loaded: TraceSet, name: str) -> list[str]:
    formats = sorted(set(loaded.formats.values()))
    return [name, counted(len(found.trace.jobs), "job"), f"format {', '.join(formats)}"]


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
