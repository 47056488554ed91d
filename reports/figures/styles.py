"""Gives each variant its colour, marker and dash, the same on every page.

In: names of variants. Out: styles. A style depends on the name only and not on the other variants
of the run, with one exception: policies that are not part of Turnstile, and variants with
arguments, take the style that a digest of their name selects, or the next one if another variant of
the page has it.

- The policy decides the colour. `fcfs` is s0 (ink), references are s1 (grey),
  and the others follow in the order of the registry, starting over after the last colour. The
  colours are in `reports/templates/report.css`. They can be distinguished with any kind of colour
  blindness. - The policy also decides the marker, so that colour is never the only difference.
  Policies that share a colour have different markers.
- A line is dashed with an offload tier, and dotted for a reference.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple, TypeVar

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
OURS = (_STOCK, LMCACHE, *_PUBLISHED)
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
    """Return the styles by name, for the variants of a sweep."""
    rows = list(variants)
    slots = _slots([row.name for row in rows])
    found: dict[str, Style] = {}
    for row in rows:
        name = row.name
        base, arguments, tier = _parts(name)
        if row.reference or base in REFERENCES:
            found[name] = Style(GREY, "cross" if base == "unlimited-kv" else "x", "dot")
            continue
        slot = slots[base]
        marker = MARKERS[(slot if slot == INK else slot - 1 + _shift(base)) % len(MARKERS)]
        if arguments:
            used = {marker, *(style.marker for style in found.values() if style.slot == slot)}
            marker = _preferred(MARKERS, base + arguments, used)
        found[name] = Style(slot, marker, DASHES["+" if base == LMCACHE else tier])
    return found


def _slots(names: Sequence[str]) -> dict[str, int]:
    bases = dict.fromkeys(_parts(name)[0] for name in names)
    found = {base: _slot_of_ours(base) for base in bases if base in OURS}
    for base in bases:
        if base not in found:
            slots = range(FIRST_COLOUR, FIRST_COLOUR + COLOURS)
            found[base] = _preferred(slots, base, found.values())
    return found


def _slot_of_ours(base: str) -> int:
    place = OURS.index(base)
    return INK if place == 0 else FIRST_COLOUR + (place - 1) % COLOURS


def _shift(base: str) -> int:
    """Return how many markers separate a policy that reuses a colour from the first with it."""
    rounds = (OURS.index(base) - 1) // COLOURS if base in OURS else 0
    return SHIFT * rounds


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
