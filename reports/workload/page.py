"""Draws the page about a trace, one HTML file that needs no network.

In: a trace that was read, and its name. Out: the file. It contains no path, and everything from the
trace is escaped.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from reports.figures.drawing import Figure
from reports.figures.legend import legend
from reports.page.page import with_figures
from reports.workload.compared import Compared, compared
from reports.workload.length_figures import (
    Styles,
    prompts_figure,
    reuse_figure,
    tokens_figure,
    turns_figure,
)
from reports.workload.lines import workload_styles
from reports.workload.phrases import basis, caveats, findings, headline, tiles
from reports.workload.provenance import (
    of_gaps,
    of_lengths,
    of_names,
    of_repeats,
    of_starts,
    of_turns,
)
from reports.workload.tables import MAX_TOOLS, tool_table, workload_table
from reports.workload.time_figures import starts_figure, tools_figure
from servers.basics.atomic import write_file
from servers.basics.phrasing import counted
from traces import TraceSet
from traces.synthesis.nearest import LIKE


def draw(loaded: TraceSet, name: str, out: Path) -> Compared:
    """Write the page, and return what it compares."""
    found = compared(loaded)
    styles = workload_styles(found)
    figures = list(_figures(found, loaded, styles))
    nearest = [pack.name for pack in found.packs[:1] if pack.distance is not None]
    content = (
        with_figures()
        .get_template("workload.html.j2")
        .render(
            context=_context(found, loaded, name),
            headline=headline(found),
            basis=basis(found, loaded),
            tiles=tiles(found),
            caveats=list(caveats(found, loaded)),
            findings=list(findings(found)),
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
            tool_source=of_gaps(found.trace.programs, after_tools=True),
            sha256=loaded.sha256,
            names=of_names(loaded),
        )
    )
    write_file(out, content.encode())
    return found


def _figures(found: Compared, loaded: TraceSet, styles: Styles) -> Iterator[Figure]:
    lengths = of_lengths(loaded)
    yield turns_figure(found, styles, of_turns(loaded))
    yield prompts_figure(found, styles, lengths)
    yield tokens_figure(found, styles, lengths)
    yield reuse_figure(found, of_repeats(loaded))
    tool_times = tools_figure(found, of_gaps(found.trace.programs, after_tools=True))
    starts = starts_figure(found, of_starts(loaded))
    yield from filter(None, [tool_times, starts])


def _context(found: Compared, loaded: TraceSet, name: str) -> list[str]:
    formats = sorted(set(loaded.formats.values()))
    return [name, counted(len(found.trace.jobs), "job"), f"format {', '.join(formats)}"]
