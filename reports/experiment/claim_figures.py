"""Draws the numbers of a claim with their intervals, beside those that its source publishes.

In: findings. Out: a figure for each claim whose source states a number.
"""

from __future__ import annotations

from collections.abc import Sequence

from reports.experiment.judge import ClaimPoint, Finding
from reports.figures.drawing import Figure, Spec, Trace, dot, plain, wide_spread

PUBLISHED = "published"
MAX_POINTS = 40


def claim_figures(findings: Sequence[Finding]) -> list[Figure]:
    return [
        _figure(number, finding)
        for number, finding in enumerate(findings)
        if _published(finding) and 0 < len(finding.points) <= MAX_POINTS
    ]


def _published(finding: Finding) -> list[float]:
    check = finding.check
    given = (check.published_from, check.published_to) if check else ()
    return [number for number in given if number is not None]


def _figure(number: int, finding: Finding) -> Figure:
    published = _published(finding)
    points = {point.label: point for point in finding.points}
    unit = "ratio" if finding.check and finding.check.to else finding.direction.partition(" of ")[0]
    spec: Spec = {
        "data": [_published_dot(published), *map(_dot, points.values())],
        "layout": {
            "xaxis": {"title": {"text": unit}, "rangemode": "tozero"},
            "yaxis": {"automargin": True, "type": "category"},
            "shapes": [_line(value) for value in published],
        },
        "alt": f"Dot plot of {finding.direction}: ours {finding.ours}, {_stated(published)}",
        "value": "x",
        "note": f"{finding.direction[:1].upper()}{finding.direction[1:]}. Our values have 95% "
        f"intervals over seeds; dashed lines: {_stated(published)}.",
        "rows": [[PUBLISHED, PUBLISHED], *([label, plain(label)] for label in points)],
    }
    values = [*published, *(point.value.value for point in points.values())]
    reading = f"{finding.reading}: " if finding.reading else ""
    title = f"{reading}{finding.says}"
    return Figure(f"claim-{number}", title[:1].upper() + title[1:], {"": spec}, wide_spread(values))


def _stated(published: Sequence[float]) -> str:
    return f"{PUBLISHED} {' to '.join(f'{value:g}' for value in published)}"


def _published_dot(published: Sequence[float]) -> Trace:
    return {
        "type": "scatter",
        "name": PUBLISHED,
        "x": list(published),
        "y": [PUBLISHED] * len(published),
        "mode": "lines+markers",
        "line": {"width": 3},
        "marker": {"symbol": "diamond", "size": 11, "line": {"width": 1.5}},
        "hovertemplate": f"<b>{PUBLISHED}</b> %{{x}}<extra></extra>",
        "meta": {"colour": "s3", "variant": PUBLISHED, "kind": "dot"},
    }


def _dot(point: ClaimPoint) -> Trace:
    own = point.value
    interval = f"<br>95% CI {own.low:.3g} to {own.high:.3g}" if own.has_interval else ""
    hover = f"<b>{plain(point.label)}</b><br>{own.value:.3g}{interval}"
    marker = {"symbol": "circle", "size": 10}
    return dot(point.label, own.value, own if own.has_interval else None, "s0", marker, hover)


def _line(value: float) -> dict[str, object]:
    return {
        "type": "line",
        "x0": value,
        "x1": value,
        "yref": "paper",
        "y0": 0,
        "y1": 1,
        "line": {"width": 1, "dash": "dash"},
    }
