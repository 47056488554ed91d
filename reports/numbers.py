"""Formats numbers for tables; `servers.basics.phrasing` has times, factors and shares."""

from __future__ import annotations

import math

DASH = "–"
"""A value that does not exist."""


def digits(value: float) -> str:
    """Format with three significant digits."""
    return DASH if math.isnan(value) else f"{value:.3g}"


def whole(value: float) -> str:
    return DASH if math.isnan(value) else f"{int(value):,}"


def limits(low: float, high: float) -> str:
    """Format the limits of an interval; NaN if there is none."""
    return DASH if math.isnan(low) else f"{low:.3g}–{high:.3g}"
