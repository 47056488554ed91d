"""Record of cell.json: everything that determines the result of a cell."""

from __future__ import annotations

from msgspec import field

from servers.records.fields import Count, Name, Rate, Scalar
from servers.records.settings import (
    OffloadRecord,
    RouterRecord,
    RunSettings,
    SplitRecord,
    WorkloadRecord,
)


class CellRecord(
    RunSettings, kw_only=True, frozen=True, tag_field="format", tag="turnstile-cell-1"
):
    """One variant at one rate with one seed."""

    variant: Name
    policy: Name | None = None
    policy_arguments: dict[str, Scalar] = field(default_factory=dict)
    policy_source: str | None = None
    policy_sha256: str | None = None
    """Hash of a user's policy and its imports."""
    reference: Name | None = None
    """What no server can give it, `the future` or `unlimited KV`."""
    router: RouterRecord | None = None
    disaggregate: SplitRecord | None = None
    offload: OffloadRecord | None = None
    jps: Rate | None
    """Jobs per second; null if the loop is closed or the arrivals are recorded."""
    agents: Count | None = None
    """Agents in flight, with `--arrivals agents`."""
    seed: Count
    """Seed of the arrivals and of the order of programs."""
    repeat: Count = 1
    """With `--repeats`."""
    arrivals: Name
    workload: WorkloadRecord

    @property
    def amount(self) -> float | None:
        """The load as a number: jobs per second, or agents; None if it has none."""
        return self.jps if self.agents is None else float(self.agents)
