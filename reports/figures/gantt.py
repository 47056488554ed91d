"""Draws the Gantt chart of a cell, with a row per program, in order of arrival.

In: the turns of a cell. Out: a figure. A program arrives when its first turn is due; an agent when
its process was released (`programs.jsonl`). Records say how long each part of a turn took but not
when, so the parts are drawn one after the other, a preemption before the decoding.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from reports.figures.drawing import Figure, KeyEntry, Spec, plain, short
from reports.phrasing import counted
from reports.run_folder.lines import json_lines
from reports.run_folder.read import Cell
from reports.run_folder.turns import read_turns

MOST_PROGRAMS = 60
MOST_TURNS = 1500
LEAST_S = 1e-3
"""Shorter segments are not drawn."""
KINDS = {
    "queue": KeyEntry("part-requeue", "", "queued"),
    "load": KeyEntry("part-reload", "", "reload"),
    "server": KeyEntry("part-server", "", "server time (no breakdown)"),
    "prefill": KeyEntry("part-first-prefill", "", "prefill"),
    "preempted": KeyEntry("part-preemption", "", "preempted, rebuilding"),
    "decode": KeyEntry("part-decode", "", "decode"),
    "tool": KeyEntry("part-tool", "", "tool"),
    "subagents": KeyEntry("part-subagents", "", "waiting for sub-agents"),
}
"""In the order in which they are drawn within a turn; the last two come before the turn."""
Floats = npt.NDArray[np.float64]


def gantt(cells: Mapping[str, Cell]) -> Figure | None:
    """`cells` by label; the first one is shown at first."""
    specs = {label: _spec(label, cell) for label, cell in cells.items()}
    if not specs:
        return None
    drawn = {trace["meta"]["segment"] for spec in specs.values() for trace in spec["data"]}
    key = tuple(entry for kind, entry in KINDS.items() if kind in drawn)
    return Figure("gantt", "Program by program", specs, None, "gantt", next(iter(specs)), key)


def _spec(label: str, cell: Cell) -> Spec:
    turns = read_turns(cell)
    good = turns[turns["error"].isna()]
    order = _in_order(cell, good)
    shown, note = _shown(good, order)
    rows = pd.Series(np.arange(1, len(order) + 1), index=order)[shown["program_id"]].to_numpy()
    segments = _segments(shown)
    count = int(rows.max(initial=1))
    return {
        "data": [_bars(kind, *segments[kind], rows, shown) for kind in KINDS if kind in segments],
        "layout": {
            "barmode": "overlay",
            "bargap": 0.22,
            "xaxis": {"title": {"text": "seconds"}, "rangemode": "nonnegative"},
            "yaxis": {
                "title": {"text": "program, in order of arrival"},
                "range": [count + 0.7, 0.3],
                "tickformat": ",d",
                **({"dtick": 1} if count < 10 else {}),
            },
        },
        "alt": f"Gantt chart, {label}: a row for each of {counted(count, 'program')} with its"
        " time in the queue, in the server and in tools.",
        "value": "x",
        "height": 150 + 11 * count,
        "note": note,
    }


def _in_order(cell: Cell, turns: pd.DataFrame) -> pd.Index:
    arrival_s = turns.groupby("program_id")["scheduled_at_s"].min()
    for agent in json_lines(cell.folder / "programs.jsonl"):
        name, at_s = str(agent.get("program_id")), agent.get("arrival_s")
        if name in arrival_s.index and isinstance(at_s, int | float):
            arrival_s[name] = at_s
    return arrival_s.sort_values(kind="stable").index


def _shown(turns: pd.DataFrame, order: pd.Index) -> tuple[pd.DataFrame, str]:
    """The turns of the programs that arrive first, and a note on what was left out."""
    lengths = turns["program_id"].value_counts()[order].to_numpy()
    fit = int((lengths.cumsum() <= MOST_TURNS).sum())
    programs = max(1, min(MOST_PROGRAMS, fit))
    shown = turns[turns["program_id"].isin(order[:programs])]
    note = "Drag to look closer, double-click to go back."
    if len(shown) > MOST_TURNS:
        shown = shown.nsmallest(MOST_TURNS, "scheduled_at_s", keep="first")
        note = f"The first {MOST_TURNS:,} of {counted(len(turns), 'turn')}. {note}"
    elif programs < len(order):
        note = f"The first {programs} of {counted(len(order), 'program')}. {note}"
    return shown, note


def _segments(turns: pd.DataFrame) -> dict[str, tuple[Floats, Floats]]:
    """By kind that occurs: start and duration in seconds of each turn's segment."""

    def known(*fields: str) -> Floats:
        return turns[list(fields)].fillna(0.0).sum(axis=1).to_numpy(dtype=float)

    lengths = {
        "queue": known("queue_s"),
        "load": known("load_s"),
        "prefill": known("prefill_s"),
        "preempted": known("preempted_s", "recompute_s"),
        "decode": known("decode_s"),
    }
    span = (turns["finished_at_s"] - turns["sent_at_s"]).to_numpy(dtype=float)
    unknown = turns["prefill_s"].isna().to_numpy()
    lengths["server"] = np.where(unknown, span - sum(lengths.values()), 0.0)
    found: dict[str, tuple[Floats, Floats]] = {}
    start_s = turns["sent_at_s"].to_numpy(dtype=float)
    for kind in KINDS:
        if kind in lengths:
            found[kind] = (start_s, lengths[kind])
            start_s = start_s + lengths[kind]
    gap = known("gap_s")
    due = turns["scheduled_at_s"].to_numpy(dtype=float) - gap
    found["tool"] = (due, gap)
    found["subagents"] = (due - known("wait_s"), known("wait_s"))
    return {kind: own for kind, own in found.items() if (own[1] >= LEAST_S).any()}


BAR_HEIGHT = 0.78
"""Of a row. Without it plotly takes the least distance between the rows of a kind, which for a rare
kind covers other programs."""


def _bars(
    kind: str, begin_s: Floats, length_s: Floats, rows: npt.NDArray[Any], turns: pd.DataFrame
) -> dict[str, Any]:
    drawn = length_s >= LEAST_S
    names = turns["program_id"].to_numpy()[drawn]
    places = turns["turn"].to_numpy()[drawn]
    lengths = length_s[drawn].round(3).tolist()
    label = KINDS[kind].label
    return {
        "type": "bar",
        "orientation": "h",
        "name": label,
        "base": begin_s[drawn].round(3).tolist(),
        "x": lengths,
        "y": rows[drawn].tolist(),
        "width": BAR_HEIGHT,
        "customdata": lengths,
        "text": [
            f"{plain(short(name))}, turn {int(place)}"
            for name, place in zip(names, places, strict=True)
        ],
        "textposition": "none",
        "hovertemplate": f"<b>%{{text}}</b><br>{label} for %{{customdata:,.4~r}} s, from"
        " %{base:,.6~r} s<extra></extra>",
        "meta": {"colour": KINDS[kind].colour, "kind": "segment", "segment": kind},
    }
