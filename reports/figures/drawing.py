"""What all figures of a page share: their form, the style of each variant, and numbers kept short.

A figure is plotly's JSON. Colours are names of CSS variables in `meta.colour`, which the page fills
in, for light, dark and paper. One style per variant in all figures: colour by policy, dash and
marker by variant, so that none is told by colour alone; the baseline is s0 (ink), bounds are s1
(grey), policies follow in the order of the sweep.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, NotRequired, TypedDict

import numpy as np
import numpy.typing as npt

MARKERS = (
    *("circle", "square", "diamond", "triangle-up", "triangle-down", "pentagon"),
    *("hexagon", "star", "hourglass", "bowtie"),
)
POLICY_SLOTS = 8
SPREAD_FOR_LOG = 6.0
"""From this ratio of the largest to the smallest value on, an axis starts out logarithmic."""
NAME_LETTERS = 24
DIGITS = 4
"""Significant, of a drawn number: finer than a pixel."""


class Style(NamedTuple):
    slot: int
    marker: str
    dash: str

    @property
    def colour(self) -> str:
        return f"s{self.slot}"


class Spec(TypedDict):
    """One drawing, for plotly and for the page."""

    data: list[dict[str, Any]]
    layout: dict[str, Any]
    alt: str
    """What a reader who cannot see the figure should know of it."""
    value: str
    """The axis of the values: "x" or "y"."""
    height: NotRequired[int]
    """Pixels, where it is not that of most figures or follows from `rows`."""
    note: NotRequired[str]
    """A sentence beneath the figure."""
    rows: NotRequired[list[list[str]]]
    """Variant and label, top first, where each variant has a row of its own."""


class KeyEntry(NamedTuple):
    colour: str
    dash: str
    label: str


@dataclass(frozen=True, slots=True)
class Figure:
    id: str
    title: str
    specs: Mapping[str, Spec]
    """By what the reader chooses, a rate or a cell; by "" where there is nothing to choose."""
    log: bool | None
    """Whether the value axis starts logarithmic; None where there is no choice."""
    choice: str = ""
    """The chooser that it follows, if any: its own id, or one that figures share."""
    first: str = ""
    """What is chosen at first."""
    key: tuple[KeyEntry, ...] = ()

    @property
    def spec(self) -> Spec:
        """As first shown."""
        return self.specs[self.first]


def styles(variants: Sequence[Mapping[str, Any]], baseline: str) -> dict[str, Style]:
    """By name, for the variants of a sweep in its order."""
    base_policy = next((v.get("policy") for v in variants if v["name"] == baseline), None)
    slots: dict[Any, int] = {base_policy: 0}
    found: dict[str, Style] = {}
    for place, variant in enumerate(variants):
        policy = variant.get("policy", variant["name"])
        if variant.get("bound"):
            found[variant["name"]] = Style(1, "x", "dot")
            continue
        slot = slots.setdefault(policy, 2 + (len(slots) - 1) % POLICY_SLOTS)
        dash = "dash" if variant.get("offload") else "solid"
        found[variant["name"]] = Style(slot, MARKERS[place % len(MARKERS)], dash)
    return found


def plain(text: str) -> str:
    """For plotly, which reads tags in what it writes, and `%{…}` in what it shows on hover."""
    return html.escape(text).replace("%{", "&#37;{")


def short(name: str) -> str:
    return name if len(name) <= NAME_LETTERS else f"…{name[1 - NAME_LETTERS :]}"


def number(value: float) -> float | None:
    return None if math.isnan(value) else value


def numbers(values: Iterable[float] | npt.NDArray[Any], digits: int = DIGITS) -> list[float | None]:
    """Rounded to significant digits; NaN becomes a gap in the line."""
    return [None if math.isnan(v) else float(f"{v:.{digits}g}") for v in values]


def distribution(values: Sequence[float], most: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Values and the share of all that are no larger: each one, or `most` quantiles."""
    ordered = np.sort(np.asarray(values, dtype=float))
    shares = np.arange(1, len(ordered) + 1) / max(len(ordered), 1)
    if len(ordered) <= most:
        return ordered, shares
    kept = thinned(len(ordered), most)
    return ordered[kept], shares[kept]


def thinned(count: int, most: int) -> npt.NDArray[Any]:
    """Places of so many at the most, evenly spread, the first and the last among them."""
    return np.unique(np.linspace(0, count - 1, min(most, count)).round().astype(int))


def wide_spread(values: Iterable[float]) -> bool:
    """Whether an axis of these values starts out logarithmic."""
    positive = [v for v in values if v > 0]
    return bool(positive) and max(positive) / min(positive) >= SPREAD_FOR_LOG
