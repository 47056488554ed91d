"""Draws how jobs spend their time: its parts, the bubbles per program, the spread of JCTs.

In: jobs. Out: figures, which share one chooser of the load.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pandas as pd

from reports.figures.drawing import (
    Figure,
    KeyEntry,
    Spec,
    Trace,
    distribution,
    line,
    numbers,
    plain,
    scatter,
    stacked,
    wide_spread,
)
from reports.figures.styles import Style
from reports.metrics.waterfall import WATERFALL, WITH_PAUSES
from reports.numbers import short
from servers.basics.phrasing import counted, seconds, share

CHOICE = "load"
NO_BUBBLES = "Bubbles are not drawn: this server does not report how long turns queued."
MIN_RESIDUAL = 5e-4
"""Smaller residuals round to zero."""
MIN_PART = 5e-4
"""Parts with a smaller share of the longest mean JCT are not drawn."""
QUANTILES = 100
DRAWN_NUMBERS = 60_000
"""Most numbers in a figure, over all loads and variants; limits the points of a line."""
MIN_POINTS = 25
MAX_POINTS = 200

Picks = Mapping[str, Style]
Labels = Mapping[str, str]


def job_time(
    jobs: pd.DataFrame,
    style: Picks,
    emphasised: Sequence[str],
    load: str | None,
    *,
    steady: bool = False,
    pauses: bool = False,
) -> list[Figure]:
    """Draw `jobs`, which is `Results.jobs`. `load` is shown initially. `steady`: they are measured
    in steady state, where all seeds have equal weight. `pauses`: whether their tool time contains
    pauses."""
    if jobs.empty or load is None:
        return []
    by_load = {str(name): mine for name, mine in jobs.groupby("load", sort=False)}
    lines = len(jobs[["load", "variant"]].drop_duplicates())
    points = int(np.clip(DRAWN_NUMBERS // lines, MIN_POINTS, MAX_POINTS))

    def figure(
        name: str, title: str, specs: dict[str, Spec], log: bool | None, *terms: str
    ) -> Figure:
        return Figure(name, title, specs, log, CHOICE, load, terms=terms)

    means = {name: _means(mine, steady) for name, mine in by_load.items()}
    labels = WITH_PAUSES if pauses else WATERFALL
    falls = {name: _waterfall(name, mine, emphasised, labels) for name, mine in means.items()}
    spread = {n: _jcts(n, mine, style, points // 2) for n, mine in by_load.items()}
    drawn = [
        Figure(
            *("waterfall", "Where the time of a job goes", falls, None, CHOICE, load),
            _key(means, labels),
            ("Re-queue bubble", "Reload", "Recomputed prefill", "Preemption loss", "Tool gap"),
        ),
        figure("jct-spread", "How the JCTs spread", spread, wide_spread(jobs["jct_s"]), "JCT"),
    ]
    if jobs["bubble_s"].notna().any():  # servers at a URL do not report it
        waits = {n: _bubbles(n, mine, style, points) for n, mine in by_load.items()}
        drawn.insert(
            1, figure("bubbles", "Bubbles of each program", waits, None, "Bubble", "Program")
        )
    return drawn


def _means(jobs: pd.DataFrame, steady: bool) -> pd.DataFrame:
    """Return mean seconds per job as in points: a row per variant, the fastest first."""
    columns = ["jct_s", *WATERFALL]
    groups = ["variant", "seed"] if steady else ["variant"]
    means = jobs.groupby(groups, sort=False)[columns].mean().groupby("variant", sort=False).mean()
    return means.fillna(0.0).sort_values("jct_s")


def _parts(means: Mapping[str, pd.DataFrame]) -> list[str]:
    longest_s = max(float(mine["jct_s"].max()) for mine in means.values())
    return [
        part
        for part in WATERFALL
        if any(mine[part].max() > MIN_PART * longest_s for mine in means.values())
    ]


def _key(means: Mapping[str, pd.DataFrame], labels: Labels) -> tuple[KeyEntry, ...]:
    return tuple(KeyEntry(colour(part), "", labels[part]) for part in _parts(means))


def colour(part: str) -> str:
    """Return the CSS variable of a part of the waterfall."""
    return "part-" + part.removesuffix("_s").replace("_", "-")


def _waterfall(load: str, means: pd.DataFrame, emphasised: Sequence[str], labels: Labels) -> Spec:
    names = [str(name) for name in means.index]
    data = [_bars(part, labels[part], means, names) for part in _parts({load: means})]
    totals = scatter(
        *(numbers(means[list(WATERFALL)].sum(axis=1)), names, "text", "ink", "total"),
        text=[f" {seconds(value)}" for value in means["jct_s"]],
        textposition="middle right",
        cliponaxis=False,
    )
    totals["meta"]["variants"] = names
    data.append(totals)
    first = means.iloc[0]
    largest = max(WATERFALL, key=lambda part: first[part])
    return {
        "data": data,
        "layout": {
            "barmode": "stack",
            "bargap": 0.34,
            "xaxis": {"title": {"text": "mean seconds per job"}, "rangemode": "tozero"},
            "yaxis": {"type": "category", "automargin": True},
        },
        "alt": f"Stacked bars, one per variant: the parts of the mean time of a job at {load}."
        f" {names[0]} is the fastest with {seconds(first['jct_s'])}; its largest part is"
        f" {labels[largest]}, {seconds(first[largest])}.",
        "value": "x",
        "note": f"The number at the end of a bar is the mean JCT{_residual(means)}.",
        "rows": [[name, _row_label(name, emphasised)] for name in names],
    }


def _residual(means: pd.DataFrame) -> str:
    difference_s = (means["jct_s"] - means[list(WATERFALL)].sum(axis=1)).abs()
    residual = (difference_s / means["jct_s"]).fillna(0.0)
    worst = str(residual.idxmax())
    if residual[worst] < MIN_RESIDUAL:
        return ", which is the sum of the parts"
    return f"; for {worst} it differs from the sum of the parts by {residual[worst]:.1%}"


def _row_label(name: str, emphasised: Sequence[str]) -> str:
    label = plain(short(name))
    return f"<b>{label}</b>" if name in emphasised else label


def _bars(part: str, label: str, means: pd.DataFrame, names: list[str]) -> Trace:
    own, whole = means[part], means["jct_s"]
    text = [
        f"<b>{plain(name)}</b><br>{label} {seconds(value)}, {share(value / all_s)}"
        for name, value, all_s in zip(names, own, whole, strict=True)
    ]
    return stacked(label, colour(part), numbers(own), names, text)


def _by_variant(jobs: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    for name, frame in jobs.groupby("variant", sort=False):
        yield str(name), frame


def _bubbles(load: str, jobs: pd.DataFrame, style: Picks, max_points: int) -> Spec:
    """Draw the first seed. If there are many programs, a point is the mean of adjacent ones."""
    seed = jobs["seed"].min()
    mine = jobs[jobs["seed"] == seed]
    mine = mine[mine["repeat"] == mine["repeat"].min()] if "repeat" in mine else mine
    order = mine.groupby("job_id")["arrival_s"].min().sort_values(kind="stable").index
    groups = np.array_split(np.arange(len(order)), min(max_points, len(order)))
    named, data = [_programs(order[group]) for group in groups], []
    for name, own in _by_variant(mine):
        waits = own.set_index("job_id")["bubble_s"].reindex(order)
        y = numbers(_group_means(waits.to_numpy(dtype=float), groups))
        hover = f"<b>{plain(name)}</b> · %{{text}}<br>%{{y:,.4~r}} s in the queue"
        x, look = [int(group[0]) + 1 for group in groups], style[name]
        data.append(line(x, y, look.colour, look.dash, variant=name, hover=hover, text=named))
    several = max(len(group) for group in groups)
    thinned = f" Each point is the mean of up to {several} programs." if several > 1 else ""
    return {
        "data": data,
        "layout": {
            "xaxis": {"title": {"text": "program, in order of arrival"}},
            "yaxis": {"title": {"text": "seconds queued"}, "rangemode": "tozero"},
        },
        "alt": f"Lines, one per variant: the time that each program waited in the queue at {load},"
        " over all its turns, in order of arrival.",
        "value": "y",
        "note": f"Time that the turns of each program waited for admission, with seed {seed}."
        f"{thinned}",
    }


def _group_means(values: np.ndarray, groups: Sequence[np.ndarray]) -> list[float]:
    """Return the mean of each group; NaN if a variant finished none of its programs."""
    known = [values[group][~np.isnan(values[group])] for group in groups]
    return [float(own.mean()) if len(own) else float("nan") for own in known]


def _programs(names: pd.Index) -> str:
    first = plain(short(str(names[0])))
    return first if len(names) == 1 else f"{first} and {counted(len(names) - 1, 'more program')}"


def _jcts(load: str, jobs: pd.DataFrame, style: Picks, max_points: int) -> Spec:
    data = []
    for name, own in _by_variant(jobs):
        jct_s, shares = distribution(own["jct_s"].tolist(), min(max_points, QUANTILES))
        hover = f"<b>{plain(name)}</b><br>%{{y:.0%}} of jobs within %{{x:,.4~r}} s"
        x, y, look = numbers(jct_s), numbers(shares), style[name]
        data.append(line(x, y, look.colour, look.dash, variant=name, hover=hover))
    return {
        "data": data,
        "layout": {
            "xaxis": {"title": {"text": "job completion time (JCT), seconds"}},
            "yaxis": {"title": {"text": "share of jobs"}, "range": [0, 1.02], "tickformat": ".0%"},
        },
        "alt": f"Lines, one per variant: the share of jobs at {load} that finished within a time.",
        "value": "x",
        "note": "The share of jobs that finished within a time, over all seeds.",
    }
