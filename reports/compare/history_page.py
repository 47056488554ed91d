"""Draws a history as one HTML page that needs no network.

The page has a figure of the mean JCT over time for each load.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from reports.answer.provenance import heading
from reports.compare.history import Entry, History, Series, changed
from reports.compare.verdict import NOT_STEADY
from reports.figures.drawing import Figure, Spec, Trace, plain
from reports.figures.legend import MAX_ALL_HIGHLIGHTED, legend
from reports.figures.styles import Style, styles
from reports.page.page import with_figures
from servers.basics.atomic import write_file
from servers.basics.phrasing import counted, listed, seconds

COMMIT_LETTERS = 10
ABOVE = 1.5
"""Entries without a steady state are drawn this many times as high as the longest mean."""


def draw(history: History, out: Path) -> None:
    series = history.series()
    names = list(dict.fromkeys(s.variant for s in series))
    style = styles([{"name": name} for name in names])
    figures = [
        _figure(number, [s for s in series if s.load == load], style)
        for number, load in enumerate(dict.fromkeys(s.load for s in series))
    ]
    page = with_figures().get_template("history.html.j2")
    content = page.render(
        context=heading(history.settings),
        verdict=_verdict(series),
        jumps=_jumps(series),
        figures=figures,
        legend=legend(names, style, _highlighted(names, series)),
    )
    write_file(out, content.encode())


def _highlighted(names: Sequence[str], series: Sequence[Series]) -> list[str]:
    """Return the variants to highlight at first: all if they are few, else those that jumped, or
    else the first one."""
    if len(names) <= MAX_ALL_HIGHLIGHTED:
        return list(names)
    return list(dict.fromkeys(s.variant for s in series if s.jumps)) or list(names[:1])


def _figure(number: int, series: Sequence[Series], style: Mapping[str, Style]) -> Figure:
    load = series[0].load
    jumps = {entry.label: entry for s in series for entry in s.jumps}
    means_s = [entry.jct_mean_s for s in series for entry in s.entries if entry.jct_mean_s]
    top_s = ABOVE * max(means_s, default=1.0)
    layout = {
        "xaxis": {"title": {"text": "time of the measurement"}, "type": "date"},
        "yaxis": {"title": {"text": "mean JCT, seconds"}, "rangemode": "tozero"},
        "shapes": [_mark(entry.when.isoformat()) for entry in jumps.values()],
        "annotations": [_commit(entry.when.isoformat(), label) for label, entry in jumps.items()],
    }
    ends = "; ".join(f"{s.variant} {_mean(s.entries[-1])}" for s in series)
    alt = f"Line chart: mean JCT over time with {load}, one line per variant. Last: {ends}."
    spec: Spec = {
        "data": [line(s, style[s.variant], top_s) for s in series],
        "layout": layout,
        "alt": alt,
        "value": "y",
        "labelled": True,
    }
    notes = [
        "A dotted line marks a commit that moved a mean out of the 95% interval of the commit"
        " before; large markers show which."
    ][: len(jumps)]
    if any(entry.unstable_seeds for s in series for entry in s.entries):
        notes.append("Crosses at the top: no steady state, so the JCT is above every number.")
    if notes:
        spec["note"] = " ".join(notes)
    return Figure(
        f"trend-{number}",
        f"Mean JCT over time at {load}",
        {"": spec},
        False,
        terms=("JCT", "95% CI"),
    )


def _mark(when: str) -> dict[str, Any]:
    """Return a vertical line over the whole height."""
    line = {"width": 1, "dash": "dot"}
    return {"type": "line", "yref": "paper", "y0": 0, "y1": 1, "x0": when, "x1": when, "line": line}


def _commit(when: str, label: str) -> dict[str, Any]:
    return {
        "x": when,
        "y": 1,
        "yref": "paper",
        "yanchor": "bottom",
        "text": plain(label if len(label) <= COMMIT_LETTERS else f"{label[:COMMIT_LETTERS]}…"),
        "showarrow": False,
        "font": {"size": 11},
    }


def _mean(entry: Entry) -> str:
    return NOT_STEADY if entry.jct_mean_s is None else seconds(entry.jct_mean_s)


def line(series: Series, style: Style, top_s: float) -> Trace:
    """Draw the means, and entries without a steady state at `top_s`."""
    jumps = series.jumps
    return {
        "type": "scatter",
        "name": plain(series.variant),
        "x": [entry.when.isoformat() for entry in series.entries],
        "y": [entry.jct_mean_s or top_s for entry in series.entries],
        "mode": "lines+markers",
        "line": {"width": 2, "dash": style.dash},
        "marker": {
            "symbol": ["x" if e.unstable_seeds else style.marker for e in series.entries],
            "size": [12 if entry in jumps else 6 for entry in series.entries],
            "line": {"width": 1.5},
        },
        "text": [_hover(series, index) for index in range(len(series.entries))],
        "hovertemplate": "%{text}<extra></extra>",
        "meta": {"colour": style.colour, "variant": series.variant, "kind": "line"},
    }


def _hover(series: Series, index: int) -> str:
    entry = series.entries[index]
    lines = [
        f"<b>{plain(series.variant)}</b> · {plain(entry.label)}",
        f"{entry.when:%Y-%m-%d %H:%M}",
        *_numbers(entry),
    ]
    if index:
        before = series.entries[index - 1]
        lines.append(f"{changed(before, entry)} against {plain(before.label)}")
    return "<br>".join(lines)


def _numbers(entry: Entry) -> list[str]:
    low, high, p95 = entry.jct_mean_low_s, entry.jct_mean_high_s, entry.jct_p95_s
    if low is None or high is None or p95 is None:
        return [f"{NOT_STEADY} with {counted(entry.unstable_seeds, 'seed')}"]
    return [f"mean {_mean(entry)} ({seconds(low)} to {seconds(high)})", f"P95 {seconds(p95)}"]


def _jumps(series: Sequence[Series]) -> list[tuple[str, ...]]:
    """Return rows of (commit, when, load, policy, before, after, change), the latest first."""
    jumps = [(new, old, s) for s in series for old, new in s.steps if new in s.jumps]
    jumps.sort(key=lambda jump: jump[0].when, reverse=True)
    return [
        (
            *(new.label, f"{new.when:%Y-%m-%d}", s.load, s.variant),
            *(_mean(old), _mean(new), changed(old, new)),
        )
        for new, old, s in jumps
    ]


def _verdict(series: Sequence[Series]) -> str:
    if not series:
        return "The history is empty."
    last = max((s.entries[-1] for s in series), key=lambda e: e.when)
    jumped = [
        f"{s.variant} at {s.load}" for s in series if last.label in {e.label for e in s.jumps}
    ]
    commits = counted(len({e.label for s in series for e in s.entries}), "commit")
    unstable = [
        f"{s.variant} at {s.load}"
        for s in series
        if any(e.unstable_seeds for e in s.entries if e.label == last.label)
    ]
    also = f" It has no steady state with {listed(unstable)}." if unstable else ""
    if not jumped:
        within = "is within all intervals of the previous one"
        return f"{commits}. The latest, {last.label}, {within}.{also}"
    return f"{commits}. The latest, {last.label}, changed {listed(jumped)}.{also}"
