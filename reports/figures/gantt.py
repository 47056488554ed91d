"""Draws the Gantt chart of a cell, with a row per program, in order of arrival.

In: the turns of a cell. Out: a figure. A program arrives when its first turn is due, and an agent
when its process is started (`programs.jsonl`). Records have the duration of each part of a turn but
not its start, so parts are drawn in a fixed order.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from reports.figures.drawing import Figure, KeyEntry, Spec, Trace, plain
from reports.numbers import short
from reports.run_folder.lines import json_lines
from reports.run_folder.read import CellRun
from reports.run_folder.turns import read_turns
from servers.basics.phrasing import counted

MAX_PROGRAMS = 60
MAX_TURNS = 1500
MIN_SEGMENT_S = 1e-3
"""Shorter segments are not drawn."""
KINDS = {
    "queue": KeyEntry("part-requeue", "", "queued"),
    "load": KeyEntry("part-reload", "", "reload"),
    "server": KeyEntry("part-server", "", "server time (no breakdown)"),
    "prefill": KeyEntry("part-first-prefill", "", "prefill"),
    "decode_queue": KeyEntry("part-decode-queue", "", "queue of the decode engine"),
    "transfer": KeyEntry("part-transfer", "", "KV transfer"),
    "preempted": KeyEntry("part-preemption", "", "preempted, recomputing"),
    "decode": KeyEntry("part-decode", "", "decode"),
    "tool": KeyEntry("part-tool", "", "tool"),
    "subagents": KeyEntry("part-subagents", "", "waiting for sub-agents"),
}
"""Segments in the order in which they are drawn within a turn; the last two precede the turn."""
Floats = npt.NDArray[np.float64]


NO_TURNS = (
    "Programs are not drawn: the turns of these cells were not kept. bench sweep with --keep turns "
    "keeps them."
)
WITH_PAUSES = KINDS | {"tool": KeyEntry("part-tool", "", "tool or pause")}
"""The label for a workload that has pauses after turns without a tool."""


def gantt(cells: Mapping[str, CellRun], *, pauses: bool = False) -> Figure | None:
    """Draw `cells` by label; the first one is shown initially. `pauses`: whether gaps contain
    pauses."""
    kinds = WITH_PAUSES if pauses else KINDS
    specs = {label: _spec(label, cell, kinds) for label, cell in cells.items()}
    if not specs:
        return None
    drawn = {trace["meta"]["segment"] for spec in specs.values() for trace in spec["data"]}
    key = tuple(entry for kind, entry in kinds.items() if kind in drawn)
    terms = ("Prefill", "Decode", "Reload", "Preemption", "Tool gap")
    title, first = "Program by program", next(iter(specs))
    return Figure("gantt", title, specs, None, "gantt", first, key, terms)


def _spec(label: str, cell: CellRun, kinds: Mapping[str, KeyEntry]) -> Spec:
    turns = read_turns(cell)
    good = turns[turns["error"].isna()]
    order = _in_order(cell, good)
    shown, note = _shown(good, order)
    rows = pd.Series(np.arange(1, len(order) + 1), index=order)[shown["program_id"]].to_numpy()
    segments = _segments(shown)
    count = int(rows.max(initial=1))
    return {
        "data": [
            _bars(kind, entry, *segments[kind], rows, shown)
            for kind, entry in kinds.items()
            if kind in segments
        ],
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


def _in_order(cell: CellRun, turns: pd.DataFrame) -> pd.Index:
    arrival_s = turns.groupby("program_id")["scheduled_at_s"].min()
    for agent in json_lines(cell.folder / "programs.jsonl"):
        name, at_s = str(agent.get("program_id")), agent.get("arrival_s")
        if name in arrival_s.index and isinstance(at_s, int | float):
            arrival_s[name] = at_s
    return arrival_s.sort_values(kind="stable").index


def _shown(turns: pd.DataFrame, order: pd.Index) -> tuple[pd.DataFrame, str]:
    """Return the turns of the programs that arrive first, and a note on what is left out."""
    lengths = turns["program_id"].value_counts()[order].to_numpy()
    fit = int((lengths.cumsum() <= MAX_TURNS).sum())
    programs = max(1, min(MAX_PROGRAMS, fit))
    shown = turns[turns["program_id"].isin(order[:programs])]
    note = "Drag to zoom in, double-click to zoom out."
    if len(shown) > MAX_TURNS:
        shown = shown.nsmallest(MAX_TURNS, "scheduled_at_s", keep="first")
        note = f"The first {MAX_TURNS:,} of {counted(len(turns), 'turn')}. {note}"
    elif programs < len(order):
        note = f"The first {programs} of {counted(len(order), 'program')}. {note}"
    return shown, note


def _segments(turns: pd.DataFrame) -> dict[str, tuple[Floats, Floats]]:
    """Return starts and durations in seconds of the segments of each kind that occurs."""

    def known(*fields: str) -> Floats:
        return turns[list(fields)].fillna(0.0).sum(axis=1).to_numpy(dtype=float)

    lengths = {
        "queue": known("queue_s"),
        "load": known("load_s"),
        "prefill": known("prefill_s"),
        "decode_queue": known("decode_queue_s"),
        "transfer": known("transfer_s"),
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
    return {kind: own for kind, own in found.items() if (own[1] >= MIN_SEGMENT_S).any()}


BAR_HEIGHT = 0.78
"""Height of a bar in rows. By default, plotly uses the smallest distance between bars of a kind, so
the bars of a rare kind would cover other programs."""


def _bars(
    kind: str,
    entry: KeyEntry,
    begin_s: Floats,
    length_s: Floats,
    rows: npt.NDArray[Any],
    turns: pd.DataFrame,
) -> Trace:
    drawn = length_s >= MIN_SEGMENT_S
    names = turns["program_id"].to_numpy()[drawn]
    numbers = turns["turn"].to_numpy()[drawn]
    lengths = length_s[drawn].round(3).tolist()
    return {
        "type": "bar",
        "orientation": "h",
        "name": entry.label,
        "base": begin_s[drawn].round(3).tolist(),
        "x": lengths,
        "y": rows[drawn].tolist(),
        "width": BAR_HEIGHT,
        "customdata": lengths,
        "text": [
            f"{plain(short(name))}, turn {int(number)}"
            for name, number in zip(names, numbers, strict=True)
        ],
        "textposition": "none",
        "hovertemplate": f"<b>%{{text}}</b><br>{entry.label} for %{{customdata:,.4~r}} s, from"
        " %{base:,.6~r} s<extra></extra>",
        "meta": {"colour": entry.colour, "kind": "segment", "segment": kind},
    }
