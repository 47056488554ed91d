"""Counts the bytecodes of a scheduling step with the plug-in, and of stock vLLM.

    python -m servers.vllm.virtual_time.overhead        under vLLM's interpreter

64 turns decode, 500 wait, 200 programs are pinned, and in each step the head of the queue does not
fit. The result is Python's bytecodes in `schedule()` alone, which a busy machine does not change.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

from servers.policies.base import Costs, pin

POLICIES = [
    *("fcfs", "program-fcfs", "continuum", "infercept", "autellix", "agentix", "las"),
    *("thunderagent", "progress-ttl", "turnstile"),
]
"""Not cachewise, which gives up pins for a turn that does not fit: each step then admits some."""
RUNNING, WAITING, PINNED = 64, 500, 200
KV_BLOCKS = 100_000
FREE_BLOCKS = 12
"""Fewer than any waiting prompt needs, and more than the decodes of a step need."""
STEPS = 16
"""In each of them a sixteenth of the turns opens a block."""


def build_arm(name: str) -> Any:
    """Return the scheduler of an arm, with its running, waiting and pinned turns."""
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler

    from servers.variants import make_policy, variant
    from servers.vllm.virtual_time.stepping import build, build_plugged

    sizes = (KV_BLOCKS, RUNNING, 8192)
    if name == "stock":
        scheduler = build(AsyncScheduler, *sizes)
    else:
        costs = Costs(prefill_s=lambda tokens: tokens / 5000, kv_tokens=KV_BLOCKS * 16)
        policy = make_policy(variant(name), costs)
        scheduler = build_plugged(policy, None, *sizes)
        _pin(scheduler)
        now_ps = time.monotonic_ns() * 1000
        scheduler.clock_ps = lambda: now_ps
    _fill(scheduler)
    return scheduler


def _pin(scheduler: Any) -> None:
    from servers.vllm.virtual_time.stepping import request, step

    policy = scheduler.runner.policy
    finished, review = policy.finished, policy.review
    policy.finished = lambda view, now_s: (finished(view, now_s), pin(1e9))[1]
    policy.review = lambda *_: ()
    for i in range(PINNED):
        prompt = range(1000 * i, 1000 * i + 300)
        scheduler.add_request(request(f"p{i}", list(prompt), 2, time.time(), program_id=f"p{i}"))
    while scheduler.has_unfinished_requests():
        step(scheduler)
    policy.finished, policy.review = finished, review
    _expect("programs pinned", len(scheduler.runner.pins), PINNED)


def _fill(scheduler: Any) -> None:
    from servers.vllm.virtual_time.stepping import request, step

    token_ids = itertools.count(200_000)

    def send(key: str, prompt: int, output: int) -> None:
        tokens = list(itertools.islice(token_ids, prompt))
        scheduler.add_request(request(key, tokens, output, time.time(), program_id=key, tools="ls"))

    for i in range(RUNNING):
        send(f"r{i}", 193 + i % 16, 90_000)
    while len(scheduler.running) < RUNNING or scheduler._inflight_prefills:
        step(scheduler)
    for i in range(WAITING):
        send(f"w{i}", 200 + i % 100, 10)
    scheduler.max_num_active_reqs = scheduler.max_num_running_reqs = 2 * RUNNING
    pool = scheduler.kv_cache_manager.block_pool
    scheduler.reserved = pool.get_new_blocks(pool.get_num_free_blocks() - FREE_BLOCKS)


def count_bytecodes(scheduler: Any) -> float:
    """Return the bytecodes per step."""
    total = 0

    def on_event(_frame: FrameType, event: str, _argument: Any) -> Any:
        nonlocal total
        total += event == "opcode"
        return on_event

    def on_call(frame: FrameType, _event: str, _argument: Any) -> Any:
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return on_event

    def schedule() -> Any:
        sys.settrace(on_call)
        try:
            return scheduler.schedule()
        finally:
            sys.settrace(None)

    _run_steps(scheduler, scheduler.schedule)  # the first steps review all pins
    _run_steps(scheduler, schedule)
    return total / STEPS


def _run_steps(scheduler: Any, schedule: Callable[[], Any]) -> None:
    from servers.vllm.virtual_time.stepping import compute

    pool = scheduler.kv_cache_manager.block_pool
    for _ in range(STEPS):
        missing = FREE_BLOCKS - pool.get_num_free_blocks()
        pool.free_blocks([scheduler.reserved.pop() for _ in range(missing)])
        output = schedule()
        _expect("turns in a step", len(output.num_scheduled_tokens), RUNNING)
        compute(scheduler, output, lambda _: 7)


def _expect(what: str, count: int, expected: int) -> None:
    if count != expected:
        raise RuntimeError(f"{count} {what} instead of {expected}")


if __name__ == "__main__":
    stock = count_bytecodes(build_arm("stock"))
    print(f"{'stock':14} {stock:7.0f} bytecodes")
    for name in POLICIES:
        bytecodes = count_bytecodes(build_arm(name))
        print(f"{name:14} {bytecodes:7.0f} bytecodes, {bytecodes / stock:.3f} of stock")
