"""Record of done.json: what a cell did, written when it has finished."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from servers.records.fields import Blocks, Count, Name, Number, Seconds, Tokens

UsagePoint = tuple[Seconds, Blocks, Blocks, Count, Count, Blocks, Blocks]
"""Time, blocks in use, pinned blocks, waiting turns, running turns, blocks in DRAM and on SSD."""

PERCENTS = range(1, 100)


class Summary(Struct, frozen=True):
    """The mean and percentiles of times, in seconds."""

    mean: Seconds
    percentiles: Annotated[tuple[Seconds, ...], Meta(min_length=99, max_length=99)]
    """P1, P2, … P99: all of them, since sweeps with different SLOs share cells."""

    def percentile(self, percent: int) -> float:
        return self.percentiles[percent - PERCENTS.start]


class Times(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The times of jobs and of their turns, in seconds."""

    jct: Summary
    ttft: Summary | None = None
    """From sending to the first token."""
    first_ttft: Summary | None = None
    """The same, of the first turns of jobs."""
    tpot: Summary | None = None
    """Between two output tokens."""
    per_token: Summary | None = None
    """From sending to the last token ÷ output tokens: the inverse of the speed that a user sees."""


class WindowRecord(Struct, kw_only=True, omit_defaults=True):
    """The measured jobs of a stream."""

    first_job: Count
    """`job_index` of the first measured job."""
    jobs: Count
    from_s: Seconds | None
    """Its arrival, or when an agent was free for it; null if there was none."""
    to_s: Seconds | None
    """The same of the first job after them."""
    finished_jobs: Count | None = None
    """Jobs that end in the window, whenever they arrived."""
    shared_prefix_tokens: Tokens = 0
    """Leading tokens of first prompts that earlier programs have too."""


class JobsInSystem(Struct, kw_only=True, omit_defaults=True):
    """The jobs of a stream that have arrived and not ended."""

    mean: Number | None = None
    """When a measured job arrives."""
    at_end: Count | None = None
    growth: Number | None = None
    """Growth over the window, per arriving job."""


class BackgroundEnd(Struct, kw_only=True):
    """The requests of a background that had not finished when the cell ended."""

    until_s: Seconds
    unfinished: list[tuple[Seconds, Seconds | None]]
    """For each request, when it was due and when it had its first token, or null."""


class DoneRecord(Struct, kw_only=True, omit_defaults=True):
    """The result of a cell; the measurements themselves are in turns.jsonl."""

    finished_programs: Count
    failed_turns: Count
    virtual_s: Seconds | None = None
    steps: Count | None = None
    strides: Count | None = None
    live_s: Seconds | None = None
    started_monotonic_s: Seconds = 0.0
    """Time 0 on the machine's monotonic clock. Only in live cells."""
    window: WindowRecord | None = None
    """The measured jobs. Only in streams."""
    steady: bool | None = None
    """Whether a steady state was measured. Only in streams."""
    unstable: Name | None = None
    """Why no steady state was measured. Only in streams without one."""
    times_s: Times | None = None
    """Times of the measured jobs that have ended. Only in streams."""
    idle_times_s: Times | None = None
    """The same on an idle machine; equal for all cells of a seed. Only in streams."""
    jobs_in_system: JobsInSystem | None = None
    """Jobs that have arrived and not ended. Only in streams."""
    left_out_programs: Count | None = None
    """Programs drawn from a recipe that exceed the longest context. Only in streams."""
    background: BackgroundEnd | None = None
    """The requests that had not finished when the cell ended. Only with a background."""
    recorded_answers: Count | None = None
    """Turns whose recorded answer the engine computed. Only with `--answers recorded`."""
    exit_statuses: dict[str, Count] | None = None
    """Programs by the way in which they ended. Only with real agents."""
    refusals: Count | None = None
    """Requests that a full queue refused and that were sent again."""
    counted_turns: Count | None = None
    """Turns whose tokens were counted with `--tokenizer`."""
    client_stalls: list[tuple[Seconds, Seconds]] | None = None
    """`[from, to]` of each time in which the client got no CPU. Only in live cells."""
    turns_per_replica: list[Count] | None = None
    kv_blocks: Count | None = None
    block_tokens: Tokens | None = None
    max_model_len: Tokens | None = None
    prefix_caching: bool | None = None
    external_hit_tokens: Tokens | None = None
    """Tokens that came from the offload tier. Only in vLLM with a tier."""
    prompt_seed: int | None = None
    """Seed of the token ids of prompts. Only with a server at a URL."""
    usage: list[UsagePoint] | None = None
    """At most 500 points `[t, used_blocks, pinned_blocks, waiting, running, dram_blocks,
    ssd_blocks]`. Only in virtual time."""
    replica_blocks: list[tuple[Blocks, ...]] | None = None
    """For each point of `usage`, the blocks that turns and pins hold on each replica."""

    def __post_init__(self) -> None:
        if len({len(point) for point in self.replica_blocks or ()}) > 1:
            raise ValueError("replica_blocks must have points of the same length")


class FailedRecord(Struct, kw_only=True):
    """failed.json: why a cell has no done.json."""

    error: str
    traceback: str | None = None
