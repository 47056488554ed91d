"""Formats numbers and names for tables and figures; `servers.basics.phrasing` has times, factors
and shares."""

from __future__ import annotations

import math

DASH = "–"
"""A value that does not exist."""
NAME_LETTERS = 30


def digits(value: float) -> str:
    """Format with three significant digits."""
    return DASH if math.isnan(value) else f"{value:.3g}"


def whole(value: float) -> str:
    return DASH if math.isnan(value) else f"{int(value):,}"


def short(name: str, letters: int = NAME_LETTERS) -> str:
    """Leave out the middle of a long name: a policy is at its start, a router at its end."""
    return name if len(name) <= letters else f"{name[: letters - 16]}…{name[-15:]}"
