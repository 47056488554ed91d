"""Computes the positions of an SVG drawing of virtual time against measurements.

Both axes are logarithmic and equal, so that points without error are on the diagonal. Lengths are
in units of the drawing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from tools.silicon.errors import Point

SIZE, LEFT, RIGHT, TOP, BOTTOM = 420, 52, 12, 10, 40
SLOTS = 8
"""Colours of GPUs in `report.css`, from `--s2` on."""
STEPS = (1, 2, 5)


def scatter(
    points: Sequence[Point],
    title: str,
    measured: Callable[[Point], float],
    virtual: Callable[[Point], float],
    limit: float,
) -> dict[str, Any]:
    """Return a panel in milliseconds with a band of ± `limit`. `points` must not be empty."""
    values = [1000 * of(point) for point in points for of in (measured, virtual)]
    low, high = math.log10(min(values)) - 0.05, math.log10(max(values)) + 0.05
    scale = (SIZE - LEFT - RIGHT) / (high - low)
    height = round(TOP + scale * (high - low) + BOTTOM)

    def x(ms: float) -> float:
        return round(LEFT + scale * (math.log10(ms) - low), 1)

    def y(ms: float) -> float:
        return round(height - BOTTOM - scale * (math.log10(ms) - low), 1)

    begin, end = 10**low, 10**high
    gpus = _slots(points)
    return {
        "title": title,
        "size": SIZE,
        "height": height,
        "left": LEFT,
        "right": SIZE - RIGHT,
        "top": TOP,
        "bottom": height - BOTTOM,
        "ticks": [(x(ms), y(ms), f"{ms:,g}") for ms in _ticks(begin, end)],
        "diagonal": (x(begin), y(begin), x(end), y(end)),
        "band": [
            f"{x(begin)},{y(begin * (1 + sign * limit))} {x(end)},{y(end * (1 + sign * limit))}"
            for sign in (1, -1)
        ],
        "dots": [
            {
                "x": x(1000 * measured(point)),
                "y": y(1000 * virtual(point)),
                "slot": gpus[point.hardware],
                "hollow": not point.dense,
                "text": _text(point, 1000 * measured(point), 1000 * virtual(point)),
            }
            for point in points
        ],
        "key": [(name, slot) for name, slot in gpus.items()],
        "alt": f"{title}: {len(points):,} measurements on the horizontal axis, virtual time on the "
        f"vertical axis, both from {min(values):,.3g} to {max(values):,.3g} ms",
    }


def _slots(points: Sequence[Point]) -> dict[str, str]:
    names = sorted({point.hardware for point in points})
    return {name: f"s{2 + index % SLOTS}" for index, name in enumerate(names)}


def _ticks(begin: float, end: float) -> list[float]:
    powers = range(math.floor(math.log10(begin)), math.ceil(math.log10(end)) + 1)
    ticks = [step * 10.0**power for power in powers for step in STEPS]
    inside = [ms for ms in ticks if begin <= ms <= end]
    return inside if len(inside) <= 9 else [ms for ms in inside if math.log10(ms).is_integer()]


def _text(point: Point, measured_ms: float, virtual_ms: float) -> str:
    return (
        f"{point.model}, {point.gpus} x {point.hardware}, {point.prompt_tokens} + "
        f"{point.output_tokens} tokens, {point.clients} clients: measured {measured_ms:,.3g} ms, "
        f"virtual {virtual_ms:,.3g} ms"
    )
