"""What `sweep.json`, `cell.json` and `done.json` of a run folder must be for a report to read them.

Run folders travel: what stands in one may be anybody's. Fields that reports use have the types of
docs/reference/run-folder.md and numbers within `MOST`; others are let be. Names are fit for a
terminal.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from traces.lenient import MAX_CHARACTERS, brief, first_error, has_control

MOST = 1e15
"""Seconds, tokens, blocks: no run has more, and sums of a million of these stay finite."""
MOST_CELLS = 100_000
"""Variants times rates times seeds."""


def _fit(text: str) -> str:
    if has_control(text):
        raise ValueError("a name has no control characters")
    return text


Name = Annotated[str, Field(min_length=1, max_length=MAX_CHARACTERS), AfterValidator(_fit)]
Count = Annotated[int, Field(ge=0, le=int(MOST))]
Number = Annotated[float, Field(ge=-MOST, le=MOST)]
Rate = Annotated[float, Field(gt=0, le=MOST)]
Scalar = str | int | float | bool | None
Settings = dict[str, Scalar | list[Scalar] | dict[str, Scalar]]
"""Told as they are, name by name."""
Told = list[dict[str, Scalar]]


class _Open(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False)


class _Workload(_Open):
    name: Annotated[str, AfterValidator(_fit)] | None = None
    """Of files, as many as were given."""
    programs: Count | None = None
    turns: Count | None = None
    shared_prefix_tokens: Count | None = None
    trace_sha256: Scalar = None
    gap_provenance: dict[Name, Count] | None = None
    left_out: Told | None = None


class _Variant(_Open):
    name: Name
    policy: Name | None = None
    description: str | None = None
    policy_source: str | None = None
    bound: bool | None = None
    offload: Settings | None = None


class _Profile(_Open):
    """With other numbers of a profile."""

    kv_blocks: Count | None = None
    base_ps: Count | None = None
    provenance: Name | None = None
    __pydantic_extra__: dict[str, Scalar]


class _Agent(_Open):
    name: Scalar = None
    version: Scalar = None
    guided: bool | None = None
    sandbox: Settings | None = None


class _Machine(_Open):
    """What a sweep and each of its cells say of the machine."""

    engine: Name | None = None
    hardware: Name | None = None
    model: Name | None = None
    arrivals: Name | None = None
    profile: _Profile | None = None
    server: Settings | None = None
    limits: Settings | None = None
    agent: _Agent | None = None


class _MadeBy(_Open):
    argv: list[str] = []
    git_commit: Scalar = None
    python: Scalar = None


class Sweep(_Machine, _MadeBy):
    variants: list[_Variant]
    jps: list[Rate | None] | None
    seeds: list[Count]
    baseline: Name
    workload: _Workload | None = None
    profile_with_offload: _Profile | None = None
    left_out: Told | None = None
    rejected_files: Told | None = None
    repairs: Told | None = None
    turnstile_version: Scalar = None
    code_sha256: Scalar = None
    made_by: _MadeBy | None = None
    """Not in earlier versions, which had its fields beside the others."""


class CellConfig(_Machine):
    variant: Name
    jps: Rate | None
    seed: Count
    workload: _Workload
    bound: bool | None = None
    offload: Settings | None = None
    gpus: Count | None = None


def _even(points: list[list[float]]) -> list[list[float]]:
    if len({len(point) for point in points}) > 1:
        raise ValueError("its points have different lengths")
    return points


Points = list[Annotated[list[Number], Field(min_length=5, max_length=7)]]


class Done(_Open):
    usage: Annotated[Points, AfterValidator(_even)] | None = None
    turns_per_replica: list[Count] | None = None
    prefix_caching: bool | None = None
    external_hit_tokens: Count | None = None
    kv_blocks: Count | None = None


class Turn(_Open):
    """A line of turns.jsonl, for exports, which write most of it as it is."""

    program_id: str
    job_id: str
    turn: Count
    replica: Count | None = None
    scheduled_at_s: Number | None = None
    sent_at_s: Number | None = None
    first_token_at_s: Number | None = None
    finished_at_s: Number | None = None
    prompt_tokens: Count | None = None
    output_tokens: Count | None = None
    kept_tokens: Count | None = None
    preemptions: Count | None = None
    gap_s: Number | None = None
    wait_s: Number | None = None
    gap_provenance: str | None = None
    pinned_hit: bool | None = None
    tools: list[str] | None = None
    error: str | None = None


class Event(_Open):
    """A line of engine.jsonl."""

    t: Number
    event: str
    program_id: str
    turn: Count | None = None
    prompt_length: Count | None = None
    hit_length: Count | None = None
    blocks: Count | None = None


def wrong(model: type[BaseModel], value: dict[str, Any]) -> str | None:
    """The first field that is not as it should be, and why; None where all are."""
    try:
        model.model_validate(value)
    except ValidationError as error:
        field, first = first_error(error)
        return f"{field} is {brief(first['input'])}: {first['msg']}"
    return None
