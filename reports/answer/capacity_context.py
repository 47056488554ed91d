"""What the capacities of a run refer to: the SLO, the machine and its price.

In: `sweep.json`. Out: values that sentences, tables and figures share.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from reports.capacity.slo import Slo
from reports.loads import AGENTS, RATES, Ladder, ladder_of
from servers.basics.phrasing import gpus_in_words
from servers.records.sweep import SweepRecord

HOURS_PER_MONTH = 730


@dataclass(frozen=True, slots=True)
class MachinePrice:
    """What one machine of the sweep costs: one model, on `gpus` GPUs."""

    gpus: int
    usd_per_h: float
    """NaN if the hardware has no price."""

    @property
    def usd_per_month(self) -> float:
        return self.gpus * self.usd_per_h * HOURS_PER_MONTH

    def gpus_for(self, load: float, capacity: float, ladder: Ladder = RATES) -> int:
        """Return the GPUs of as many machines as sustain the load. A machine serves a whole number
        of agents."""
        if ladder is AGENTS:
            capacity = max(1.0, math.floor(capacity * (1 + 1e-9)))
        # Slightly less, so that rounding does not turn 3 machines at exactly their capacity into 4.
        return self.gpus * math.ceil(load / capacity * (1 - 1e-9))

    def usd(self, capacity: float, ladder: Ladder) -> float:
        """Return the cost of a thousand jobs, or of an agent that works for a month, at capacity.
        NaN if the hardware has no price."""
        hours = HOURS_PER_MONTH if ladder is AGENTS else 1000 / 3600
        return self.usd_per_h * self.gpus * hours / capacity


def price_of(sweep: SweepRecord) -> MachinePrice:
    usd_per_h = math.nan if sweep.price is None else sweep.price.usd_per_gpu_hour
    return MachinePrice(sweep.gpus or 1, usd_per_h)


@dataclass(frozen=True, slots=True)
class CapacityContext:
    sweep: SweepRecord
    slo: Slo
    idle_mean_s: float

    @property
    def machine(self) -> str:
        return gpus_in_words(self.sweep.hardware or "this machine", self.sweep.gpus)

    @property
    def price(self) -> MachinePrice:
        return price_of(self.sweep)

    @property
    def ladder(self) -> Ladder:
        return ladder_of(self.sweep.arrivals)

    @property
    def agents(self) -> int | None:
        """How many agents the user wants to serve, if the user said so."""
        return max(self.sweep.agents, default=None)

    @property
    def begins_with_burst(self) -> bool:
        burst = self.sweep.horizon is None or self.sweep.horizon.burst > 0
        return burst and self.ladder is RATES


def noun_of(sweep: SweepRecord) -> str:
    """Return the word for the variants in sentences, by the axis in which they differ."""
    own = [v for v in sweep.variants if not v.reference]
    policies = {v.name.partition("@")[0] for v in own}
    routers = {v.router and v.router.name for v in own}
    splits = {v.disaggregate and v.disaggregate.name for v in own}
    if len(splits) > 1:
        return "variant"
    if len(routers) < 2:
        return "scheduler"
    return "router" if len(policies) == 1 else "variant"


def background_per_s(sweep: SweepRecord) -> float:
    return sweep.background.requests_per_s if sweep.background else 0.0


def also_serves(sweep: SweepRecord) -> str:
    """Return a sentence on the background load, or "" if there is none."""
    per_s = background_per_s(sweep)
    return f"Each machine also serves {per_s:g} background requests/s." if per_s else ""
