"""Defines the types of figures, and rounding.

A figure is plotly's JSON. `meta.colour` names a CSS variable, so that the page can choose colours
for light, dark and paper. `reports.figures.styles` gives each variant its style. `meta.variant` is
the variant of a trace: the page draws highlighted variants in their colours and the others thin and
grey.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, NotRequired, TypedDict

import numpy as np
import numpy.typing as npt

from reports.statistics.bootstrap import Estimate

SPREAD_FOR_LOG = 6.0
"""An axis is logarithmic at first if its largest value is this many times its smallest."""
DIGITS = 4
"""Significant digits of a drawn number; finer than a pixel."""


Trace = dict[str, Any]
"""One trace of plotly.js, of type `scatter` or `bar`."""


class Spec(TypedDict):
    """One drawing, for plotly and for the page."""

    data: list[Trace]
    layout: dict[str, Any]
    alt: str
    """Text for readers who cannot see the figure."""
    value: str
    """The axis of the values: "x" or "y"."""
    height: NotRequired[int]
    """Height in pixels. By default the page decides, from `rows` if there are any."""
    note: NotRequired[str]
    """A sentence beneath the figure."""
    labelled: NotRequired[bool]
    """Whether the names of highlighted lines are at their right ends."""
    rows: NotRequired[list[list[str]]]
    """Variant and label from top to bottom, if each variant has its own row."""
    complete: NotRequired[bool]
    """Whether rows stay while the reader hides the variants that are not highlighted."""


class KeyEntry(NamedTuple):
    colour: str
    dash: str
    label: str


@dataclass(frozen=True, slots=True)
class Figure:
    id: str
    title: str
    specs: Mapping[str, Spec]
    """Specs by the reader's choice of a rate or a cell. The key is "" if there is no choice."""
    log: bool | None
    """Whether the value axis is logarithmic initially; None if it cannot be changed."""
    choice: str = ""
    """The id of the chooser that selects the spec; figures can share one. "" for none."""
    first: str = ""
    """The key of the spec that is shown initially."""
    key: tuple[KeyEntry, ...] = ()
    terms: tuple[str, ...] = ()
    """Terms of the glossary that the page links beneath the figure."""

    @property
    def spec(self) -> Spec:
        """The spec that is shown initially."""
        return self.specs[self.first]


def without(id: str, figures: Sequence[Figure], sentence: str) -> str | None:
    """Return the sentence if no figure has the id."""
    return None if any(figure.id == id for figure in figures) else sentence


def plain(text: str) -> str:
    """Escape text for plotly, which interprets tags in labels and `%{…}` in hover texts."""
    return html.escape(text).replace("%{", "&#37;{")


def number(value: float) -> float | None:
    return None if math.isnan(value) else value


def numbers(values: Iterable[float] | npt.NDArray[Any]) -> list[float | None]:
    """Round to significant digits. NaN becomes a gap in the line."""
    return [None if math.isnan(v) else float(f"{v:.{DIGITS}g}") for v in values]


def bars(*values: Estimate) -> dict[str, Any]:
    """Draw the intervals of the values, one per point of a trace, without ends."""
    return {
        "type": "data",
        "symmetric": False,
        "array": [value.high - value.value for value in values],
        "arrayminus": [value.value - value.low for value in values],
        "thickness": 1.5,
        "width": 0,
    }


def scatter(
    x: Sequence[Any],
    y: Sequence[Any],
    mode: str,
    colour: str,
    kind: str,
    *,
    variant: str = "",
    hover: str = "",
    **fields: Any,
) -> Trace:
    """Draw points, lines or both. `kind` tells the page what they are, `variant` whose; `hover` is
    plotly's template of the hover text, "" for none."""
    return {
        "type": "scatter",
        **({"name": plain(variant)} if variant else {}),
        "x": x,
        "y": y,
        "mode": mode,
        **({"hovertemplate": f"{hover}<extra></extra>"} if hover else {"hoverinfo": "skip"}),
        "meta": {"colour": colour, "kind": kind} | ({"variant": variant} if variant else {}),
        **fields,
    }


def line(
    x: Sequence[Any],
    y: Sequence[Any],
    colour: str,
    dash: str,
    *,
    width: float = 2,
    shape: str = "linear",
    variant: str = "",
    hover: str = "",
    **fields: Any,
) -> Trace:
    look = {"width": width, "dash": dash, "shape": shape}
    return scatter(x, y, "lines", colour, "line", variant=variant, hover=hover, line=look, **fields)


def band(
    x: Sequence[Any], low: Sequence[Any], high: Sequence[Any], colour: str, variant: str
) -> Trace:
    """Draw intervals as a closed polygon."""
    around = [*x, *reversed(x)], [*high, *reversed(low)]
    fill: Trace = {"fill": "toself", "line": {"width": 0}}
    return scatter(*around, "lines", colour, "band", variant=variant, **fill)


def stacked(
    part: str, colour: str, values: Sequence[Any], rows: list[str], text: list[str]
) -> Trace:
    """Draw a part of the stacked bars of variants. `text` appears on hovering over it."""
    return {
        "type": "bar",
        "orientation": "h",
        "name": part,
        "x": values,
        "y": rows,
        "text": text,
        "textposition": "none",
        "hovertemplate": "%{text}<extra></extra>",
        "meta": {"colour": colour, "variants": rows, "kind": "part"},
    }


def dot(
    row: str, x: float | None, interval: Estimate | None, colour: str, marker: Trace, hover: str
) -> Trace:
    """Draw the point of a row with its interval. `row` is the variant that the page highlights."""
    error: Trace = {} if interval is None else {"error_x": bars(interval)}
    return scatter(
        *([x], [row], "markers", colour, "dot"),
        variant=row,
        hover="%{text}",
        text=[hover],
        marker={**marker, "line": {"width": 1.5}},
        **error,
    )


def rule(axis: str, value: float, width: float = 1, dash: str = "dot") -> dict[str, Any]:
    """Draw a line across the figure at a value of an axis, "x" or "y"."""
    along = "y" if axis == "x" else "x"
    ends = {f"{along}ref": "paper", f"{along}0": 0, f"{along}1": 1}
    at = {f"{axis}0": value, f"{axis}1": value}
    return {"type": "line", **ends, **at, "line": {"width": width, "dash": dash}}


def distribution(
    values: Sequence[float], max_points: int
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Return sorted values and the share of values up to each; at most `max_points` quantiles."""
    ordered = np.sort(np.asarray(values, dtype=float))
    shares = np.arange(1, len(ordered) + 1) / max(len(ordered), 1)
    kept = thinned(len(ordered), max_points)
    return ordered[kept], shares[kept]


def thinned(count: int, max_points: int) -> npt.NDArray[Any]:
    """Return at most `max_points` evenly spaced indices below `count`, including both ends."""
    return np.unique(np.linspace(0, count - 1, min(max_points, count)).round().astype(int))


def wide_spread(values: Iterable[float]) -> bool:
    """Return whether an axis of these values is logarithmic at first."""
    positive = [v for v in values if v > 0]
    return bool(positive) and max(positive) / min(positive) >= SPREAD_FOR_LOG
