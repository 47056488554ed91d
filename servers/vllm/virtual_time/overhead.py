"""Measures the cost of a scheduling step with the plug-in against stock vLLM.

    python -m servers.vllm.virtual_time.overhead [--steady] [POLICY…]      under vLLM's interpreter

64 turns decode, 500 wait, the KV of 200 programs is retained, and in each step the head of the
queue does not fit. Each policy is measured in a process of its own, in which single steps of stock
vLLM, of stock vLLM again and of the plug-in alternate in random order, so that all meet the same
machine. Stock vLLM has served the same 200 programs, since the memory that they used and freed
slows its steps too. Both stock arms have a copy of vLLM's scheduler each, since the interpreter
specialises code by the types it executes. Out: a line of JSON per policy with the ratios of CPU
time, from medians of the differences between neighbouring calls, and of the bytecodes executed,
which neither caches nor other processes change: for `schedule` in steady steps and, without
`--steady`, in steps before which a turn arrived behind all others, and for its `add_request`.
"""

from __future__ import annotations

import gc
import importlib
import itertools
import json
import random
import statistics
import subprocess
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
SCHEDULERS = ["vllm.v1.core.sched.scheduler", "vllm.v1.core.sched.async_scheduler"]
STOCK, AGAIN = "stock", "stock again"
RUNNING, WAITING, PINNED = 64, 500, 200
KV_BLOCKS = 100_000
FREE_BLOCKS = 12
"""Fewer than any waiting prompt needs, and more than the decodes of a step need."""
WARM_UP_STEPS, STEPS, PARTS = 100, 1000, 10
COUNTED_STEPS = 16
"""In each of them a sixteenth of the turns opens a block."""


def build_arm(name: str) -> Any:
    """Return the scheduler of an arm, with its running and waiting turns and retained KV."""
    from servers.variants import make_policy, variant
    from servers.vllm.virtual_time.stepping import build, build_plugged

    sizes = (KV_BLOCKS, RUNNING, 8192)
    if name in (STOCK, AGAIN):
        scheduler = build(_copy_of_scheduler(), *sizes)
        _serve_programs(scheduler)
        _retain(scheduler)
    else:
        costs = Costs(prefill_s=lambda tokens: tokens / 5000, kv_tokens=KV_BLOCKS * 16)
        policy = make_policy(variant(name), costs)
        scheduler = build_plugged(policy, None, *sizes)
        _pin(scheduler)
        now_ps = time.monotonic_ns() * 1000
        scheduler.clock_ps = lambda: now_ps
    _fill(scheduler)
    return scheduler


def _copy_of_scheduler() -> Any:
    """Import the modules of vLLM's scheduler again, and return the class."""
    imported = {name: sys.modules.pop(name) for name in SCHEDULERS}
    try:
        return importlib.import_module(SCHEDULERS[-1]).AsyncScheduler
    finally:
        sys.modules.update(imported)


def _program_turn(number: int) -> Any:
    from servers.vllm.virtual_time.stepping import request

    prompt, key = range(1000 * number, 1000 * number + 300), f"p{number}"
    return request(key, list(prompt), 2, time.time(), program_id=key)


def _serve_programs(scheduler: Any) -> None:
    from servers.vllm.virtual_time.stepping import step

    for number in range(PINNED):
        scheduler.add_request(_program_turn(number))
    while scheduler.has_unfinished_requests():
        step(scheduler)


def _retain(scheduler: Any) -> None:
    """Retain the programs' KV in stock vLLM."""
    manager = scheduler.kv_cache_manager
    for number in range(PINNED):
        found, hit_tokens, *_ = manager.get_computed_blocks(_program_turn(number))
        _expect("cached tokens", hit_tokens, 288)
        manager.block_pool.touch(found.blocks[0])


def _pin(scheduler: Any) -> None:
    policy = scheduler.runner.policy
    finished, review = policy.finished, policy.review
    policy.finished = lambda view, now_s: (finished(view, now_s), pin(1e9))[1]
    policy.review = lambda *_: ()
    _serve_programs(scheduler)
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


def _timed(schedule: Callable[[], Any]) -> tuple[Any, int]:
    begin_ns = time.thread_time_ns()
    output = schedule()
    return output, time.thread_time_ns() - begin_ns


def _counted(schedule: Callable[[], Any]) -> tuple[Any, int]:
    count = 0

    def on_event(_frame: FrameType, event: str, _argument: Any) -> Any:
        nonlocal count
        count += event == "opcode"
        return on_event

    def on_call(frame: FrameType, _event: str, _argument: Any) -> Any:
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return on_event

    sys.settrace(on_call)
    try:
        return schedule(), count
    finally:
        sys.settrace(None)


def _step(
    scheduler: Any, measure: Callable[[Callable[[], Any]], tuple[Any, int]], *, arrival: bool
) -> list[int]:
    """Measure `schedule` in one step. If `arrival`, a turn arrives before it, whose `add_request`
    is measured too. It is cancelled afterwards, which is an event too, so that a step follows."""
    from vllm.v1.request import RequestStatus

    from servers.vllm.virtual_time.stepping import compute, request, step

    _free(scheduler)
    added = []
    if arrival:
        turn = request("a", list(range(200)), 10, time.time(), program_id="a")
        added = [measure(lambda: scheduler.add_request(turn))[1]]
    output, measured = measure(scheduler.schedule)
    _expect("turns in a step", len(output.num_scheduled_tokens), RUNNING)
    compute(scheduler, output, lambda _: 7)
    if arrival:
        scheduler.finish_requests("a", RequestStatus.FINISHED_ABORTED)
        _free(scheduler)
        step(scheduler)
    return [measured, *added]


def _free(scheduler: Any) -> None:
    pool = scheduler.kv_cache_manager.block_pool
    missing = FREE_BLOCKS - pool.get_num_free_blocks()
    pool.free_blocks([scheduler.reserved.pop() for _ in range(missing)])


def _expect(what: str, count: int, expected: int) -> None:
    if count != expected:
        raise RuntimeError(f"{count} {what} instead of {expected}")


def measure(policy: str, *, steady: bool = False) -> dict[str, Any]:
    """Return the cost of a policy. Ratios are to stock vLLM; `time_ratios` and `noise_ratios`, of
    stock vLLM to itself, have one value for each of `PARTS` successive parts. Keys that begin with
    `arrival_` are of the steps before which a turn arrived, and those with `add_` of its
    `add_request`. `steady`: leave out both."""
    arms = {name: build_arm(name) for name in random.sample([STOCK, AGAIN, policy], 3)}
    gc.collect()
    gc.freeze()
    gc.disable()
    costs = {"policy": policy, **_measure(arms, policy, ["schedule"])["schedule"]}
    if not steady:
        for call, measured in _measure(arms, policy, ["arrival", "add"]).items():
            costs |= {f"{call}_{key}": value for key, value in measured.items()}
    return costs


def _measure(arms: dict[str, Any], policy: str, calls: list[str]) -> dict[str, dict[str, Any]]:
    """Return the costs of `schedule`, after an arrival if there is a second call, which is its
    `add_request`."""
    arrival = len(calls) > 1
    times_ns: dict[str, list[list[int]]] = {name: [] for name in arms}
    for _ in range(WARM_UP_STEPS + STEPS):
        for name in random.sample(list(arms), 3):
            times_ns[name].append(_step(arms[name], _timed, arrival=arrival))
    bytecodes = {
        name: [_step(arms[name], _counted, arrival=arrival) for _ in range(COUNTED_STEPS)]
        for name in (STOCK, policy)
    }
    return {
        call: _compared(
            {name: [step[index] for step in steps] for name, steps in times_ns.items()},
            {name: statistics.mean([s[index] for s in steps]) for name, steps in bytecodes.items()},
            policy,
        )
        for index, call in enumerate(calls)
    }


def _compared(
    times_ns: dict[str, list[int]], bytecodes: dict[str, float], policy: str
) -> dict[str, Any]:
    return {
        "bytecode_ratio": bytecodes[policy] / bytecodes[STOCK],
        "stock_bytecodes": bytecodes[STOCK],
        "stock_us": statistics.median(times_ns[STOCK][WARM_UP_STEPS:]) / 1000,
        "time_ratios": _ratios(times_ns[policy], times_ns[STOCK]),
        "noise_ratios": _ratios(times_ns[AGAIN], times_ns[STOCK]),
    }


def _ratios(times_ns: list[int], stock_ns: list[int]) -> list[float]:
    ratios = []
    for first in range(WARM_UP_STEPS, WARM_UP_STEPS + STEPS, STEPS // PARTS):
        part = slice(first, first + STEPS // PARTS)
        more_ns = [a - b for a, b in zip(times_ns[part], stock_ns[part], strict=True)]
        ratios.append(1 + statistics.median(more_ns) / statistics.median(stock_ns[part]))
    return ratios


if __name__ == "__main__":
    steady = [option for option in sys.argv[1:] if option == "--steady"]
    policies = [name for name in sys.argv[1:] if name not in steady]
    if len(policies) == 1:
        print(json.dumps(measure(policies[0], steady=bool(steady))), flush=True)
    else:
        for name in policies or POLICIES:
            command = [sys.executable, "-m", "servers.vllm.virtual_time.overhead", *steady, name]
            code = subprocess.run(command, check=False).returncode  # noqa: S603
            if code:
                sys.exit(code if code > 0 else f"{name}: ended by signal {-code}")
