"""Types of the fields of sweep.json, cell.json and done.json that reports use.

A run folder may come from an untrusted source, so these fields are checked: types as in
docs/reference/run-folder.md, numbers within `MAX_VALUE`, names without control characters. Other
fields are allowed and ignored. `servers.records.turns` has the types of turns.jsonl and
engine.jsonl.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from servers.basics.text import MAX_CHARACTERS, brief, first_error, has_control, requirement
from servers.records.turns import MAX_VALUE, Scalar

MAX_CELLS = 100_000
"""Largest product of variants, rates and seeds."""


def _printable(text: str) -> str:
    if has_control(text):
        raise ValueError("must have no control characters")
    return text


Name = Annotated[str, Field(min_length=1, max_length=MAX_CHARACTERS), AfterValidator(_printable)]
Count = Annotated[int, Field(ge=0, le=MAX_VALUE)]
Number = Annotated[float, Field(ge=-MAX_VALUE, le=MAX_VALUE)]
Rate = Annotated[float, Field(gt=0, le=MAX_VALUE)]
Settings = dict[str, Scalar | list[Scalar] | dict[str, Scalar]]
"""Settings that pages show by name, without interpreting them."""
Notes = list[dict[str, Scalar]]


class _Open(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False)


class _Workload(_Open):
    name: Annotated[str, AfterValidator(_printable)] | None = None
    """Joined names of the trace files."""
    programs: Count | None = None
    turns: Count | None = None
    shared_prefix_tokens: Count | None = None
    trace_sha256: Scalar = None
    gap_provenance: dict[Name, Count] | None = None
    sub_agents: Count | None = None
    inferred_token_programs: Count | None = None
    distinct_programs: Count | None = None
    recipe: Name | None = None
    left_out: Notes | None = None


class _Variant(_Open):
    name: Name
    policy: Name | None = None
    description: str | None = None
    policy_source: str | None = None
    bound: bool | None = None
    offload: Settings | None = None
    same_as: Name | None = None
    """The variant that this one measures a second time."""


class _Profile(_Open):
    """The other numbers of a profile are extra fields."""

    kv_blocks: Count | None = None
    base_ps: Count | None = None
    provenance: Name | None = None
    knots: list[list[Count]] | None = None
    kv_groups: list[Count | None] | None = None
    window: dict[Name, Count] | None = None
    __pydantic_extra__: dict[str, Scalar]


class _Agent(_Open):
    name: Scalar = None
    version: Scalar = None
    guided: bool | None = None
    sandbox: Settings | None = None


class _Background(_Open):
    """The requests beside the jobs."""

    name: Annotated[str, AfterValidator(_printable)]
    requests_per_s: Rate
    requests: Count


class _Machine(_Open):
    """Fields of the machine that a sweep and each of its cells have."""

    engine: Name | None = None
    hardware: Name | None = None
    model: Name | None = None
    arrivals: Name | None = None
    steady_state: bool | None = None
    profile: _Profile | None = None
    gpus: Count | None = None
    gpu: Settings | None = None
    """The numbers of the file that describes the GPU."""
    server: Settings | None = None
    limits: Settings | None = None
    scheduling: Name | None = None
    kv_cache_dtype: Name | None = None
    agent: _Agent | None = None
    background: _Background | None = None


class MadeBy(_Open):
    argv: list[str] = []
    git_commit: Scalar = None
    python: Scalar = None


class _Search(_Open):
    slo: Name


class Sweep(_Machine, MadeBy):
    variants: list[_Variant]
    jps: list[Rate | None] | None
    seeds: list[Count]
    repeats: list[Count] | None = None
    search: _Search | None = None
    """A sweep that searches capacities has cells at other rates than `jps`, too."""
    baseline: Name
    workload: _Workload | None = None
    profile_with_offload: _Profile | None = None
    profile_notes: list[str] | None = None
    left_out: Notes | None = None
    rejected_files: Notes | None = None
    repairs: Notes | None = None
    turnstile_version: Scalar = None
    code_sha256: Scalar = None
    made_by: MadeBy | None = None
    """Earlier versions have these fields at the top level."""


class CellConfig(_Machine):
    variant: Name
    jps: Rate | None
    seed: Count
    repeat: Count | None = None
    arrivals: Name
    workload: _Workload
    bound: bool | None = None
    offload: Settings | None = None


def _same_length(points: list[list[Any]]) -> list[list[Any]]:
    if len({len(point) for point in points}) > 1:
        raise ValueError("must have points of the same length")
    return points


Points = list[Annotated[list[Number], Field(min_length=5, max_length=7)]]


class _Window(_Open):
    first_job: Count
    jobs: Count
    from_s: Number | None
    to_s: Number | None
    finished_jobs: Count | None = None
    shared_prefix_tokens: Count = 0


class _Jct(_Open):
    mean: Number
    p50: Number
    p90: Number
    p95: Number
    p99: Number


class _InSystem(_Open):
    growth: Number | None = None


class _EndOfBackground(_Open):
    until_s: Number
    unfinished: list[Annotated[list[Number | None], Field(min_length=2, max_length=2)]]
    """When each was due, and when it had its first token."""


class Done(_Open):
    finished_programs: Count
    client_stalls: list[Annotated[list[Number], Field(min_length=2, max_length=2)]] | None = None
    """When each began and ended, of a live cell."""
    background: _EndOfBackground | None = None
    window: _Window | None = None
    steady: bool | None = None
    unstable: Name | None = None
    jct_s: _Jct | None = None
    idle_jct_s: _Jct | None = None
    jobs_in_system: _InSystem | None = None
    usage: Annotated[Points, AfterValidator(_same_length)] | None = None
    replica_blocks: Annotated[list[list[Count]], AfterValidator(_same_length)] | None = None
    turns_per_replica: list[Count] | None = None
    prefix_caching: bool | None = None
    external_hit_tokens: Count | None = None
    kv_blocks: Count | None = None


def problem(model: type[BaseModel], value: dict[str, Any]) -> str | None:
    """Describe the first invalid field, its value and what was expected; None if all are valid."""
    try:
        model.model_validate(value)
    except ValidationError as error:
        field, first = first_error(error)
        if first["type"] == "missing":
            return f"lacks {field}"
        expected = requirement(first["msg"]).partition(" or instance of ")[0]
        return f"{field} is {brief(first['input'])}: {expected}"
    return None
