"""Record of cell.json: everything that determines the result of a cell."""

from __future__ import annotations

from typing import Annotated

from msgspec import field

from servers.records.fields import Count, Name, Rate, Scalar, meaning
from servers.records.settings import (
    SHA256,
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
    policy: Annotated[Name | None, meaning("class of the policy")] = None
    policy_arguments: Annotated[dict[str, Scalar], meaning("its arguments")] = field(
        default_factory=dict
    )
    policy_source: Annotated[str | None, meaning("publication or code it follows")] = None
    policy_sha256: Annotated[
        str | None, meaning(f"{SHA256} it imports", only="policies of users")
    ] = None
    bound: Annotated[bool, meaning("true for a reference, which knows the future")] = False
    router: Annotated[RouterRecord | None, meaning("router", only="several replicas")] = None
    disaggregate: Annotated[SplitRecord | None, meaning("split", only="disaggregation")] = None
    offload: Annotated[TierRecord | None, meaning("offload tier", only="variants with one")] = None
    jps: Annotated[
        Rate | None, meaning("jobs per second", "the loop is closed or the arrivals are recorded")
    ]
    seed: Annotated[Count, meaning("seed of the arrivals and of the order of programs")]
    repeat: Annotated[Count, meaning("number of the measurement", only="`--repeats`, from 2")] = 1
    arrivals: Annotated[Name, meaning("arrivals as on the command line")]
    workload: Annotated[WorkloadRecord, meaning("programs of the jobs")]
