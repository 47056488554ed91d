"""Draws docs/agentx.svg, the picture in docs/reference/results.md, from docs/data/agentx.json:
`python -m tools.agentx_picture`.

A panel per model and machine has tokens per second and GPU against interactivity, with a line per
policy over the numbers of agents. Panels of a model share their vertical axis.
"""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from math import ceil, floor, log10
from operator import itemgetter
from typing import NamedTuple

from reports.figures.styles import MARKER_PATHS
from servers.basics.atomic import write_file
from servers.basics.phrasing import listed
from tools.agentx import HYBRID, Row, read_agentx
from tools.results_tables import DATA

FILE = DATA.parent / "agentx.svg"
WIDTH, HEIGHT = 252, 176
"""Of a panel, in pixels."""
LEFT, TOP, RIGHT, BELOW = 74, 84, 24, 54
COLUMNS = 3
TICKS = 4
INK, SOFT, GRID, GREY = "#191d22", "#545d68", "#ebedef", "#b4bac1"
MARKER_CENTRE = "-17 -7"


class Look(NamedTuple):
    colour: str
    marker: str


NAMED = {
    "fcfs": Look(INK, "circle"),
    "continuum": Look("#0072b2", "triangle-down"),
    "thunderagent": Look("#e69f00", "cross"),
    "infercept": Look("#009e73", "diamond"),
    "turnstile": Look("#d55e00", "triangle-up"),
    "lmcache": Look("#ae58e4", "square"),
}
"""The others are grey. Colours are those of Okabe and Ito, which all readers can distinguish."""


class Axis(NamedTuple):
    """An axis from 0 to a little above the largest number."""

    step: float
    end: float
    pixels: float

    def at(self, value: float) -> float:
        return value / self.end * self.pixels

    def ticks(self) -> list[float]:
        return [self.step * n for n in range(int(self.end / self.step) + 1)]


def axis(largest: float, pixels: float) -> Axis:
    rough = largest / TICKS
    power = 10 ** floor(log10(rough))
    step = next(f * power for f in (1, 2, 5, 10) if f * power >= rough)
    return Axis(step, largest * 1.06, pixels)


def picture(rows: Sequence[Row]) -> str:
    shown = [row for row in rows if row["model"] not in HYBRID]
    highest: dict[str, float] = {}
    panels: dict[tuple[str, str], list[Row]] = {}
    for row in shown:
        tokens, model = row["tokens_per_s_per_gpu"], row["model"]
        highest[model] = max(tokens, highest.get(model, tokens))
        panels.setdefault((model, row["machine"]), []).append(row)
    width = LEFT + COLUMNS * (WIDTH + RIGHT) - RIGHT + 20
    height = TOP + ceil(len(panels) / COLUMNS) * (HEIGHT + BELOW) - 8
    parts = [*_key(shown)]
    for place, ((model, machine), own) in enumerate(panels.items()):
        x = LEFT + place % COLUMNS * (WIDTH + RIGHT)
        y = TOP + place // COLUMNS * (HEIGHT + BELOW)
        axes = (
            axis(max(row["interactivity_p90"] for row in own), WIDTH),
            axis(highest[model], HEIGHT),
        )
        named = place % COLUMNS == 0, place >= len(panels) - COLUMNS
        parts += [
            f'<g transform="translate({x} {y})">',
            _text(0, -8, f"{model}, {machine}", font_weight="600"),
            *_grid(*axes, *named),
            *_lines(own, *axes),
            "</g>",
        ]
    inside = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}"'
        f' font-family="system-ui, sans-serif" font-size="12" fill="{INK}">\n'
        f'<rect width="100%" height="100%" fill="#fff"/>\n{inside}\n</svg>\n'
    )


def _key(rows: Sequence[Row]) -> Iterator[str]:
    agents = [str(number) for number in sorted({row["agents"] for row in rows})]
    others = {row["variant"] for row in rows} - {*NAMED}
    x = LEFT
    for name, look in NAMED.items():
        yield _line(f"M{x} 18h26", look.colour, 2)
        yield _mark(look, x + 13, 18)
        yield _text(x + 32, 22, name)
        x += 60 + 7 * len(name)
    yield _line(f"M{x} 18h26", GREY, 1.2)
    yield _text(x + 32, 22, f"{len(others)} others")
    says = f"Points of a line, from its lower right end: {listed(agents)} agents."
    says += " Up and to the right is better."
    yield _text(LEFT, 44, says, fill=SOFT)


def _grid(x: Axis, y: Axis, names_y: bool, names_x: bool) -> Iterator[str]:
    for value in y.ticks():
        at = round(HEIGHT - y.at(value), 1)
        yield _line(f"M0 {at}h{WIDTH}", GRID, 1)
        if names_y:
            yield _text(-6, at + 4, f"{value:,.0f}", text_anchor="end", fill=SOFT)
    for value in x.ticks():
        at = round(x.at(value), 1)
        yield _text(at, HEIGHT + 16, f"{value:g}", text_anchor="middle", fill=SOFT)
    if names_x:
        words = "interactivity P90, output tokens/s"
        yield _text(WIDTH / 2, HEIGHT + 34, words, text_anchor="middle")
    if names_y:
        turned = f"rotate(-90 -54 {HEIGHT / 2})"
        yield _text(-54, HEIGHT / 2, "tokens/s per GPU", text_anchor="middle", transform=turned)


def _lines(rows: Sequence[Row], x: Axis, y: Axis) -> Iterator[str]:
    lines: dict[str, list[tuple[float, float]]] = {}
    for row in sorted(rows, key=itemgetter("agents")):
        at = x.at(row["interactivity_p90"]), HEIGHT - y.at(row["tokens_per_s_per_gpu"])
        lines.setdefault(row["variant"], []).append((round(at[0], 1), round(at[1], 1)))
    for name, points in lines.items():
        if name not in NAMED:
            yield _line(_path(points), GREY, 1.2, name)
    for name, look in NAMED.items():
        yield _line(_path(lines[name]), look.colour, 2, name)
        yield from (_mark(look, *point) for point in lines[name])


def _path(points: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x} {y}" for x, y in points)


def _line(path: str, colour: str, width: float, name: str = "") -> str:
    title = f"<title>{html.escape(name)}</title>" if name else ""
    return f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="{width}">{title}</path>'


def _mark(look: Look, x: float, y: float) -> str:
    return (
        f'<path d="{MARKER_PATHS[look.marker]}" fill="{look.colour}"'
        f' transform="translate({x} {y}) translate({MARKER_CENTRE})"/>'
    )


def _text(x: float, y: float, text: str, **attributes: str) -> str:
    fields = "".join(f' {name.replace("_", "-")}="{v}"' for name, v in attributes.items())
    return f'<text x="{x:g}" y="{y:g}"{fields}>{html.escape(text)}</text>'


if __name__ == "__main__":
    write_file(FILE, picture(read_agentx()).encode())
