"""Writes docs/reference/step-times.svg: steps of one GPU and model in the tables and in profiles.

make profiles

Left: prompts. Right: decode steps. Points are the tables', solid lines the shipped profile, dashed
lines the analytic one, all without the CPU time between steps. Times in milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import log

from harness.calibrate.operator_tables import Reach, evaluate, open_tables
from servers.profiles import Profile
from servers.profiles.measured import DecodeTimes, PrefillTimes
from servers.profiles.reference_steps import PS_PER_MS
from tools.step_times_page import without_cpu_time

GPU, MODEL, GPUS = "h100", "llama-3.1-8b", 1
CACHED = {32768: (-1, -8, -12), 0: (5, 12, 16)}
CONTEXTS = {32768: (-1, -14, -12), 8192: (-1, 12, 5), 512: (4, 12, 42)}
"""Each with the place of its line's name: number of a point, and distance in pixels from it."""
POINTS_PER_LINE = 40
STYLE = """
  svg { --card: #fff; --ink: #1a1e23; --soft: #545d68; --grid: #e3e6e9; }
  svg { --c0: #0072b2; --c1: #c2410c; --c2: #00805a; }
  @media (prefers-color-scheme: dark) {
    svg { --card: #191d23; --ink: #e9ecef; --soft: #a5aeb9; --grid: #323942; }
    svg { --c0: #5cb3f5; --c1: #ff8a5c; --c2: #3fcf9e; }
  }
  text { font: 14px system-ui, sans-serif; fill: var(--soft); }
  .title { font-size: 16px; font-weight: 600; fill: var(--ink); }
  .card { fill: var(--card); }
  .grid { stroke: var(--grid); fill: none; }
  .line { fill: none; stroke: var(--c); stroke-width: 1.8; }
  .dashed { stroke-width: 1.4; stroke-dasharray: 5 4; }
  circle { fill: var(--card); stroke: var(--c); stroke-width: 1.8; }
  .name { fill: var(--c); }
  .c0 { --c: var(--c0); } .c1 { --c: var(--c1); } .c2 { --c: var(--c2); } .c { --c: var(--soft); }
"""


@dataclass(frozen=True, slots=True)
class Axis:
    """A logarithmic axis, drawn from pixel `begin` to pixel `end`."""

    low: float
    high: float
    ticks: Sequence[float]
    begin: int
    end: int

    def at(self, value: float) -> float:
        share = log(value / self.low) / log(self.high / self.low)
        return self.begin + share * (self.end - self.begin)


@dataclass(frozen=True, slots=True)
class Series:
    name: str
    points: Sequence[tuple[int, float]]
    """Sizes of a step, rising, and what the tables give for them."""
    step: Callable[[int], tuple[list[tuple[int, int]], list[int]]]
    """The arguments of `Profile.batch_ps` for a size."""
    name_at: tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Panel:
    title: str
    x_title: str
    x: Axis
    y: Axis
    series: Sequence[Series]

    def svg(self, ours: Profile, analytic: Profile) -> Iterator[str]:
        x, y = self.x, self.y
        yield _text(x.begin, y.end - 18, self.title, "title")
        for tick in x.ticks:
            at = x.at(tick)
            yield f'<path class="grid" d="M{at:.1f} {y.begin}V{y.end}"/>'
            yield _text(at, y.begin + 20, _short(tick), anchor="middle")
        for tick in y.ticks:
            at = y.at(tick)
            yield f'<path class="grid" d="M{x.begin} {at:.1f}H{x.end}"/>'
            yield _text(x.begin - 8, at + 5, f"{tick:,}", anchor="end")
        yield _text((x.begin + x.end) / 2, y.begin + 42, self.x_title, anchor="middle")
        for number, series in enumerate(self.series):
            yield f'<g class="c{number}">'
            yield self._line("line dashed", series, analytic)
            yield self._line("line", series, ours)
            for size, ms in series.points:
                yield f'<circle cx="{x.at(size):.1f}" cy="{y.at(ms):.1f}" r="3.6"/>'
            point, right, down = series.name_at
            size, ms = series.points[point]
            anchor = "end" if right < 0 else "start"
            yield _text(x.at(size) + right, y.at(ms) + down, series.name, "name", anchor)
            yield "</g>"

    def _line(self, kind: str, series: Series, profile: Profile) -> str:
        first, last = series.points[0][0], series.points[-1][0]
        ratio = (last / first) ** (1 / POINTS_PER_LINE)
        sizes = sorted({round(first * ratio**k) for k in range(POINTS_PER_LINE + 1)})
        at = [
            (self.x.at(n), self.y.at(profile.batch_ps(*series.step(n)) / PS_PER_MS)) for n in sizes
        ]
        return f'<path class="{kind}" d="M{"L".join(f"{x:.1f} {y:.1f}" for x, y in at)}"/>'


def picture() -> str:
    """Return the SVG. Needs the package of the tables; raises Unavailable without it."""
    times, tables = open_tables(GPU, MODEL, GPUS, None)
    prefill, decode, _ = evaluate(times, Reach.of(GPU, MODEL, GPUS))
    analytic, ours = without_cpu_time(GPU, MODEL, GPUS)
    prompts = Panel(
        "Prefill in one step, ms",
        "prompt tokens",
        Axis(512, 131072, (512, 2048, 8192, 32768, 131072), 62, 412),
        Axis(8, 12000, (10, 100, 1000, 10000), 350, 50),
        [_prompts(cached, [p for p in prefill if p.cached_tokens == cached]) for cached in CACHED],
    )
    decodes = Panel(
        "Decode step, ms",
        "decodes in the batch",
        Axis(1, 256, (1, 4, 16, 64, 256), 496, 846),
        Axis(5, 25, (5, 7, 10, 14, 20), 350, 50),
        [_decodes(context, [d for d in decode if d.context == context]) for context in CONTEXTS],
    )
    what = f"{MODEL} on {GPUS} x {GPU}"
    return "\n".join(
        [
            '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 860 440" role="img">',
            f"<title>Step times of {what}: operator tables and profiles</title>",
            f"<style>{STYLE}</style>",
            '<rect class="card" width="860" height="440" rx="8"/>',
            *prompts.svg(ours, analytic),
            *decodes.svg(ours, analytic),
            *_legend(f"{what}, vLLM {tables.engine_version}"),
            "</svg>",
            "",
        ]
    )


def _prompts(cached: int, found: Sequence[PrefillTimes]) -> Series:
    return Series(
        f"after {_short(cached)} cached" if cached else "nothing cached",
        [(each.tokens, each.seconds[0] * 1000) for each in found],
        lambda tokens: ([(tokens, cached)], []),
        CACHED[cached],
    )


def _decodes(context: int, found: Sequence[DecodeTimes]) -> Series:
    return Series(
        f"context {_short(context)}",
        [(each.batch, each.seconds[0] * 1000) for each in found],
        lambda batch: ([], [context] * batch),
        CONTEXTS[context],
    )


def _legend(what: str) -> Iterator[str]:
    y = 422
    yield f'<g class="c"><circle cx="67" cy="{y - 5}" r="3.6"/>'
    yield _text(78, y, "operator tables")
    yield f'<path class="line" d="M204 {y - 5}h28"/>'
    yield _text(238, y, "shipped profile")
    yield f'<path class="line dashed" d="M363 {y - 5}h28"/>'
    yield _text(397, y, "analytic profile")
    yield _text(846, y, what, anchor="end")
    yield "</g>"


def _text(x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> str:
    of_kind = f' class="{kind}"' if kind else ""
    return f'<text{of_kind} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{text}</text>'


def _short(tokens: float) -> str:
    return f"{tokens:,.0f}"


if __name__ == "__main__":
    print(picture(), end="")
