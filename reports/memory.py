"""Cells in; how full each one's KV cache was over time, and how many turns waited and ran, out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from reports.drawing import Figure, KeyEntry, Spec
from reports.load import Cell

POINTS = 150
KEY = (
    KeyEntry("part-decode", "", "blocks held by turns"),
    KeyEntry("part-reload", "", "blocks pinned between turns"),
    KeyEntry("part-first-queue", "", "turns waiting"),
    KeyEntry("part-first-prefill", "dash", "turns running"),
)
ABOVE, BELOW = [0.46, 1.0], [0.0, 0.34]
"""Shares of the height: blocks, turns."""


def memory(cells: Mapping[str, Cell]) -> Figure | None:
    """`cells` by what the reader is told, the first shown first. None where no cell tells: a live
    engine does not."""
    specs = {label: _spec(label, cell) for label, cell in cells.items() if _usage(cell)}
    if not specs:
        return None
    title = "Memory and turns over time"
    return Figure("memory", title, specs, None, "memory", next(iter(specs)), KEY)


def _usage(cell: Cell) -> list[Any]:
    return (cell.done or {}).get("usage") or []


def _spec(label: str, cell: Cell) -> Spec:
    usage = np.asarray(_usage(cell), dtype=float)
    kept = np.unique(np.linspace(0, len(usage) - 1, min(POINTS, len(usage))).round().astype(int))
    t, used, pinned, waiting, running = usage[kept].T
    x = [round(float(v), 2) for v in t]
    blocks = (cell.config.get("profile") or {}).get("kv_blocks")
    held = [
        _area(x, used - pinned, 0, "blocks held by turns"),
        _area(x, pinned, 1, "blocks pinned between turns"),
    ]
    turns = [_line(x, waiting, 2, "turns waiting"), _line(x, running, 3, "turns running")]
    return {
        "data": [*held, *turns],
        "layout": {
            "xaxis": {"title": {"text": "seconds"}, "anchor": "y2"},
            "yaxis": {
                "title": {"text": "KV blocks"},
                "domain": ABOVE,
                "range": [0, 1.04 * (blocks or max(used.max(), 1))],
            },
            "yaxis2": {"title": {"text": "turns"}, "domain": BELOW, "rangemode": "tozero"},
            "shapes": [_ceiling(blocks)] if blocks else [],
        },
        "alt": f"Areas over time, {label}: KV blocks held by turns and by pins, at most"
        f" {int(used.max()):,}{f' of {blocks:,}' if blocks else ''}; below, lines of the turns that"
        f" wait, at most {int(waiting.max()):,}, and run, at most {int(running.max()):,}.",
        "value": "y",
        "height": 460,
        "note": f"{f'The cache has {blocks:,} blocks; what' if blocks else 'What'} is neither held"
        " nor pinned holds KV that may be evicted, or nothing. Sampled when turns end.",
    }


def _area(x: list[float], blocks: np.ndarray, entry: int, what: str) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines",
        "line": {"width": 1},
        "stackgroup": "blocks",
        "hoveron": "points",
        "x": x,
        "y": blocks.astype(int).tolist(),
        "hovertemplate": f"%{{y:,}} {what}<br>at %{{x:,.5~r}} s<extra></extra>",
        "meta": {"colour": KEY[entry].colour, "kind": "area"},
    }


def _line(x: list[float], turns: np.ndarray, entry: int, what: str) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines",
        "line": {"width": 1.75, "dash": KEY[entry].dash or "solid"},
        "x": x,
        "y": turns.astype(int).tolist(),
        "yaxis": "y2",
        "hovertemplate": f"%{{y:,}} {what}<br>at %{{x:,.5~r}} s<extra></extra>",
        "meta": {"colour": KEY[entry].colour, "kind": "line"},
    }


def _ceiling(blocks: int) -> dict[str, Any]:
    """The size of the cache, over the whole width."""
    return {
        "type": "line",
        "xref": "paper",
        "x0": 0,
        "x1": 1,
        "y0": blocks,
        "y1": blocks,
        "line": {"width": 1, "dash": "dot"},
    }
