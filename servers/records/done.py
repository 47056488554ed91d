"""Record of done.json: what a cell did, written when it has finished."""

from __future__ import annotations

from typing import Annotated

from msgspec import Struct

from servers.records.fields import Blocks, Count, Name, Number, Seconds, Tokens, meaning

SUMMARY = "`mean`, `p50`, `p90`, `p95`, `p99` in seconds"
VIRTUAL_TIME, LIVE, STREAMS = "virtual time", "live cells", "streams"
UsagePoint = tuple[Seconds, Blocks, Blocks, Count, Count, Blocks, Blocks]
"""Time, blocks in use, pinned blocks, waiting turns, running turns, blocks in DRAM and on SSD."""


class Jct(Struct, frozen=True):
    """The mean and percentiles of job completion times, in seconds."""

    mean: Seconds
    p50: Seconds
    p90: Seconds
    p95: Seconds
    p99: Seconds


class WindowRecord(Struct, kw_only=True, omit_defaults=True):
    """The measured jobs of a stream."""

    first_job: Annotated[Count, meaning("`job_index` of the first measured job")]
    jobs: Annotated[Count, meaning("number of measured jobs")]
    from_s: Annotated[
        Seconds | None, meaning("arrival of the first of them", "the cell ended before")
    ]
    to_s: Annotated[
        Seconds | None, meaning("arrival of the first job after them", "the cell ended before")
    ]
    finished_jobs: Annotated[
        Count | None,
        meaning(
            "jobs that end between `from_s` and `to_s`, whenever they arrived",
            "not all measured jobs have ended",
        ),
    ] = None
    shared_prefix_tokens: Annotated[
        Tokens,
        meaning("leading tokens of first prompts that prompts of earlier programs have too", "0"),
    ] = 0


class JobsInSystem(Struct, kw_only=True, omit_defaults=True):
    """The jobs of a stream that have arrived and not ended."""

    mean: Annotated[Number | None, meaning("when a measured job arrives")] = None
    at_end: Annotated[Count | None, meaning("when the cell ended")] = None
    growth: Annotated[
        Number | None,
        meaning(
            "growth over the window, per arriving job "
            "([Statistics](../design/statistics.md#steady-state))",
            "not all measured jobs have ended",
        ),
    ] = None


class BackgroundEnd(Struct, kw_only=True):
    """The requests of a background that had not finished when the cell ended."""

    until_s: Annotated[Seconds, meaning("when the background ended")]
    unfinished: Annotated[
        list[tuple[Seconds, Seconds | None]],
        meaning("for each request, when it was due and when it had its first token, or null"),
    ]


class DoneRecord(Struct, kw_only=True, omit_defaults=True):
    """The result of a cell; the measurements themselves are in turns.jsonl."""

    finished_programs: Annotated[Count, meaning("programs that finished")]
    failed_turns: Annotated[Count, meaning("turns that failed")]
    virtual_s: Annotated[Seconds | None, meaning("clock at the end", only=VIRTUAL_TIME)] = None
    steps: Annotated[Count | None, meaning("engine steps", only=VIRTUAL_TIME)] = None
    strides: Annotated[Count | None, meaning("runs of the scheduler", only=VIRTUAL_TIME)] = None
    live_s: Annotated[Seconds | None, meaning("clock at the end", only=LIVE)] = None
    started_monotonic_s: Annotated[
        Seconds, meaning("time 0 of the cell on the machine's monotonic clock", only=LIVE)
    ] = 0.0
    window: Annotated[WindowRecord | None, meaning("measured jobs, below", only=STREAMS)] = None
    steady: Annotated[bool | None, meaning("whether a steady state was measured", only=STREAMS)] = (
        None
    )
    unstable: Annotated[
        Name | None, meaning("why no steady state was measured", only="streams without one")
    ] = None
    jct_s: Annotated[
        Jct | None,
        meaning(
            f"of the measured jobs that have ended: {SUMMARY}", only="streams, if any has ended"
        ),
    ] = None
    idle_jct_s: Annotated[
        Jct | None,
        meaning("the same on an idle machine; equal for all cells of a seed", only=STREAMS),
    ] = None
    jobs_in_system: Annotated[
        JobsInSystem | None, meaning("jobs under way, below", only=STREAMS)
    ] = None
    left_out_programs: Annotated[
        Count | None,
        meaning("programs drawn from a recipe that exceed the longest context", only=STREAMS),
    ] = None
    background: Annotated[
        BackgroundEnd | None,
        meaning("end of the background, below", only="cells with a background"),
    ] = None
    recorded_answers: Annotated[
        Count | None,
        meaning("turns whose recorded answer the engine computed", only="`--answers recorded`"),
    ] = None
    exit_statuses: Annotated[
        dict[str, Count] | None,
        meaning("number of programs by the way in which they ended", only="real agents"),
    ] = None
    client_stalls: Annotated[
        list[tuple[Seconds, Seconds]] | None,
        meaning(
            "`[from, to]` of each time in which the client got no CPU "
            '([Metrics](metrics.md), "Stalls of the client machine")',
            LIVE,
        ),
    ] = None
    turns_per_replica: Annotated[
        list[Count] | None, meaning("turns that each replica served", only=LIVE)
    ] = None
    kv_blocks: Annotated[
        Count | None,
        meaning(
            "KV blocks of the device", only="live cells, and virtual time with several replicas"
        ),
    ] = None
    block_tokens: Annotated[Tokens | None, meaning("tokens of a block", only=LIVE)] = None
    max_model_len: Annotated[Tokens | None, meaning("longest context", only=LIVE)] = None
    prefix_caching: Annotated[bool | None, meaning("whether it is enabled", only=LIVE)] = None
    external_hit_tokens: Annotated[
        Tokens | None, meaning("tokens that came from the offload tier", only="vLLM with a tier")
    ] = None
    prompt_seed: Annotated[
        int | None, meaning("seed of the token ids of prompts", only="a server at a URL")
    ] = None
    usage: Annotated[
        list[UsagePoint] | None,
        meaning(
            "at most 500 points `[t, used_blocks, pinned_blocks, waiting, running, dram_blocks, "
            "ssd_blocks]`",
            only=VIRTUAL_TIME,
        ),
    ] = None
    replica_blocks: Annotated[
        list[tuple[Blocks, ...]] | None,
        meaning(
            "for each point of `usage`, the blocks that turns and pins hold on each replica",
            only="virtual time with several replicas",
        ),
    ] = None

    def __post_init__(self) -> None:
        if len({len(point) for point in self.replica_blocks or ()}) > 1:
            raise ValueError("replica_blocks must have points of the same length")


class FailedRecord(Struct, kw_only=True):
    """failed.json: why a cell has no done.json."""

    error: str
    traceback: str | None = None
