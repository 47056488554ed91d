"""Builds vLLM's scheduler, with or without the plug-in, and steps it for tests and measurements.

Runs under vLLM's interpreter.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.request import Request

from servers.policies.base import Policy
from servers.profiles.kv_memory import KvMemory
from servers.vllm.plugin.event_log import EventLog
from servers.vllm.plugin.scheduler import monotonic_ps
from servers.vllm.virtual_time.engine import VirtualScheduler
from servers.vllm.virtual_time.headless import answer, headless_scheduler, sampling

init_none_hash(sha256)


def build(
    scheduler: type[AsyncScheduler], kv_blocks: int, seqs: int, tokens: int, **kwargs: Any
) -> Any:
    return headless_scheduler(
        scheduler, KvMemory(kv_blocks, 16), max_num_seqs=seqs, step_tokens=tokens, **kwargs
    )


def build_plugged(policy: Policy, events: Path | None, *sizes: int) -> Any:
    """Build the plug-in as in a server, with the given policy object."""
    log = EventLog(str(events) if events else None)
    return build(
        VirtualScheduler, *sizes, policy=policy, events=log, clock_ps=monotonic_ps, guarded=True
    )


def request(
    key: str, prompt: list[int], output: int, at_s: float, block: int = 16, **xargs: Any
) -> Request:
    return Request(
        request_id=key,
        prompt_token_ids=prompt,
        sampling_params=sampling(output, **xargs),
        pooling_params=None,
        arrival_time=at_s,
        block_hasher=get_request_block_hasher(block, sha256),
    )


def step(scheduler: Any, sample: Callable[[Request], int] = lambda _: 7) -> Any:
    """Schedule one step and complete it with `sample(request)` as each request's token."""
    output = scheduler.schedule()
    compute(scheduler, output, sample)
    return output


def compute(scheduler: Any, output: Any, sample: Callable[[Request], int]) -> Any:
    """Complete a scheduled step, with a token for each request whose context is computed."""
    requests = [scheduler.requests[key] for key in output.num_scheduled_tokens]
    sampling_requests = [r for r in requests if r.num_computed_tokens >= r.num_tokens]
    return answer(scheduler, output, {r.request_id: [sample(r)] for r in sampling_requests})


def free_blocks(scheduler: Any) -> int:
    return int(scheduler.kv_cache_manager.block_pool.get_num_free_blocks())
