"""Draws the plans for a number of agents as one HTML page that needs no network: cost against
latency with the Pareto front, a table, and the commands that deploy the cheapest."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from reports.answer.provenance import heading, price_in_words
from reports.capacity.slo import Limit, Slo
from reports.compare import plans
from reports.compare.plans import Plan
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
    variants = {v.name: v for plan in found for v in plan.sweep.variants}
    style, sweep = styles(variants.values()), found[0].sweep
    figures = [_figure(limit, found, style) for limit in plans.statistics_of(slo)]
    names = list(dict.fromkeys(plan.policy for plan in found))
    prices = {p.sweep.hardware: price_in_words(p.sweep.price) for p in found}
    write_page(
        out,
        "plans.html.j2",
        context=[sweep.workload.name, counted(agents, "agent"), *heading(sweep)[-1:]],
        headline=plans.headline(found, agents, slo),
        findings=plans.findings(found, slo),
        left_out=left_out,
        deploy=deploy,
        figures=figures,
        legend=legend(names, style, names),
        slo=slo,
        seeds=sweep.seeds,
        table=table(found, slo),
        first=plans.statistics_of(slo)[0].title,
        prices=prices,
    )


def table(found: Sequence[Plan], slo: Slo) -> Table:
    """Return the plans, the cheapest first. Bold: the Pareto front of cost and the first
    statistic."""
    statistics = plans.statistics_of(slo)
    best = {id(p) for p in plans.front(found, lambda p: p.times.get(statistics[0], math.inf))}
    heads = ["Plan", AXIS, "Machines", "Could serve", "Agents each"]
    rows = []
    for plan in sorted(found, key=lambda p: (p.usd_per_month, -p.could_serve)):
        values = [
            *(f"{plan.machines:,}", f"{plan.could_serve:,}", f"{plan.each:,}"),
            *(plans.in_words(s, plan.times[s]) if plan.times else "–" for s in statistics),
            plans.fails_first(plan),
        ]
        first = TableCell(
            f"{plan.usd_per_month:,.0f}",
            id(plan) in best,
            href=f"{plan.folder.name}/report.html",
        )
        rows.append(TableRow(plan.name, [first, *map(TableCell, values)]))
    return Table([*heads, *(s.title for s in statistics), "Fails first"], rows)


def _figure(limit: Limit, found: Sequence[Plan], style: Mapping[str, Style]) -> Figure:
    drawn = [plan for plan in found if limit in plan.times]
    best = plans.front(drawn, lambda p: p.times[limit])
    names = list(dict.fromkeys(plan.policy for plan in drawn))
    y = [plans.shown(limit, p.times[limit]) for p in best]
    dotted = {"width": 1.5, "dash": "dot"}
    line = scatter([p.usd_per_month for p in best], y, "lines", "soft", "front", line=dotted)
    unit = "" if limit.is_speed else ", s"
    spec: Spec = {
        "data": [line, *(_dots(name, limit, drawn, best, style[name]) for name in names)],
        "layout": {
            "xaxis": {"title": {"text": AXIS}, "rangemode": "tozero"},
            "yaxis": {"title": {"text": f"{limit.title}{unit}"}, "rangemode": "tozero"},
        },
        "alt": f"Scatter plot of {AXIS} and {limit.title}, a dot per plan; the Pareto front has "
        f"{counted(len(best), 'plan')}: {'; '.join(p.name for p in best)}. The table has all.",
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
    own = [plan for plan in drawn if plan.policy == name]
    x, y = [p.usd_per_month for p in own], [plans.shown(limit, p.times[limit]) for p in own]
    return scatter(
        *(x, y, "markers+text", look.colour, "dot"),
        variant=name,
        hover="%{hovertext}",
        hovertext=[
            f"<b>{plain(p.name)}</b><br>{counted(p.machines, 'machine')},"
            f" {p.usd_per_month:,.0f} {AXIS}<br>"
            f"{limit.title} {plans.in_words(limit, p.times[limit])}"
            for p in own
        ],
        text=[plain(f"{p.machines} × {p.machine}") if p in best else "" for p in own],
        # Labels of close plans would overlap on one side. A front of speeds rises, others fall.
        textposition=[
            "bottom center" if p in best and best.index(p) % 2 != limit.is_speed else "top center"
            for p in own
        ],
        cliponaxis=False,
        marker={"symbol": look.marker, "size": 10, "line": {"width": 1.5}},
    )
