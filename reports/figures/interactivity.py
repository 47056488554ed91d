"""Draws tokens per second and GPU against interactivity: the picture of AgentX.

In: cells of a scenario. Out: a figure with a line per variant over the numbers of agents.
"""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from reports.figures.drawing import Figure, numbers, plain, scatter
from reports.figures.styles import Style
from reports.metrics.interactivity import scenario_points


def interactivity(cells: pd.DataFrame, style: Mapping[str, Style]) -> Figure | None:
    """Return None if no cell has a valid result."""
    points = scenario_points(cells)
    if not points:
        return None
    traces = []
    for variant in dict.fromkeys(point.variant for point in points):
        mine, look = [point for point in points if point.variant == variant], style[variant]
        mine.sort(key=lambda point: point.interactivity_p90)  # The name is at the end of the line.
        x = numbers(point.interactivity_p90 for point in mine)
        y = numbers(point.tokens_per_s_per_gpu for point in mine)
        traces.append(
            scatter(
                *(x, y, "lines+markers", look.colour, "line"),
                variant=variant,
                hover="%{text}<br>%{x:.3g} tokens/s, %{y:.4g} tokens/s/GPU",
                text=[f"<b>{plain(variant)}</b>, {point.agents} agents" for point in mine],
                line={"width": 2.5, "dash": look.dash},
                marker={"symbol": look.marker, "size": 8},
            )
        )
    best = max(points, key=lambda point: point.tokens_per_s_per_gpu)
    return Figure(
        "interactivity",
        "Tokens per second and GPU against interactivity",
        {
            "": {
                "data": traces,
                "layout": {
                    "xaxis": {
                        "title": {"text": "interactivity P90, output tokens/s"},
                        "rangemode": "tozero",
                    },
                    "yaxis": {"title": {"text": "tokens/s/GPU"}, "rangemode": "tozero"},
                },
                "alt": (
                    "Line chart, one line per policy over the number of agents: prompt and output"
                    " tokens per second and GPU against the output tokens per second that 90% of"
                    f" the requests get. The highest is {best.tokens_per_s_per_gpu:.4g}"
                    f" ({best.variant}, {best.agents} agents)."
                ),
                "value": "y",
                "labelled": True,
                "complete": True,
                "note": "Each mark is a number of agents. Up and to the right is better.",
            }
        },
        None,
    )
