"""Checks that a real engine holds pins (execution note, §4).

Runs the turns of one program, and samples vLLM's KV usage metric between them. In: a server with a
policy inside. Out: for each tool gap the blocks that the same policy holds in virtual time, and the
smallest and largest number of blocks that the metric showed.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from msgspec import UNSET

from harness.replay.live import replay_live
from harness.replay.live_server import LiveServer, Service
from harness.replay.load_reports import MAX_PAGE_BYTES
from harness.replay.virtual import replay
from servers.policies.base import Costs, Policy
from servers.processes.metrics_page import KV_USAGE, samples
from servers.profiles import analytic_profile
from servers.records.turns import EventRecord, TurnRecord
from servers.sim import Engine, Limits
from servers.vllm.launch.server import CACHE_CONFIG, ServerInfo
from servers.vllm.plugin.cost_curve import CostCurve
from traces import Program, Turn

if TYPE_CHECKING:
    import openai

LENGTHS = ((66, 7), (131, 9), (279, 12), (397, 8), (503, 7))
"""Prompt and output tokens of the note's turns. Each prompt repeats the whole previous context."""
TOOLS = ("ls", "cat", "grep", "git", "pytest")
EXPENSIVE_PREFILL = CostCurve(base_s=0.0, linear_s=1.0, quadratic_s=0.0)
"""One second per token, so that policies that compare costs with a short tool gap pin."""
EXPENSIVE_COSTS = Costs(prefill_s=float)
"""The same costs for virtual time."""
SAMPLE_INTERVAL_S = 0.1
SAMPLE_TIMEOUT_S = 60.0
SETTLE_S = 0.2
"""Time after a turn's last byte until the metric includes its blocks."""
AFTERWARDS_S = 1.0
"""Time for samples after the last turn."""


@dataclass(frozen=True, slots=True)
class Gap:
    """The blocks that were held after a turn."""

    turn: int
    held_tokens: int
    """Prompt and output without the last token, which has no KV."""
    expected_blocks: int
    min_blocks: int
    max_blocks: int
    next_hit_tokens: int | None
    """Cached tokens of the next turn; None after the last turn."""

    @property
    def good(self) -> bool:
        return self.min_blocks == self.max_blocks == self.expected_blocks


def _program(gap_s: float) -> Program:
    turns, context = [], 0
    for (prompt, output), tool in zip(LENGTHS, TOOLS, strict=True):
        turns.append(Turn(prompt, output, context, (tool,), None, tool_gap_s=gap_s))
        context = prompt + output
    return Program("pins", tuple(turns))


def expected_blocks(policy: Policy, gap_s: float, block_tokens: int, kv_blocks: int) -> list[int]:
    """Return the blocks pinned after each turn in virtual time; 0 where the policy frees them."""
    held = [0] * len(LENGTHS)

    def on_event(event: EventRecord) -> None:
        if event.event == "pinned" and event.blocks is not UNSET:
            held[event.turn] = event.blocks

    profile = analytic_profile(
        "b200", "llama-3.1-8b", kv_blocks=kv_blocks, block_tokens=block_tokens
    )
    engine = partial(Engine, policy, profile, Limits(), on_event=on_event)
    replay([_program(gap_s)], [0.0], None, engine, on_turn=lambda _: None)
    return held


def measure_gaps(
    info: ServerInfo, replica: LiveServer, expected: Sequence[int], gap_s: float
) -> list[Gap]:
    records, usages, origin_s = asyncio.run(_replay_and_sample(info, replica, gap_s))
    records.sort(key=lambda record: record.turn)
    if failed := next((record for record in records if record.error), None):
        raise RuntimeError(f"turn {failed.turn} failed: {failed.error}")
    ends = [record.sent_at_s for record in records[1:]] + [math.inf]
    gaps = []
    for number, (record, end_s) in enumerate(zip(records, ends, strict=True)):
        since_s = (record.finished_at_s or 0.0) + SETTLE_S
        blocks = [
            round(usage * (info.kv_blocks - 1))  # vLLM reserves one block
            for at_s, usage in usages
            if since_s <= at_s - origin_s < end_s
        ]
        following = records[number + 1] if number + 1 < len(records) else None
        held_tokens = (record.prompt_tokens or 0) + (record.output_tokens or 0) - 1
        gaps.append(
            Gap(
                turn=number,
                held_tokens=held_tokens,
                expected_blocks=expected[number],
                min_blocks=min(blocks),
                max_blocks=max(blocks),
                next_hit_tokens=None if following is None else following.device_hit_tokens,
            )
        )
    return gaps


async def _replay_and_sample(
    info: ServerInfo, replica: LiveServer, gap_s: float
) -> tuple[list[TurnRecord], list[tuple[float, float]], float]:
    # Here, since the import takes a second, in which no turn could be sent.
    from harness.replay.openai_client import open_client

    service = Service([replica], info.model, range(*info.vocabulary), seed=0, turn_timeout_s=60.0)
    records: list[TurnRecord] = []
    usages: list[tuple[float, float]] = []
    async with open_client(SAMPLE_TIMEOUT_S) as client:
        sampling = asyncio.create_task(_sample(client, replica.base_url, usages))
        try:
            done = await replay_live(
                [_program(gap_s)], [0.0], None, service, on_turn=records.append
            )
            await asyncio.sleep(AFTERWARDS_S)
        finally:
            sampling.cancel()
            with suppress(asyncio.CancelledError):
                await sampling
    return records, usages, done.started_monotonic_s


async def _sample(
    client: openai.AsyncOpenAI, base_url: str, usages: list[tuple[float, float]]
) -> None:
    from harness.replay.openai_client import read

    clock = asyncio.get_running_loop().time
    while True:
        page = await read(client, f"{base_url}/metrics", MAX_PAGE_BYTES)
        usages.append((clock(), kv_usage(page.decode())))
        await asyncio.sleep(SAMPLE_INTERVAL_S)


def kv_usage(metrics: str) -> float:
    """Return the share of the KV memory in use, from 0 to 1. With Prometheus' multiprocess mode,
    which `bench serve` uses, vLLM's page lacks it before the first step."""
    if usages := samples(metrics, KV_USAGE):
        return float(usages[0].value)
    if CACHE_CONFIG in metrics:
        return 0.0
    raise RuntimeError(f"/metrics has no {KV_USAGE}; is this vLLM?")
