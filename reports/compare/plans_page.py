"""Draws the plans for a number of agents as one HTML page that needs no network: cost against
latency with the Pareto front, a table, and the commands that deploy the cheapest."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from reports.answer.provenance import heading, price_in_words
from reports.capacity.slo import Limit, Slo
from reports.compare.plans import (
    Plan,
    fails_first,
    findings,
    front,
    headline,
    in_words,
    shown,
    statistics_of,
)
from reports.figures.drawing import Figure, Spec, Trace, plain, scatter
from reports.figures.styles import Style, legend, styles
from reports.page.environment import write_page
from reports.table import Table, TableCell, TableRow
from servers.basics.phrasing import counted

PLAN = "plan.html"
AXIS = "USD per month"


def draw(
    found: Sequence[Plan],
    agents: int,
    slo: Slo,
    left_out: Sequence[str],
    deploy: Sequence[str],
    out: Path,
) -> None:
    """Write the page. `left_out`: sentences on what was not searched or misses the SLO. `deploy`:
    the commands for the cheapest plan."""
    variants = {v.name: v for fleet in found for v in fleet.sweep.variants}
    style, sweep = styles(variants.values()), found[0].sweep
    figures = [_figure(limit, found, style) for limit in statistics_of(slo)]
    names = list(dict.fromkeys(fleet.policy for fleet in found))
    prices = {f.sweep.hardware: price_in_words(f.sweep.price) for f in found}
    write_page(
        out,
        "plans.html.j2",
        context=[sweep.workload.name, counted(agents, "agent"), *heading(sweep)[-1:]],
        headline=headline(found, agents, slo),
        findings=findings(found, slo),
        left_out=left_out,
        deploy=deploy,
        figures=figures,
        legend=legend(names, style, names),
        slo=slo,
        seeds=sweep.seeds,
        table=table(found, slo),
        first=statistics_of(slo)[0].title,
        prices=prices,
    )


def table(found: Sequence[Plan], slo: Slo) -> Table:
    """Return the plans, the cheapest first. Bold: the Pareto front of cost and the first
    statistic."""
    statistics = statistics_of(slo)
    best = {id(f) for f in front(found, lambda f: f.times.get(statistics[0], math.inf))}
    heads = ["Plan", AXIS, "Machines", "Could serve", "Agents each"]
    rows = []
    for fleet in sorted(found, key=lambda f: (f.usd_per_month, -f.could_serve)):
        values = [
            *(f"{fleet.machines:,}", f"{fleet.could_serve:,}", f"{fleet.each:,}"),
            *(in_words(s, fleet.times[s]) if fleet.times else "–" for s in statistics),
            fails_first(fleet),
        ]
        first = TableCell(
            f"{fleet.usd_per_month:,.0f}",
            id(fleet) in best,
            href=f"{fleet.folder.name}/report.html",
        )
        rows.append(TableRow(fleet.name, [first, *map(TableCell, values)]))
    return Table([*heads, *(s.title for s in statistics), "Fails first"], rows)


def _figure(limit: Limit, found: Sequence[Plan], style: Mapping[str, Style]) -> Figure:
    drawn = [fleet for fleet in found if limit in fleet.times]
    best = front(drawn, lambda f: f.times[limit])
    names = list(dict.fromkeys(fleet.policy for fleet in drawn))
    y = [shown(limit, f.times[limit]) for f in best]
    dotted = {"width": 1.5, "dash": "dot"}
    line = scatter([f.usd_per_month for f in best], y, "lines", "soft", "front", line=dotted)
    unit = "" if limit.is_speed else ", s"
    spec: Spec = {
        "data": [line, *(_dots(name, limit, drawn, best, style[name]) for name in names)],
        "layout": {
            "xaxis": {"title": {"text": AXIS}, "rangemode": "tozero"},
            "yaxis": {"title": {"text": f"{limit.title}{unit}"}, "rangemode": "tozero"},
        },
        "alt": f"Scatter plot of {AXIS} and {limit.title}, a dot per plan; the Pareto front has "
        f"{counted(len(best), 'plan')}: {'; '.join(f.name for f in best)}. The table has all.",
        "value": "y",
        "height": 360,
        "note": f"A dot per plan, with whole machines. Dotted: the Pareto front, for which no other"
        f" plan is cheaper and has a {'higher' if limit.is_speed else 'lower'} {limit.title}.",
    }
    title = f"Cost and {limit.title}"
    return Figure(f"cost-{limit.name}", title, {"": spec}, None, terms=("SLO",))


def _dots(
    name: str,
    limit: Limit,
    drawn: Sequence[Plan],
    best: Sequence[Plan],
    look: Style,
) -> Trace:
    own = [fleet for fleet in drawn if fleet.policy == name]
    x, y = [f.usd_per_month for f in own], [shown(limit, f.times[limit]) for f in own]
    return scatter(
        *(x, y, "markers+text", look.colour, "dot"),
        variant=name,
        hover="%{hovertext}",
        hovertext=[
            f"<b>{plain(f.name)}</b><br>{counted(f.machines, 'machine')},"
            f" {f.usd_per_month:,.0f} {AXIS}<br>"
            f"{limit.title} {in_words(limit, f.times[limit])}"
            for f in own
        ],
        text=[plain(f"{f.machines} × {f.machine}") if f in best else "" for f in own],
        # Labels of close plans would overlap on one side.
        textposition=[
            "bottom center" if f in best and best.index(f) % 2 else "top center" for f in own
        ],
        cliponaxis=False,
        marker={"symbol": look.marker, "size": 10, "line": {"width": 1.5}},
    )
