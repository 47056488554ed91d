"""Draws how long tools run, by tool, and when jobs start. In: a trace. Out: figures."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from reports.figures.drawing import Figure, KeyEntry, Spec, line, numbers
from reports.figures.styles import FIRST_COLOUR, INK, Style
from reports.numbers import short
from reports.workload.compared import THIS, Compared
from reports.workload.lines import MAX_POINTS, curve
from servers.basics.phrasing import counted, seconds
from traces import Program

MAX_TOOLS = 6
DASHES = ("solid", "dash")
MIN_INSTANT = 0.005
"""The caption mentions calls of 0 s from this share on."""
ALL = "all tools"
LOG_SHARES = {
    "type": "log",
    "range": [-3.1, 0.06],
    "tickvals": [1, 0.1, 0.01, 0.001],
    "ticktext": ["100%", "10%", "1%", "0.1%"],
}


def tools_figure(compared: Compared, source: str) -> Figure | None:
    """Return the figure, or None if no tool took any time."""
    by_tool = _by_tool(compared.trace.programs)
    every = [gap_s for gaps in by_tool.values() for gap_s in gaps]
    if not any(every):
        return None
    shown = [t.tool for t in compared.statistics.tools if any(by_tool[t.tool])][:MAX_TOOLS]
    lines = [(ALL, every, Style(INK, "circle", "solid"))]
    if len(by_tool) > 1:
        lines += [
            (name, by_tool[name], Style(FIRST_COLOUR + k, "circle", DASHES[k % len(DASHES)]))
            for k, name in enumerate(shown)
        ]
    left = min(gap_s for gap_s in every if gap_s)
    of_all = compared.statistics.all_tools
    instant = sum(not gap_s for gap_s in every) / len(every)
    at_once = ""
    if instant >= MIN_INSTANT:
        at_once = f" {instant:.0%} of the calls took no time that was recorded, and are not drawn."
    spec: Spec = {
        "data": [
            curve(name, gaps, look, "of calls take at least %{x:,.3~r} s", variant=False, left=left)
            for name, gaps, look in lines
        ],
        "layout": {
            "xaxis": {"title": {"text": "tool time, seconds"}},
            "yaxis": {
                "title": {"text": "share of calls that take at least as long"},
                **LOG_SHARES,
            },
        },
        "alt": "Falling lines, one per tool: the share of calls that take at least that long."
        f" Half of all take {seconds(of_all.p50_s)} or more, 1% take {seconds(of_all.p99_s)}.",
        "value": "x",
        "note": "While a tool runs, the job's memory on the server is unused, and the scheduler"
        " must guess for how long. Both axes are logarithmic: a line that falls slowly to the right"
        f" has a long tail.{at_once} Tool times of this trace: {source}.",
    }
    key = tuple(
        KeyEntry(look.colour, look.dash, f"{short(name)}, {counted(len(gaps), 'call')}")
        for name, gaps, look in lines
    )
    return Figure("tools", "How long tools run", {"": spec}, True, key=key, terms=("Tool gap",))


def _by_tool(programs: Sequence[Program]) -> dict[str, list[float]]:
    """Return the gaps by the first tool of the turn before, in seconds."""
    by_tool: dict[str, list[float]] = defaultdict(list)
    for program in programs:
        for turn in program.turns[:-1]:
            if turn.tools:
                by_tool[turn.tools[0]].append(turn.tool_gap_s)
    return by_tool


def starts_figure(compared: Compared, source: str) -> Figure | None:
    """Return the figure; None if fewer than three starts are recorded."""
    between = times_between_starts(compared.trace.jobs)
    if len(between) < 2 or not any(between):
        return None
    mean_s = sum(between) / len(between)
    # The share of exponential values above x is exp(-x / mean).
    x = np.geomspace(mean_s / 100, 7 * mean_s, MAX_POINTS)
    poisson = line(numbers(x), numbers(np.exp(-x / mean_s)), "s1", "dash", name="Poisson")
    look, what = Style(INK, "circle", "solid"), "of times are at least %{x:,.3~r} s"
    left = min([mean_s / 100, *filter(None, between)])
    burstiness = compared.statistics.burstiness
    together = sum(not value for value in between) / len(between)
    at_once = f" {together:.0%} of the starts coincide with another." if together else ""
    spec: Spec = {
        "data": [
            curve(THIS, between, look, what, variant=False, left=left),
            poisson,
        ],
        "layout": {
            "xaxis": {"title": {"text": "time between starts of jobs, seconds"}},
            "yaxis": {"title": {"text": "share of times that are longer"}, **LOG_SHARES},
        },
        "alt": f"Falling lines: times between the starts of jobs, compared with a Poisson process."
        f" The mean is {seconds(mean_s)}.",
        "value": "x",
        "note": "If people start jobs independently of each other, starts are a Poisson process"
        " (grey, with the same mean). A line above it on the right has long pauses, and thus bursts"
        f" between them: burstiness {burstiness:.2f} (-1: regular, 0: Poisson, 1: bursts).{at_once}"
        f" {source} Recipes have no starts; a sweep draws them.",
    }
    key = (
        KeyEntry(look.colour, "solid", f"{THIS}, {counted(len(between) + 1, 'start')}"),
        KeyEntry("s1", "dash", "Poisson"),
    )
    return Figure(
        "starts", "When jobs start", {"": spec}, True, key=key, terms=("Arrival process",)
    )


def times_between_starts(jobs: Sequence[Program]) -> list[float]:
    known = sorted(job.recorded_start_s for job in jobs if job.recorded_start_s is not None)
    return [after - before for before, after in pairwise(known)]
