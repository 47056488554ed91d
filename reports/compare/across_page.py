"""Draws the comparison of several machines as one HTML page that needs no network."""

from __future__ import annotations

import math
from pathlib import Path

from reports.answer.provenance import heading
from reports.compare.across import Across, differing
from reports.compare.across_answer import caveats, findings, headline, rows
from reports.compare.across_figures import figures
from reports.figures.legend import legend
from reports.figures.styles import styles
from reports.numbers import DASH
from reports.page.page import with_figures
from servers.basics.atomic import write_file
from servers.basics.phrasing import counted, seconds

ACROSS = "across.html"


def draw(across: Across, out: Path) -> None:
    variants = {v.name: v for m in across.machines for v in m.sweep.variants}
    style = styles(variants.values())
    drawn = figures(across, style)
    first = across.machines[0].sweep
    workload = first.workload.name
    content = (
        with_figures()
        .get_template("across.html.j2")
        .render(
            context=[workload, counted(len(across.machines), "machine"), *heading(first)[-1:]],
            headline=headline(across),
            findings=findings(across),
            caveats=caveats(across),
            figures=drawn,
            legend=legend(list(variants), style, list(variants)),
            slo=across.machines[0].slo,
            baseline=first.baseline,
            seeds=across.seeds,
            rows=rows(across),
            ladder=across.machines[0].ladder,
            machines=_machines(across),
        )
    )
    write_file(out, content.encode())


def _machines(across: Across) -> list[tuple[str, list[str]]]:
    """Return rows of settings, with the value of each machine."""
    found = across.machines
    prices = [m.price.usd_per_h for m in found]
    return [
        ("model", [m.model for m in found]),
        ("hardware", [m.hardware for m in found]),
        ("USD per GPU and hour", [DASH if math.isnan(p) else f"{p:g}" for p in prices]),
        ("mean JCT on the idle machine", [seconds(m.idle_mean_s) for m in found]),
        *differing(across),
        ("run", [str(m.folder) for m in found]),
    ]
