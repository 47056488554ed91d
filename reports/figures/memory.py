"""Draws the use of the KV cache and the offload tiers over time, and waiting and running turns,
and how evenly replicas use their KV memory.

In: cells. Out: a figure; only cells in virtual time have the data.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from reports.figures.drawing import Figure, KeyEntry, Spec, Trace, line, rule, scatter, thinned
from reports.run_folder.read import CellRun
from servers.policies.unlimited_kv import KV_BLOCKS

NO_MEMORY = "Memory over time is not drawn: only virtual time records it."
MAX_POINTS = 150
KEY = (
    KeyEntry("part-decode", "", "blocks held by turns"),
    KeyEntry("part-reload", "", "blocks pinned between turns"),
    KeyEntry("part-first-queue", "", "turns waiting"),
    KeyEntry("part-first-prefill", "dash", "turns running"),
)
TIERS = (
    KeyEntry("part-recomputed-prefill", "", "blocks in DRAM"),
    KeyEntry("part-preemption", "dash", "blocks on SSD"),
)
ABOVE, BELOW = [0.46, 1.0], [0.0, 0.34]
"""Vertical ranges of the panels, as shares of the height: blocks, turns."""
WITH_TIERS = [0.6, 1.0], [0.0, 0.2], [0.28, 0.52]
"""The same with a panel of the blocks off the device: blocks, turns, off device."""


def memory(cells: Mapping[str, CellRun]) -> Figure | None:
    """Draw `cells` by label; the first one is shown initially. None if no cell has the data."""
    specs = {label: _spec(label, cell) for label, cell in cells.items() if cell.done.usage}
    if not specs:
        return None
    title = "Memory and turns over time"
    tiered = any("yaxis3" in spec["layout"] for spec in specs.values())
    key = (*KEY, *TIERS) if tiered else KEY
    terms = ("KV cache", "Pin", "Tier", "Turn")
    return Figure("memory", title, specs, None, "memory", next(iter(specs)), key, terms)


def _spec(label: str, cell: CellRun) -> Spec:
    usage = np.asarray(cell.done.usage, dtype=float)
    t, used, pinned, waiting, running, *tiers = usage[thinned(len(usage), MAX_POINTS)].T
    x = [round(float(v), 2) for v in t]
    blocks = blocks_of(cell)
    held = [
        _area(x, used - pinned, 0, "blocks held by turns"),
        _area(x, pinned, 1, "blocks pinned between turns"),
    ]
    turns = [_line(x, waiting, KEY[2], "y2"), _line(x, running, KEY[3], "y2")]
    away = [
        _line(x, tier, entry, "y3") for tier, entry in zip(tiers, TIERS, strict=False) if tier.any()
    ]
    off_device = {"title": {"text": "off device"}, "rangemode": "tozero"}
    above, below, *between = WITH_TIERS if away else (ABOVE, BELOW)
    most = f"at most {int(used.max()):,}{f' of {blocks:,}' if blocks else ''}"
    most += "".join(f", {what}, at most {count:,}" for what, count in _most(tiers))
    return {
        "data": [*held, *turns, *away],
        "layout": {
            "xaxis": {"title": {"text": "seconds"}, "anchor": "y2"},
            "yaxis": {
                "title": {"text": "KV blocks"},
                "domain": above,
                "range": [0, 1.04 * (blocks or max(used.max(), 1))],
            },
            "yaxis2": {"title": {"text": "turns"}, "domain": below, "rangemode": "tozero"},
            **({"yaxis3": off_device | {"domain": between[0]}} if between else {}),
            "shapes": [rule("y", blocks)] if blocks else [],
        },
        "alt": f"Areas over time, {label}: KV blocks held by turns and by pins, {most}; below,"
        f" lines of waiting turns, at most {int(waiting.max()):,}, and running turns, at most"
        f" {int(running.max()):,}.",
        "value": "y",
        "height": 560 if away else 460,
        "note": f"{f'The cache has {blocks:,} blocks; what' if blocks else 'What'} is neither held"
        " nor pinned is free or holds KV that may be evicted. Sampled when turns end.",
    }


def blocks_of(cell: CellRun) -> int:
    """Return the size of the cache; 0 if it is unknown or unlimited."""
    blocks = cell.done.kv_blocks or cell.config.profile.kv_blocks or 0
    return blocks if blocks < KV_BLOCKS else 0


def _area(x: list[float], blocks: np.ndarray, entry: int, what: str) -> Trace:
    return scatter(
        *(x, blocks.astype(int).tolist(), "lines", KEY[entry].colour, "area"),
        hover=f"%{{y:,}} {what}<br>at %{{x:,.5~r}} s",
        name=what,
        line={"width": 1},
        stackgroup="blocks",
        hoveron="points",
    )


def _line(x: list[float], values: np.ndarray, entry: KeyEntry, axis: str = "y") -> Trace:
    return line(
        *(x, values.astype(int).tolist(), entry.colour, entry.dash or "solid"),
        width=1.75,
        hover=f"%{{y:,}} {entry.label}<br>at %{{x:,.5~r}} s",
        name=entry.label,
        yaxis=axis,
    )


def _most(tiers: list[np.ndarray]) -> list[tuple[str, int]]:
    """Return the name and the largest number of blocks of each tier that was used."""
    named = zip(TIERS, tiers, strict=False)
    return [(entry.label, int(tier.max())) for entry, tier in named if tier.any()]


REPLICA_KEY = (
    KeyEntry("part-decode", "", "blocks, mean over replicas"),
    KeyEntry("part-first-queue", "", "blocks of the fullest replica"),
    KeyEntry("part-reload", "dash", "blocks of the emptiest replica"),
)


def replica_memory(cells: Mapping[str, CellRun]) -> Figure | None:
    """Draw `cells` by label; the first one is shown initially. None if no cell has the data."""
    sampled = {label: cell for label, cell in cells.items() if cell.done.replica_blocks}
    if not sampled:
        return None
    specs = {label: _replica_spec(label, cell) for label, cell in sampled.items()}
    terms = ("KV cache", "Replica", "Router")
    title = "Memory of the replicas over time"
    return Figure(
        "replica-memory", title, specs, None, "memory", next(iter(specs)), REPLICA_KEY, terms
    )


def _replica_spec(label: str, cell: CellRun) -> Spec:
    usage = cell.done.usage or []
    kept = thinned(len(usage), MAX_POINTS)
    t = np.asarray(usage, dtype=float)[kept, 0]
    blocks = np.asarray(cell.done.replica_blocks, dtype=float)[kept]
    size = blocks_of(cell) // cell.config.replica_count
    x = [round(float(v), 2) for v in t]
    lines = (blocks.mean(axis=1), blocks.max(axis=1), blocks.min(axis=1))
    return {
        "data": [
            _line(x, values.round(), entry)
            for values, entry in zip(lines, REPLICA_KEY, strict=True)
        ],
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
