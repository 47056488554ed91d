"""Records of sweep.json and machines.json: the plan of a sweep, and the sweeps on each machine."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, field

from servers.records.fields import Count, Name, Rate, Record, Scalar, meaning
from servers.records.settings import RouterRecord, RunSettings, SplitRecord, TierRecord

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
    bound: bool = False
    router: RouterRecord | None = None
    disaggregate: SplitRecord | None = None
    offload: TierRecord | None = None
    same_as: Annotated[
        Name | None, meaning("variant that this one measures a second time", only="second arms")
    ] = None


class SearchRecord(Record, frozen=True):
    slo: Annotated[Name, meaning("what a sustained rate meets")]


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

    argv: Annotated[
        tuple[str, ...],
        meaning("the command; keys are `***` and paths of private sessions `TRACES`"),
    ] = ()
    git_commit: Annotated[Scalar, meaning("commit", only="a checkout")] = None
    python: Annotated[Scalar, meaning("version of Python")] = None
    core: Annotated[
        Scalar, meaning("core that simulates cells of `sim`: `compiled` or `python`")
    ] = None


class SweepRecord(
    RunSettings, kw_only=True, frozen=True, tag_field="format", tag="turnstile-sweep-1"
):
    """The plan of a sweep on one machine."""

    variants: Annotated[tuple[VariantRecord, ...], meaning("variants, below")]
    jps: Annotated[
        tuple[Rate | None, ...],
        meaning("rates at which all variants run: `[null]` without rates, empty with `--jps auto`"),
    ]
    seeds: Annotated[tuple[Count, ...], meaning("seeds")]
    repeats: Annotated[tuple[Count, ...], meaning("numbers of the measurements of a cell")] = ONCE
    search: Annotated[
        SearchRecord | None,
        meaning("`{slo}`: there are cells at further rates", only="searches for capacities"),
    ] = None
    baseline: Annotated[Name, meaning("variant with which others are compared")]
    left_out: Annotated[
        tuple[Unsupported, ...],
        meaning("`{name, reason}` of variants of `--policies all` that the engine cannot run here"),
    ] = ()
    rejected_files: Annotated[tuple[NoteRecord, ...], meaning("`{file, reason}` of traces")] = ()
    repairs: Annotated[tuple[NoteRecord, ...], meaning("`{file, reason}` of traces")] = ()
    made_by: Annotated[MadeBy, meaning("what made the first run, below")] = MadeBy()

    def __post_init__(self) -> None:
        if len(self.variants) * len(self.jps or [0]) * len(self.seeds) > MAX_CELLS:
            raise ValueError(f"has more than {MAX_CELLS:,} cells")


class MemberRecord(Record, frozen=True):
    """The sweep on one machine."""

    folder: Annotated[FolderName, meaning("its run folder")]
    hardware: Name
    model: Name
    gpus: Count | None = None


class MachinesRecord(
    Record, kw_only=True, frozen=True, tag_field="format", tag="turnstile-machines-1"
):
    """The sweeps on several machines."""

    machines: Annotated[tuple[MemberRecord, ...], Meta(min_length=1, max_length=1000)]
    made_by: Annotated[MadeBy, meaning("what made the first run")] = MadeBy()
