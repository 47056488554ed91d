"""Draws how evenly replicas use their KV memory over time.

In: cells with several replicas in virtual time. Out: a figure.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from reports.figures.drawing import Figure, KeyEntry, Spec, thinned
from reports.figures.memory import MAX_POINTS, blocks_of, line
from reports.metrics.routing import replicas_of
from reports.run_folder.read import CellRun

KEY = (
    KeyEntry("part-decode", "", "blocks, mean over replicas"),
    KeyEntry("part-first-queue", "", "blocks of the fullest replica"),
    KeyEntry("part-reload", "dash", "blocks of the emptiest replica"),
)


def replica_memory(cells: Mapping[str, CellRun]) -> Figure | None:
    """Draw `cells` by label; the first one is shown initially. None if no cell has the data."""
    sampled = {label: cell for label, cell in cells.items() if cell.done.replica_blocks}
    if not sampled:
        return None
    specs = {label: _spec(label, cell) for label, cell in sampled.items()}
    terms = ("KV cache", "Replica", "Router")
    title = "Memory of the replicas over time"
    return Figure("replica-memory", title, specs, None, "memory", next(iter(specs)), KEY, terms)


def _spec(label: str, cell: CellRun) -> Spec:
    usage = cell.done.usage or []
    kept = thinned(len(usage), MAX_POINTS)
    t = np.asarray(usage, dtype=float)[kept, 0]
    blocks = np.asarray(cell.done.replica_blocks, dtype=float)[kept]
    size = blocks_of(cell) // replicas_of(cell)
    x = [round(float(v), 2) for v in t]
    lines = (blocks.mean(axis=1), blocks.max(axis=1), blocks.min(axis=1))
    return {
        "data": [line(x, values.round(), entry) for values, entry in zip(lines, KEY, strict=True)],
        "layout": {
            "xaxis": {"title": {"text": "seconds"}},
            "yaxis": {
                "title": {"text": "KV blocks of a replica"},
                "range": [0, 1.04 * (size or max(blocks.max(), 1))],
            },
        },
        "alt": f"Lines over time, {label}: KV blocks in use on {blocks.shape[1]} replicas, on"
        f" average {blocks.mean():,.0f}{f' of {size:,}' if size else ''}; the fullest replica has"
        f" {lines[1].mean():,.0f} on average, the emptiest {lines[2].mean():,.0f}.",
        "value": "y",
        "height": 320,
        "note": f"{blocks.shape[1]} replicas{f' of {size:,} blocks each' if size else ''}. Which"
        " replica is fullest or emptiest changes over time. Sampled when turns end.",
    }
