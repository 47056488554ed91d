"""Measures the cost of a scheduling step with the plug-in against stock vLLM.

    python -m servers.vllm.virtual_time.overhead [--json] [ROUNDS]        under vLLM's interpreter
    python -m servers.vllm.virtual_time.overhead --bytecodes

64 turns decode, 500 wait, 200 programs are pinned, and in each step the head of the queue does not
fit. Each arm runs in a separate process, since the interpreter specialises code by the types it
executes. The arms are measured sequentially, in a new random order in each round. The processes are
restarted every 20 rounds, since each has a constant offset of up to 3%. The result is the CPU time
of `schedule()` alone. `stock again` is the same as `stock`: their difference is noise.
`--bytecodes` counts Python's bytecodes in `schedule()` instead, which a busy machine does not
change.
"""

from __future__ import annotations

import gc
import itertools
import json
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import Any

from servers.policies.base import Costs, pin

POLICIES = [
    *("fcfs", "program-fcfs", "continuum", "infercept", "autellix", "agentix", "las"),
    *("thunderagent", "progress-ttl", "turnstile"),
]
"""Not cachewise, which gives up pins for a turn that does not fit: each step then admits some."""
ARMS = ["stock", "stock again", *POLICIES]
RUNNING, WAITING, PINNED = 64, 500, 200
KV_BLOCKS = 100_000
FREE_BLOCKS = 12
"""Fewer than any waiting prompt needs, and more than the decodes of a step need."""
STEPS = 16
"""In each of them a sixteenth of the turns opens a block."""
ROUNDS_PER_PROCESS = 20


def build_arm(name: str) -> Any:
    """Return the scheduler of an arm, with its running, waiting and pinned turns."""
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler

    from servers.variants import make_policy, variant
    from servers.vllm.virtual_time.stepping import build, build_plugged

    sizes = (KV_BLOCKS, RUNNING, 8192)
    if name.startswith("stock"):
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


def measure(scheduler: Any) -> float:
    """Return the microseconds per step."""
    total_ns = 0

    def schedule() -> Any:
        nonlocal total_ns
        begin_ns = time.thread_time_ns()
        output = scheduler.schedule()
        total_ns += time.thread_time_ns() - begin_ns
        return output

    _run_steps(scheduler, schedule)
    return total_ns / STEPS / 1000


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


def _serve(name: str) -> None:
    scheduler = build_arm(name)
    gc.collect()
    gc.freeze()
    for _ in range(5):
        measure(scheduler)
    print("ready", flush=True)
    for _ in sys.stdin:
        print(measure(scheduler), flush=True)


def _expect(what: str, count: int, expected: int) -> None:
    if count != expected:
        raise RuntimeError(f"{count} {what} instead of {expected}")


class ArmProcess:
    """A process that measures one arm on request."""

    def __init__(self, name: str) -> None:
        self._process = subprocess.Popen(  # noqa: S603
            [sys.executable, "-m", "servers.vllm.virtual_time.overhead", "--arm", name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._name = name

    def _line(self) -> str:
        line = self._process.stdout.readline().strip() if self._process.stdout else ""
        if not line:
            raise RuntimeError(f"{self._name} ended with exit code {self._process.wait()}")
        return line

    def wait_ready(self) -> None:
        self._line()

    def measure(self) -> float:
        if self._process.stdin is not None:
            self._process.stdin.write("\n")
            self._process.stdin.flush()
        return float(self._line())

    def close(self) -> None:
        self._process.communicate()


def measure_all(rounds: int) -> dict[str, list[float]]:
    """Return the microseconds per step by arm, one value per round."""
    times_us: dict[str, list[float]] = {name: [] for name in ARMS}
    for first in range(0, rounds, ROUNDS_PER_PROCESS):
        processes = {name: ArmProcess(name) for name in ARMS}
        for process in processes.values():
            process.wait_ready()
        for number in range(first, min(first + ROUNDS_PER_PROCESS, rounds)):
            for name in random.Random(number).sample(ARMS, len(ARMS)):  # noqa: S311
                times_us[name].append(processes[name].measure())
        for process in processes.values():
            process.close()
    return times_us


def against_stock(times_us: Mapping[str, Sequence[float]], name: str) -> float:
    """Return the median over rounds of the ratio to stock."""
    return statistics.median(a / b for a, b in zip(times_us[name], times_us["stock"], strict=True))


def show(times_us: Mapping[str, Sequence[float]]) -> None:
    for name in ARMS:
        min_ratio = min(times_us[name]) / min(times_us["stock"])
        print(
            f"{name:14} {statistics.median(times_us[name]):7.0f} us median, "
            f"{min(times_us[name]):6.0f} min; "
            f"ratio to stock {against_stock(times_us, name):.3f} median, {min_ratio:.3f} of minima"
        )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--arm"]:
        _serve(sys.argv[2])
    elif sys.argv[1:2] == ["--bytecodes"]:
        stock = count_bytecodes(build_arm("stock"))
        print(f"{'stock':14} {stock:7.0f} bytecodes")
        for name in POLICIES:
            bytecodes = count_bytecodes(build_arm(name))
            print(f"{name:14} {bytecodes:7.0f} bytecodes, {bytecodes / stock:.3f} of stock")
    else:
        as_json = "--json" in sys.argv
        numbers = [int(word) for word in sys.argv[1:] if word != "--json"]
        times_us = measure_all(*numbers or [100])
        print(json.dumps(times_us)) if as_json else show(times_us)
