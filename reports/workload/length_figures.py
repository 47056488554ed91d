"""Draws how long jobs are: turns, prompts, tokens of a turn, and what prompts repeat.

In: a trace and the packs. Out: figures. In each, the trace and the packs are the variants that the
reader can highlight.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from reports.figures.drawing import (
    Figure,
    KeyEntry,
    Spec,
    Trace,
    band,
    numbers,
    plain,
    scatter,
    stacked,
    thinned,
)
from reports.figures.styles import Style
from reports.workload.compared import Compared, Described
from reports.workload.lines import MAX_POINTS, curve
from reports.workload.phrases import PACKS
from servers.basics.phrasing import counted, share
from traces import Program

Styles = dict[str, Style]
SHARE_AXIS = {"range": [0, 1.02], "tickformat": ".0%"}
MIN_SHARE = 0.1
"""A line of prompts ends where a smaller share of the jobs has that many turns."""
CHOICE = "tokens"


def turns_figure(compared: Compared, styles: Styles, source: str) -> Figure:
    lines = [
        curve(each.name, [len(job.turns) for job in each.jobs], styles[each.name],
              "of jobs have at least %{x:,} turns")
        for each in compared.all
    ]  # fmt: skip
    own = compared.trace.figures["turns"]
    spec: Spec = {
        "data": lines,
        "layout": {
            "xaxis": {"title": {"text": "turns of a job"}},
            "yaxis": {"title": {"text": "share of jobs with at least as many"}, **SHARE_AXIS},
        },
        "alt": f"Falling lines: the share of jobs with at least that many turns. This trace has"
        f" {own.mean:.1f} turns on average, {compared.packs[0].name} has"
        f" {compared.packs[0].figures['turns'].mean:.1f}.",
        "value": "x",
        "note": f"A turn is one request to the model; between turns a tool runs. A line that stays"
        f" high for long means long jobs. {source} {PACKS}",
    }
    return Figure("turns", "How many turns a job has", {"": spec}, True, terms=("Turn", "Job"))


def prompts_figure(compared: Compared, styles: Styles, source: str) -> Figure:
    data: list[Trace] = []
    for each in compared.all:
        growth = prompt_growth(each.jobs)
        kept = thinned(len(growth), MAX_POINTS)
        shown = [growth[k] for k in kept]
        if each is compared.trace:
            data.append(_band(each.name, shown, styles[each.name]))
        data.append(_line(each.name, shown, styles[each.name]))
    own = prompt_growth(compared.trace.jobs)
    spec: Spec = {
        "data": data,
        "layout": {
            "xaxis": {"title": {"text": "turn of the job"}},
            "yaxis": {"title": {"text": "prompt tokens"}, "rangemode": "tozero"},
        },
        "alt": f"Rising lines: the median prompt by turn. In this trace it has {own[0].median:,.0f}"
        f" tokens in the first turn, and {own[-1].median:,.0f} in turn {own[-1].turn}.",
        "value": "y",
        "labelled": True,
        "note": "Each prompt repeats what came before it, so prompts grow, and with them the memory"
        " that a job needs. Lines are medians; the grey band covers 80% of this trace's jobs. A"
        f" line ends where fewer than {share(MIN_SHARE)} of the jobs have that many turns, so its"
        f" end shows long jobs only. {source} {PACKS}",
    }
    return Figure("prompts", "How prompts grow", {"": spec}, True, terms=("Turn", "KV cache"))


class AtTurn(NamedTuple):
    """Prompt tokens over the jobs that have this turn."""

    turn: int
    low: float
    median: float
    high: float


def prompt_growth(jobs: Sequence[Program]) -> list[AtTurn]:
    """Return the prompts at each turn, while enough of the jobs have that many turns."""
    lengths = sorted((len(job.turns) for job in jobs), reverse=True)
    last = lengths[math.ceil(MIN_SHARE * len(jobs)) - 1]
    prompts: list[list[int]] = [[] for _ in range(last)]
    for job in jobs:
        for turn, own in zip(job.turns, prompts, strict=False):
            own.append(turn.prompt_tokens)
    return [
        AtTurn(number, *np.quantile(own, [0.1, 0.5, 0.9]).tolist())
        for number, own in enumerate(prompts, 1)
    ]


def _line(name: str, growth: Sequence[AtTurn], look: Style) -> Trace:
    mode = "lines" if len(growth) > 1 else "markers"
    x, y = [at.turn for at in growth], numbers([at.median for at in growth])
    return scatter(
        *(x, y, mode, look.colour, "line"),
        variant=name,
        hover=f"<b>{plain(name)}</b><br>turn %{{x}}: median %{{y:,.0f}} tokens",
        line={"width": 2, "dash": look.dash},
        marker={"symbol": look.marker, "size": 7},
    )


def _band(name: str, growth: Sequence[AtTurn], look: Style) -> Trace:
    low, high = numbers([at.low for at in growth]), numbers([at.high for at in growth])
    return band([at.turn for at in growth], low, high, look.colour, name)


def tokens_figure(compared: Compared, styles: Styles, source: str) -> Figure:
    def spec(values: Callable[[Described], list[float]], what: str, note: str) -> Spec:
        drawn = {each.name: own for each in compared.all if any(own := values(each))}
        return {
            "data": [
                curve(name, own, styles[name], "of turns have at least %{x:,} tokens")
                for name, own in drawn.items()
            ],
            "layout": {
                "xaxis": {"title": {"text": what}},
                "yaxis": {"title": {"text": "share of turns with at least as many"}, **SHARE_AXIS},
            },
            "alt": f"Falling lines: the share of turns with at least a given number of {what}.",
            "value": "x",
            "note": f"{note} {source} {PACKS}",
        }

    new = spec(
        _new_tokens,
        "new prompt tokens of a later turn",
        "The part of a prompt that does not repeat the turn before, mostly the output of a tool:"
        " the server must compute it in any case.",
    )
    output = spec(
        lambda each: [float(t.output_tokens) for job in each.jobs for t in job.turns],
        "output tokens of a turn",
        "The model generates them one by one, which takes most of a turn's time.",
    )
    specs = {"new in the prompt": new, "output": output}
    if not _new_tokens(compared.trace):
        del specs["new in the prompt"]
    return Figure(
        *("turn-tokens", "How much a turn adds", specs, True, CHOICE, next(iter(specs))),
        terms=("Prefill", "Decode"),
    )


def _new_tokens(each: Described) -> list[float]:
    return [float(after.new_tokens) for job in each.jobs for _, after in pairwise(job.turns)]


PARTS = (
    ("part-decode", "repeats the turn before"),
    ("part-first-prefill", "repeats other prompts"),
    ("part-requeue", "new"),
)
"""Colours of prompt tokens, in the order of `Reuse`."""


def reuse_figure(compared: Compared, source: str) -> Figure:
    names = [each.name for each in compared.all]
    shares = [[part / sum(each.reuse) for part in each.reuse] for each in compared.all]
    data: list[Trace] = [
        stacked(
            *(what, colour, numbers([own[k] for own in shares]), names),
            [f"<b>{plain(name)}</b><br>{what}: {own[k]:.1%}"
             for name, own in zip(names, shares, strict=True)],
        )
        for k, (colour, what) in enumerate(PARTS)
    ]  # fmt: skip
    own = compared.trace.reuse
    spec: Spec = {
        "data": data,
        "layout": {
            "barmode": "stack",
            "bargap": 0.34,
            "xaxis": {
                "title": {"text": "share of prompt tokens"}, "range": [0, 1.04],
                "tickvals": [0, 0.25, 0.5, 0.75, 1], "tickformat": ".0%",
            },
            "yaxis": {"type": "category", "automargin": True},
        },
        "alt": f"Stacked bars: what prompts repeat. Of this trace {own.bound:.1%} of the prompt"
        " tokens could be cache hits.",
        "value": "x",
        "rows": [[name, name] for name in names],
        "complete": True,
        "note": "With a cache that forgets nothing, only the new part"
        f" ({counted(own.new, 'token')} of {sum(own):,} in this trace) would be computed. A real"
        f" cache has less memory: schedulers differ in what they keep. {source} Bars of recipes:"
        " synthesised.",
    }  # fmt: skip
    key = tuple(KeyEntry(colour, "", what) for colour, what in PARTS)
    return Figure(
        "reuse", "How much of the prompts a cache could hold", {"": spec}, None, key=key,
        terms=("Prefix-cache hit", "Hit ratio"),
    )  # fmt: skip
