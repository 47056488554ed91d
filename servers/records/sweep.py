"""Records of sweep.json and members.json: the plan of a sweep, and the sweeps on each machine."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, field

from servers.records.fields import Count, Name, Number, Rate, Record, Scalar
from servers.records.settings import OffloadRecord, RouterRecord, RunSettings, SplitRecord

ONCE = (1,)
"""Repeats of a sweep in which each cell is measured once."""
MAX_CELLS = 100_000
"""Largest product of variants, rates and seeds."""
FolderName = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9][A-Za-z0-9._+-]*\Z", max_length=255)]


class VariantRecord(Record, kw_only=True, frozen=True):
    """A variant of the sweep. Fields that cell.json has too are described there."""

    name: Name
    description: str | None = None
    policy: Name | None = None
    policy_arguments: dict[str, Scalar] = field(default_factory=dict)
    policy_source: str | None = None
    policy_sha256: str | None = None
    reference: Name | None = None
    router: RouterRecord | None = None
    disaggregate: SplitRecord | None = None
    offload: OffloadRecord | None = None
    same_as: Name | None = None
    """The variant that this one measures a second time."""


class SearchRecord(Record, frozen=True):
    """The SLO of a search for capacities, which adds cells at further rates."""

    slo: Name
    until: Name | None = None
    """The rule that decided the number of seeds, as with `--until`."""


class PriceRecord(Record, frozen=True):
    """What one GPU costs, and where the price comes from."""

    usd_per_gpu_hour: Rate
    source: Name
    """`--price`, `the GPU file`, or the provider of a list price."""
    date: Name | None = None
    """Of a list price."""


class ApiPriceRecord(Record, frozen=True):
    """What an API charges, in USD per million tokens."""

    cached: Number
    """Input that a job's earlier turns contain."""
    input: Number
    """Other input."""
    output: Number


class Unsupported(Record, frozen=True):
    """A variant that the engine cannot run on this machine, and the reason."""

    name: str
    reason: str


class NoteRecord(Record, frozen=True):
    """A repair in a trace file, or the reason of its rejection."""

    file: str
    reason: str


class MadeBy(Record, kw_only=True, frozen=True):
    """What made the first run in the folder."""

    argv: tuple[str, ...] = ()
    """The command, without keys and paths of private sessions."""
    git_commit: Scalar = None
    """Absent outside a checkout."""
    python: Scalar = None
    core: Scalar = None
    """`compiled` or `python`."""


class SweepRecord(
    RunSettings, kw_only=True, frozen=True, tag_field="format", tag="turnstile-sweep-2"
):
    """The plan of a sweep on one machine."""

    variants: tuple[VariantRecord, ...]
    jps: tuple[Rate | None, ...]
    """Rates of all variants: `[null]` without, empty with `--jps auto` and with agents."""
    agents: tuple[Count, ...] = ()
    """Numbers of agents of all variants, with `--agents`."""
    seeds: tuple[Count, ...]
    repeats: tuple[Count, ...] = ONCE
    """Numbers of the measurements of a cell."""
    search: SearchRecord | None = None
    baseline: Name
    price: PriceRecord | None = None
    """Price of the hardware, which decides costs but no cell."""
    api_price: ApiPriceRecord | None = None
    """`--api-price`."""
    left_out: tuple[Unsupported, ...] = ()
    """Variants of `--policies all` that the engine cannot run here."""
    rejected_files: tuple[NoteRecord, ...] = ()
    repairs: tuple[NoteRecord, ...] = ()
    made_by: MadeBy = MadeBy()

    @property
    def amounts(self) -> tuple[float | None, ...]:
        """The loads of all variants as numbers: jobs per second, or agents."""
        return tuple(map(float, self.agents)) or self.jps

    def __post_init__(self) -> None:
        if len(self.variants) * len(self.amounts or [0]) * len(self.seeds) > MAX_CELLS:
            raise ValueError(f"has more than {MAX_CELLS:,} cells")


class MemberRecord(Record, frozen=True):
    """The sweep on one machine, or after one of several bursts."""

    folder: FolderName
    hardware: Name
    model: Name
    gpus: Count | None = None
    burst: Count | None = None
    """Jobs that arrive together at the beginning, if the sweeps differ in it."""


class MembersRecord(
    Record, kw_only=True, frozen=True, tag_field="format", tag="turnstile-members-1"
):
    """The sweeps on several machines."""

    members: Annotated[tuple[MemberRecord, ...], Meta(min_length=1, max_length=1000)]
    made_by: MadeBy = MadeBy()
