"""Converts capacities to other units: agents to jobs per second, and jobs per second to agents.

In: capacities, and the cells at the highest loads that they sustain. Out: numbers by variant. GPUs
are those of `reports.answer.capacity_context.MachinePrice`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import pandas as pd

from reports.loads import AGENTS, Ladder
from reports.metrics.cells import cells_at
from reports.metrics.throughput import LITTLE_WITHIN
from reports.statistics.capacities import VariantCapacity

DAY_S = 86_400
ROUNDING = 1e-9


class OtherUnits(NamedTuple):
    """At the highest load that each seed sustains, means over seeds."""

    jobs_per_s: float
    """Jobs that finish per second."""
    in_flight: float
    """Jobs in flight, by Little's law."""
    counted: float
    """Jobs in flight that were counted ÷ the same; NaN if they were not."""

    @property
    def is_exact(self) -> bool:
        """Whether Little's law holds within `LITTLE_WITHIN`, or nothing was counted."""
        return not abs(self.counted - 1) > LITTLE_WITHIN + ROUNDING

    def text(self, ladder: Ladder) -> str:
        return f"{self.jobs_per_s if ladder is AGENTS else self.in_flight:.3g}"

    def lines(self, ladder: Ladder) -> tuple[str, ...]:
        """Return jobs per day, and how far Little's law is off."""
        day = f"{float(f'{self.jobs_per_s * DAY_S:.3g}'):,.0f} a day"
        off = () if self.is_exact else (f"counted: {self.in_flight * self.counted:.3g} in flight",)
        return (*([day] if ladder is AGENTS else []), *off)


def other_units(
    capacities: Iterable[VariantCapacity], cells: pd.DataFrame
) -> dict[str, OtherUnits]:
    """Return numbers by variant, without variants that sustain nothing with some seed."""
    found: dict[str, OtherUnits] = {}
    for each in capacities:
        rows = cells_at(cells, each.variant, each.sustained_by_seed)
        if rows["seed"].nunique() < len(each.by_seed) or rows["jobs_in_flight"].isna().any():
            continue
        in_flight = rows["jobs_in_flight"]
        counted = float((in_flight * rows["little_ratio"]).mean() / in_flight.mean())
        per_s = float(rows["throughput_jobs_per_s"].mean())
        found[each.variant] = OtherUnits(per_s, float(in_flight.mean()), counted)
    return found
