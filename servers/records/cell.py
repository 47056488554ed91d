"""Record of cell.json: everything that determines the result of a cell."""

from __future__ import annotations

from msgspec import field

from servers.records.fields import Count, Name, Rate, Scalar
from servers.records.settings import (
    RouterRecord,
    RunSettings,
    SplitRecord,
    TierRecord,
    WorkloadRecord,
)


class CellRecord(
    RunSettings, kw_only=True, frozen=True, tag_field="format", tag="turnstile-cell-1"
):
    """One variant at one rate with one seed."""

    variant: Name
    policy: Name | None = None
    """Class of the policy."""
    policy_arguments: dict[str, Scalar] = field(default_factory=dict)
    """Its arguments."""
    policy_source: str | None = None
    """Publication or code it follows."""
    policy_sha256: str | None = None
    """Hash of a policy of users and of the modules outside `site-packages` that it imports."""
    bound: bool = False
    """True for a reference, which knows the future."""
    router: RouterRecord | None = None
    """The router in front of several replicas."""
    disaggregate: SplitRecord | None = None
    """Separate engines for prompts and for answers."""
    offload: TierRecord | None = None
    """The offload tier."""
    jps: Rate | None
    """Jobs per second; null if the loop is closed or the arrivals are recorded."""
    seed: Count
    """Seed of the arrivals and of the order of programs."""
    repeat: Count = 1
    """Number of the measurement, with `--repeats`; absent in the first."""
    arrivals: Name
    """Arrivals as on the command line."""
    workload: WorkloadRecord
    """Programs of the jobs."""
