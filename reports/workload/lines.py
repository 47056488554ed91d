"""Draws curves of a trace and of the packs, for the figures of a workload."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from reports.figures.drawing import Trace, line, numbers, plain
from reports.figures.styles import FIRST_COLOUR, INK, MARKERS, Style
from reports.numbers import short
from reports.workload.compared import Compared

MAX_POINTS = 120


def workload_styles(compared: Compared) -> dict[str, Style]:
    """Return ink for the trace, and a colour for each pack, the same on all pages."""
    packs = sorted(pack.name for pack in compared.packs)
    styles = {
        name: Style(FIRST_COLOUR + k, MARKERS[k % len(MARKERS)], "dash")
        for k, name in enumerate(packs)
    }
    return {compared.trace.name: Style(INK, "circle", "solid"), **styles}


def survival(values: Sequence[float]) -> tuple[list[float | None], list[float | None]]:
    """Return values and the share of values that are at least as large.

    All of the largest values are kept, and an even selection of the others. Values of 0 are left
    out, since axes are logarithmic.
    """
    ordered = np.sort(np.asarray(values, dtype=float))[::-1]
    positive = int((ordered > 0).sum())
    if not positive:
        return [], []
    points = min(MAX_POINTS // 2, positive)
    chosen = [np.geomspace(1, positive, points), np.linspace(1, positive, points)]
    ranks = np.unique(np.concatenate(chosen).round().astype(int))[::-1]
    return numbers(ordered[ranks - 1]), numbers(ranks / len(ordered))


def curve(
    name: str,
    values: Sequence[float],
    look: Style,
    what: str,
    *,
    variant: bool = True,
    left: float | None = None,
) -> Trace:
    """Draw a survival curve, from `left` on. `what` describes the values in the hover text;
    `variant`: whether the reader can highlight the curve."""
    x, y = survival(values)
    if left is not None and x and x[0] is not None and left < x[0]:
        x, y = [left, *x], [y[0], *y]
    return line(
        *(x, y, look.colour, look.dash),
        shape="vh",
        variant=name if variant else "",
        hover=f"<b>{plain(short(name))}</b><br>%{{y:.2~p}} {what}",
        name=plain(name),
    )
