"""What the capacities of a run refer to: the SLO, the machine and its price.

In: `sweep.json`. Out: values that sentences, tables and figures share.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from reports.capacity.slo import Slo
from reports.loads import AGENTS, RATES, Ladder, ladder_of
from servers.basics.phrasing import gpus_in_words
from servers.records.settings import HorizonRecord
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
        """Cost of one machine."""
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
    """What the capacities of a run refer to."""

    slo: Slo
    idle_mean_s: float
    baseline: str
    machine: str
    price: MachinePrice
    seeds: int
    background_per_s: float
    """Background requests per second that each machine serves alongside the jobs."""
    noun: str = "scheduler"
    """The word for a variant in sentences."""
    ladder: Ladder = RATES
    """The kind of load."""
    agents: int | None = None
    """How many agents the user wants to serve, if the user said so."""
    horizon: HorizonRecord | None = None
    """For how long jobs arrive in a cell; None: until a steady state."""
    arrivals: str = "poisson"
    """As in `sweep.json`."""

    @property
    def begins_with_burst(self) -> bool:
        burst = self.horizon is None or self.horizon.burst > 0
        return burst and self.ladder is RATES


def capacity_context(sweep: SweepRecord, slo: Slo, idle_mean_s: float) -> CapacityContext:
    machine = gpus_in_words(sweep.hardware or "this machine", sweep.gpus)
    return CapacityContext(
        slo,
        idle_mean_s,
        sweep.baseline,
        machine,
        price_of(sweep),
        len(sweep.seeds),
        background_per_s(sweep),
        noun_of(sweep),
        ladder_of(sweep.arrivals),
        max(sweep.agents, default=None),
        sweep.horizon,
        sweep.arrivals or "",
    )


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
