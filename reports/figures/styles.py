"""Gives each variant its colour, marker and dash, the same on every page, and builds the legend.

In: names of variants. Out: styles. A style depends on the name only and not on the other variants
of the run, with one exception: policies that are not part of Turnstile, and variants with
arguments, take the style that a digest of their name selects, or the next one if another variant of
the page has it.

- The policy decides the colour. `fcfs` is s0 (ink), references are s1 (grey), and the others follow
  in the order of the registry, starting over after the last colour. The colours are in
  `reports/templates/report.css`. They can be distinguished with any kind of colour blindness.
- The policy also decides the marker, so that colour is never the only difference. Policies that
  share a colour have different markers.
- A line is dashed with an offload tier, and dotted for a reference.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from reports.statistics.points import Point
from servers.records.sweep import VariantRecord
from servers.variants import FORM, LMCACHE, POLICIES, REFERENCES, SECOND

MARKERS = (
    *("circle", "square", "diamond", "triangle-up", "triangle-down", "pentagon"),
    *("hexagon", "star", "hourglass", "bowtie", "cross"),
)
INK, GREY, FIRST_COLOUR = 0, 1, 2
COLOURS = 10
"""Number of colours besides ink and grey."""
SHIFT = 3
"""Number of markers between policies of one colour; not a divisor of the number of markers."""
_STOCK, *_PUBLISHED = (name for name in POLICIES.built_in if name not in REFERENCES)
OURS = {
    _STOCK: (INK, 0),
    **{
        base: (FIRST_COLOUR + place % COLOURS, SHIFT * (place // COLOURS))
        for place, base in enumerate((LMCACHE, *_PUBLISHED))
    },
}
"""The colour of each of Turnstile's policies, and how many markers separate it from the first one
with this colour."""
Choice = TypeVar("Choice")
DASHES = {"": "solid", "+": "dash", "+native": "dashdot"}


class Style(NamedTuple):
    slot: int
    marker: str
    dash: str

    @property
    def colour(self) -> str:
        """The CSS variable of the colour."""
        return f"s{self.slot}"


def styles(variants: Iterable[VariantRecord]) -> dict[str, Style]:
    rows = list(variants)
    slots = _slots([row.name for row in rows])
    found: dict[str, Style] = {}
    for row in rows:
        name = row.name
        base, arguments, tier = _parts(name)
        if row.reference or base in REFERENCES:
            found[name] = Style(GREY, "cross" if base == "unlimited-kv" else "x", "dot")
            continue
        slot, (_, shift) = slots[base], OURS.get(base, (0, 0))
        marker = MARKERS[(slot if slot == INK else slot - 1 + shift) % len(MARKERS)]
        if arguments:
            used = {marker, *(style.marker for style in found.values() if style.slot == slot)}
            marker = _preferred(MARKERS, base + arguments, used)
        found[name] = Style(slot, marker, DASHES["+" if base == LMCACHE else tier])
    return found


def _slots(names: Sequence[str]) -> dict[str, int]:
    bases = dict.fromkeys(_parts(name)[0] for name in names)
    found = {base: OURS[base][0] for base in bases if base in OURS}
    for base in bases:
        if base not in found:
            slots = range(FIRST_COLOUR, FIRST_COLOUR + COLOURS)
            found[base] = _preferred(slots, base, found.values())
    return found


def _parts(name: str) -> tuple[str, str, str]:
    first = name.removesuffix(SECOND)
    form = FORM.fullmatch(first)
    if form is None:
        return name, "", ""
    return form[1], (form[2] or "") + name.removeprefix(first), form[3] or ""


def _preferred(choices: Sequence[Choice], text: str, used: Collection[Choice]) -> Choice:
    """Return the choice that a digest of the text selects, or the next unused one."""
    first = zlib.crc32(text.encode()) % len(choices)
    ordered = [*choices[first:], *choices[:first]]
    return next((choice for choice in ordered if choice not in used), ordered[0])


MAX_ALL_HIGHLIGHTED = 6
"""If there are at most this many variants, all are highlighted initially."""
BEST_HIGHLIGHTED = 3
"""Otherwise this many of the best are highlighted, with the baseline, the winner and references."""
MAX_ALL_SHOWN = 16
"""If there are more variants than this, the others are hidden initially."""
LINES = {"solid": "", "dash": "5 3", "dashdot": "6 2 1.5 2", "dot": "1.5 2.5"}

MARKER_PATHS = {
    "circle": "M17 3a4 4 0 1 0 .01 0z",
    "square": "M13.5 3.5h7v7h-7z",
    "diamond": "M17 2l5 5-5 5-5-5z",
    "triangle-up": "M17 2.5l4.5 8h-9z",
    "triangle-down": "M17 11.5l4.5-8h-9z",
    "pentagon": "M17 2.5l4.7 3.4-1.8 5.6h-5.8l-1.8-5.6z",
    "hexagon": "M17 2l4.3 2.5v5l-4.3 2.5-4.3-2.5v-5z",
    "star": "M17 1.5l1.5 3.8 4 .3-3 2.6 1 4-3.5-2.2-3.5 2.2 1-4-3-2.6 4-.3z",
    "hourglass": "M13 3h8l-8 8h8z",
    "bowtie": "M13 3l8 8v-8l-8 8z",
    "cross": "M15.7 3h2.6v2.7h2.7v2.6h-2.7v2.7h-2.6v-2.7h-2.7v-2.6h2.7z",
    "x": "M14 2.5l3 3 3-3 1.5 1.5-3 3 3 3-1.5 1.5-3-3-3 3-1.5-1.5 3-3-3-3z",
}
"""SVG paths of the markers, in a box of 34 by 14."""


class Legend(NamedTuple):
    entries: list[dict[str, Any]]
    """The highlighted variants first."""
    is_all_highlighted: bool
    hides_others: bool
    """Whether the variants that are not highlighted are hidden initially."""


def fastest(points: Sequence[Point], load: str | None) -> list[str]:
    """Return the variants at `load`, except references and unstable ones, the fastest first."""
    here = [
        p for p in points if p.load == load and not (p.reference or p.unstable or p.failed_gates)
    ]
    return [p.variant for p in sorted(here, key=lambda p: p.jct_mean_s.value)]


def highlighted(
    names: Collection[str], strong: Collection[str], best_first: Sequence[str]
) -> set[str]:
    """Return the variants to highlight initially: all if they are few, else `strong` and the first
    of `best_first`."""
    if len(names) <= MAX_ALL_HIGHLIGHTED:
        return {*names}
    return {*names} & {*strong, *best_first[:BEST_HIGHLIGHTED]}


def legend(
    names: Sequence[str],
    style: Mapping[str, Style],
    chosen: Collection[str],
    strong: Collection[str] = (),
) -> Legend:
    """Return the legend of `names`. `chosen` are highlighted initially; `strong` are the main
    variants of a report."""
    entries = [
        {
            "name": name,
            "slot": style[name].slot,
            "path": MARKER_PATHS[style[name].marker],
            "dashes": LINES[style[name].dash],
            "strong": name in strong,
            "highlighted": name in chosen,
        }
        for name in sorted(names, key=lambda name: name not in chosen)
    ]
    return Legend(entries, set(names) <= set(chosen), len(names) > MAX_ALL_SHOWN)
