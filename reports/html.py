"""Everything known of a run in; one HTML page out, which needs no network.

Templates escape by default; what scripts read goes in as JSON with `<`, `>` and `&` escaped.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from typing import Any

import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined
from plotly.offline import get_plotlyjs

from reports.answer import Answer
from reports.figures import Figure, Style
from reports.load import VIRTUAL, Run
from reports.metrics import Results
from reports.statistics import Point
from reports.words import counted, interval, seconds, share, times

LEAST_GAIN = 1.005
"""What rounds to 1.00 is not shown as fastest."""
LEAST_FULL_TINT = math.log(1.5)
"""The largest speed-up of a grid has the strongest tint, unless it is smaller than this."""

SHOWN = 40
"""Of each kind of thing left out."""

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
    "x": "M14 2.5l3 3 3-3 1.5 1.5-3 3 3 3-1.5 1.5-3-3-3 3-1.5-1.5 3-3-3-3z",
}
"""The figures' markers as the legend draws them, in a box of 34 by 14."""

COLUMNS: tuple[tuple[str, str, str], ...] = (
    ("jct_mean_s", "Mean JCT", "time"),
    ("jct_p50_s", "P50", "time"),
    ("jct_p90_s", "P90", "time"),
    ("jct_p95_s", "P95", "time"),
    ("jct_p99_s", "P99", "time"),
    ("throughput_jobs_per_s", "Jobs/s", "rate"),
    ("device_hit_ratio", "Device hits", "share"),
    ("dram_hit_ratio", "DRAM hits", "share"),
    ("ssd_hit_ratio", "SSD hits", "share"),
    ("computed_ratio", "Computed", "share"),
    ("queue_mean_s", "Queue per job", "time"),
    ("preemptions", "Preemptions", "count"),
    ("failed_turns", "Failed turns", "count"),
    ("backlog_growth", "Backlog growth", "rate"),
)
FORMATS: dict[str, Callable[[float], str]] = {
    "time": seconds,
    "rate": lambda v: "–" if math.isnan(v) else f"{v:.3g}",
    "share": share,
    "count": lambda v: "–" if math.isnan(v) else f"{int(v):,}",
}


def environment() -> Environment:
    return Environment(
        loader=PackageLoader("reports"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def page(
    run: Run,
    results: Results,
    points: Sequence[Point],
    told: Answer,
    figures: Sequence[Figure],
    style: Mapping[str, Style],
) -> str:
    assets = files("reports") / "templates"
    strong = [p.variant for p in (told.baseline, told.winner) if p is not None]
    return (
        environment()
        .get_template("report.html.j2")
        .render(
            told=told,
            tiles=_tiles(told),
            baseline=str(run.sweep["baseline"]),
            heading=_heading(run.sweep),
            grid=_grid(points, told),
            figures=figures,
            specs={f.id: {"data": f.spec["data"], "layout": f.spec["layout"]} for f in figures},
            legend=_legend(points, style, strong),
            columns=[title for _, title, _ in COLUMNS],
            rows=_rows(results.cells, str(run.sweep["baseline"])),
            missing=results.missing,
            gates=[c for c in results.cells.to_dict("records") if c["failed_gates"]],
            left_out=_left_out(run.sweep),
            facts=_facts(run),
            command=shlex.join(map(str, _made_by(run.sweep).get("argv", []))),
            css=(assets / "report.css").read_text(),
            js=(assets / "report.js").read_text(),
            plotlyjs=get_plotlyjs() if figures else "",
        )
    )


def _heading(sweep: Mapping[str, Any]) -> list[str]:
    workload = (sweep.get("workload") or {}).get("name")
    engine = VIRTUAL.get(str(sweep.get("engine")), sweep.get("engine"))
    return [
        str(word) for word in (workload, sweep.get("model"), sweep.get("hardware"), engine) if word
    ]


def _tiles(told: Answer) -> list[tuple[str, str, str]]:
    """(number, what it is, how sure or against what)"""
    winner, base = told.winner, told.baseline
    if winner is None:
        return []
    gain = winner.against
    if gain is None or base is None:
        tiles = [
            (seconds(winner.jct_mean_s.value), "mean JCT", interval_s(winner)),
            (seconds(winner.jct_s["jct_p95_s"]), "P95 JCT", counted(winner.jobs, "job")),
        ]
    else:
        tiles = [
            (times(gain.mean.value), "sooner on average", interval(gain.mean)),
            (times(gain.p95.value), "sooner at P95", interval(gain.p95)),
            (
                seconds(winner.jct_mean_s.value),
                "mean JCT",
                f"{base.variant}: {seconds(base.jct_mean_s.value)}",
            ),
        ]
    if told.possible is not None and gain is not None:
        tiles.append((share(told.possible), "of what is possible", "gain of the best bound"))
    return tiles


def interval_s(point: Point) -> str:
    return f"95% CI {seconds(point.jct_mean_s.low)} to {seconds(point.jct_mean_s.high)}"


def _grid(points: Sequence[Point], told: Answer) -> dict[str, Any] | None:
    """Speed-up of the mean by variant and load; None where nothing is compared."""
    if not any(p.against is not None for p in points):
        return None
    loads = list(dict.fromkeys(p.load for p in points))
    at = {(p.variant, p.load): p for p in points}
    gains = [abs(math.log(p.against.mean.value)) for p in points if p.against is not None]
    full = max(LEAST_FULL_TINT, *gains)
    best = {
        load: min(
            (p for p in points if p.load == load), key=lambda p: (p.bound, p.jct_mean_s.value)
        )
        for load in loads
    }
    rows = []
    for variant in dict.fromkeys(p.variant for p in points):
        cells = [_grid_cell(at.get((variant, load)), best[load], full) for load in loads]
        bound = any(p.bound for p in points if p.variant == variant)
        rows.append({"variant": variant, "bound": bound, "cells": cells})
    here = told.load
    return {"loads": [(load.removesuffix(" jobs/s"), load == here) for load in loads], "rows": rows}


def _grid_cell(point: Point | None, best: Point, full: float) -> dict[str, Any]:
    if point is None:
        return {"text": "–", "title": "no result", "tint": 0, "kind": "none", "hollow": False}
    title = f"{point.variant}, {point.load}: mean {seconds(point.jct_mean_s.value)}"
    told_apart = best.against is not None and best.against.mean.value > LEAST_GAIN
    common = {"hollow": point.saturated, "best": point is best and told_apart}
    if point.against is None:
        return {"text": "1", "title": title, "tint": 0, "kind": "base", **common}
    gain = point.against.mean
    tint = abs(math.log(gain.value)) / full
    kind = "even" if not gain.differs_from_one else "faster" if gain.value > 1 else "slower"
    return {
        "text": f"{gain.value:.2f}",
        "title": f"{title}, {interval(gain)}" + (", past saturation" if point.saturated else ""),
        "tint": round(100 * tint),
        "kind": kind,
        **common,
    }


def _legend(
    points: Sequence[Point], style: Mapping[str, Style], strong: Sequence[str]
) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "slot": style[name].slot,
            "path": MARKER_PATHS[style[name].marker],
            "dashes": {"solid": "", "dash": "5 3", "dot": "1.5 2.5"}[style[name].dash],
            "strong": name in strong,
            "bound": any(p.bound for p in points if p.variant == name),
        }
        for name in style
        if any(p.variant == name for p in points)
    ]


def _rows(cells: pd.DataFrame, baseline: str) -> list[dict[str, Any]]:
    """Of the table of all cells; `sort` is what a column sorts by."""
    records = [{str(k): v for k, v in r.items()} for r in cells.to_dict("records")]
    base = {(r["load"], r["seed"]): r["jct_mean_s"] for r in records if r["variant"] == baseline}
    rows = []
    for record in records:
        values = [
            {"text": FORMATS[kind](record[key]), "sort": _sortable(record[key])}
            for key, _, kind in COLUMNS
        ]
        ratio = base.get((record["load"], record["seed"]), math.nan) / record["jct_mean_s"]
        against = "–" if math.isnan(ratio) else times(ratio)
        values.insert(1, {"text": against, "sort": _sortable(ratio)})
        rows.append({**record, "values": values, "sort_load": _sortable(record["jps"])})
    return rows


def _sortable(value: float | None) -> float:
    return -1.0 if value is None or math.isnan(value) else round(float(value), 9)


def _left_out(sweep: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """(what, name, why), the first of each kind; a trace set can have thousands."""
    programs = (sweep.get("workload") or {}).get("left_out") or []
    kinds = (
        ("variant", "name", sweep.get("left_out") or []),
        ("program", "program_id", programs),
        ("file", "file", sweep.get("rejected_files") or []),
        ("repaired", "file", sweep.get("repairs") or []),
    )
    rows: list[tuple[str, str, str]] = []
    for what, name, entries in kinds:
        rows += [(what, str(e.get(name)), str(e.get("reason"))) for e in entries[:SHOWN]]
        if len(entries) > SHOWN:
            rows.append((what, f"{len(entries) - SHOWN:,} more", "named in sweep.json"))
    return rows


def _made_by(sweep: Mapping[str, Any]) -> Mapping[str, Any]:
    made_by = sweep.get("made_by", sweep)
    return made_by if isinstance(made_by, Mapping) else {}


def _facts(run: Run) -> list[tuple[str, str]]:
    sweep = run.sweep
    workload, made_by = sweep.get("workload") or {}, _made_by(sweep)
    profile = ", ".join(f"{k} {_plain(v)}" for k, v in (sweep.get("profile") or {}).items())
    gaps = ", ".join(f"{n:,} {k}" for k, n in (workload.get("gap_provenance") or {}).items())
    facts = (
        ("Model", sweep.get("model")),
        ("Hardware", sweep.get("hardware")),
        ("Engine", sweep.get("engine")),
        ("Profile", profile),
        ("Limits", ", ".join(f"{k} {v}" for k, v in (sweep.get("limits") or {}).items())),
        (
            "Workload",
            f"{workload.get('name')}: {counted(workload.get('programs', 0), 'program')},"
            f" {counted(workload.get('turns', 0), 'turn')}",
        ),
        ("Trace SHA-256", workload.get("trace_sha256")),
        ("Tool gaps", gaps),
        ("Arrivals", sweep.get("arrivals")),
        ("Seeds", ", ".join(map(str, sweep["seeds"]))),
        ("Variants", "; ".join(_described(v) for v in sweep["variants"])),
        ("Turnstile", sweep.get("turnstile_version")),
        ("Sources", sweep.get("code_sha256")),
        ("Commit", made_by.get("git_commit")),
        ("Python", made_by.get("python")),
    )
    return [(name, str(value)) for name, value in facts if value]


def _plain(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if value.is_integer() else f"{value:,.6g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _described(variant: Mapping[str, Any]) -> str:
    about = variant.get("description") or variant.get("policy_source") or variant.get("policy")
    return f"{variant['name']} ({about})" if about else str(variant["name"])
