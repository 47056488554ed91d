"""Draws tokens per second and GPU against interactivity: the picture of AgentX.

In: cells of a scenario. Out: a figure with a line per variant over the numbers of agents.
"""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from reports.answer.scenario import scenario_points
from reports.figures.drawing import Figure, numbers, plain, scatter
from reports.figures.styles import Style


def interactivity(cells: pd.DataFrame, style: Mapping[str, Style]) -> Figure | None:
    """Return None if no cell has a valid result."""
    points = scenario_points(cells) if len(cells) else cells
    if points.empty:
        return None
    traces = []
    for variant, mine in points.groupby("variant", sort=False):
        look = style[str(variant)]
        x = numbers(mine["interactivity_p90"])
        y = numbers(mine["tokens_per_s_per_gpu"])
        traces.append(
            scatter(
                *(x, y, "lines+markers", look.colour, "line"),
                variant=str(variant),
                hover="%{text}<br>%{x:.3g} tokens/s, %{y:.4g} tokens/s/GPU",
                text=[f"<b>{plain(str(variant))}</b>, {n:g} agents" for n in mine["agents"]],
                line={"width": 2.5, "dash": look.dash},
                marker={"symbol": look.marker, "size": 8},
            )
        )
    best = points.loc[points["tokens_per_s_per_gpu"].idxmax()]
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
                    f" the requests get. The highest is {best['tokens_per_s_per_gpu']:.4g}"
                    f" ({best['variant']}, {best['agents']:g} agents)."
                ),
                "value": "y",
                "labelled": True,
                "note": "Each mark is a number of agents. Up and to the right is better.",
            }
        },
        None,
    )
