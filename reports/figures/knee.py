"""Draws a metric against the load for each variant of a search, with its capacity: the knee.

In: all cells of a search, and capacities. Out: drawings with a line per variant. Seeds search
different loads, so the line of a variant is the mean of the lines of its seeds, each interpolated
on logarithmic axes between its own cells, where all seeds have cells. Each seed counts up to the
first load that it does not sustain: what happens above is no knee but chance.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from reports.figures.drawing import Trace, line, number, numbers, plain, scatter
from reports.figures.styles import Style
from reports.loads import Ladder
from reports.metrics.cells import amounts_of
from reports.run_folder.turns import Column
from reports.statistics.capacities import VariantCapacity
from servers.basics.phrasing import seconds

CUT = 3.0
"""Values above this many times the SLO's limit are left out."""


@dataclass(frozen=True)
class Knees:
    cells: pd.DataFrame
    """All cells of the search."""
    capacities: Mapping[str, VariantCapacity]
    """By variant."""
    limits_s: Mapping[str, float]
    """The limit of each statistic of the SLO."""
    ladder: Ladder

    def draw(self, column: str, statistic: str, style: Mapping[str, Style]) -> list[Trace]:
        """Return the cells, the line and the capacity of each variant, and the limit of
        the SLO if it limits this statistic."""
        traces: list[Trace] = []
        limit_s = self.limits_s.get(statistic)
        for variant, capacity in self.capacities.items():
            seeds = self._seeds(variant, column, CUT * limit_s if limit_s else np.inf)
            if not seeds:
                continue
            x, y = _mean_line(list(seeds.values()))
            look, knee = style[variant], self._knee(capacity, statistic, seeds)
            # The line ends at the capacity if that is on the SLO, or beyond the loads of some seed.
            if knee is not None and (limit_s == knee[1] or not len(x) or knee[0] > x[-1]):
                below = x < knee[0]
                x, y = np.append(x[below], knee[0]), np.append(y[below], knee[1])
            if len(x):
                drawn = numbers(y)
                traces.append(
                    line(x.tolist(), drawn, look.colour, look.dash, width=2.5, variant=variant)
                )
            traces.append(self._cells(variant, seeds, look))
            if knee is not None:
                traces.append(_mark(capacity, knee, look))
        if limit_s is not None and traces:
            # It ends with the last line, so that it does not strike through the name beside that.
            ends = [x for trace in traces if trace["meta"]["kind"] != "cells" for x in trace["x"]]
            begins = [x for trace in traces for x in trace["x"]]
            traces.append(_limit(limit_s, min(begins), max(ends, default=max(begins))))
        return traces

    def values(self, column: str) -> list[float]:
        """Return the values of all cells that have one."""
        return [float(value) for value in self.cells[column].dropna()]

    def _seeds(self, variant: str, column: str, most: float) -> dict[int, tuple[Column, Column]]:
        """Return the loads and the values of each seed's valid and stable cells; nothing if a seed
        has none, since the others would be lucky."""
        found: dict[int, tuple[Column, Column]] = {}
        for seed, each in self.capacities[variant].by_seed.items():
            highest = np.inf if each.not_sustained is None else each.not_sustained
            if (cells := self._stable.get((variant, seed))) is None:
                return {}
            values = cells[column][cells.index <= highest]
            values = values[values <= most].groupby(level=0).mean()
            if values.empty:
                return {}
            found[seed] = values.index.to_numpy(dtype=float), values.to_numpy(dtype=float)
        return found

    @cached_property
    def _stable(self) -> dict[Hashable, pd.DataFrame]:
        """The valid and stable cells by variant and seed, whose index is their loads."""
        rows = self.cells[(self.cells["failed_gates"] == "") & (self.cells["unstable"] == "")]
        return dict(list(rows.set_index(amounts_of(rows)).groupby(["variant", "seed"])))

    def _cells(
        self, variant: str, seeds: Mapping[int, tuple[Column, Column]], look: Style
    ) -> Trace:
        points = [
            (load, value, f"<b>{plain(variant)}</b><br>{self.ladder.label(load)}, seed {seed}")
            for seed, (loads, values) in seeds.items()
            for load, value in zip(loads.tolist(), numbers(values), strict=True)
        ]
        x, y = [load for load, _, _ in points], [value for _, value, _ in points]
        return scatter(
            *(x, y, "markers", look.colour, "cells"),
            variant=variant,
            hover="%{text}<br>%{y:.4g}",
            text=[text for _, _, text in points],
            marker={"symbol": look.marker, "size": 4, "opacity": 0.55, "line": {"width": 0}},
        )

    def _knee(
        self,
        capacity: VariantCapacity,
        statistic: str,
        seeds: Mapping[int, tuple[Column, Column]],
    ) -> tuple[float, float] | None:
        """Return the capacity and the mean value of the seeds at theirs; on the SLO if it limits
        this statistic alone. None without a number."""
        if (found := capacity.load) is None:
            return None
        if list(self.limits_s) == [statistic]:
            return found.value, self.limits_s[statistic]
        values = [
            _between(np.array([load]), *seeds[seed])[0] for seed, load in capacity.loads.items()
        ]
        return found.value, float(np.mean(values))


def _mark(capacity: VariantCapacity, knee: tuple[float, float], look: Style) -> Trace:
    return scatter(
        *([knee[0]], [knee[1]], "markers", look.colour, "knee"),
        variant=capacity.variant,
        hover="%{text}",
        text=[f"<b>{plain(capacity.variant)}</b><br>capacity: {capacity.text()}"],
        marker={"symbol": f"{look.marker}-open", "size": 12, "line": {"width": 2.5}},
    )


def _mean_line(seeds: Sequence[tuple[Column, Column]]) -> tuple[Column, Column]:
    low, high = max(x[0] for x, _ in seeds), min(x[-1] for x, _ in seeds)
    every = np.unique(np.concatenate([x for x, _ in seeds]))
    at = every[(every >= low) & (every <= high)]
    return at, np.mean([_between(at, x, y) for x, y in seeds], axis=0)


def _between(at: Column, x: Column, y: Column) -> Column:
    """Interpolate on logarithmic axes, as capacities are; shares may be 0."""
    if (y > 0).all():
        return np.asarray(np.exp(np.interp(np.log(at), np.log(x), np.log(y))))
    return np.asarray(np.interp(np.log(at), np.log(x), y))


def _limit(limit_s: float, least: float, most: float) -> Trace:
    """Draw the limit between two loads, with its value at the left."""
    return scatter(
        *([least, most], [number(limit_s)] * 2, "lines+text", "soft", "limit"),
        line={"width": 1.5, "dash": "dot"},
        text=[f"SLO: {seconds(limit_s)}", ""],
        textposition="top right",
    )
