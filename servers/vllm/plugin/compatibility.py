"""Checks that the plug-in supports the installed vLLM.

vLLM's scheduler is not a public interface, so this module lists everything that the plug-in depends
on: methods with their parameters, attributes, and the lines of `schedule` that pick a victim and
admit the head of the queue. In: vLLM's classes. Raises `UnsupportedVllm`, which names what is
missing.
"""

from __future__ import annotations

import inspect
import re
from typing import Any

from servers.basics.errors import UnsupportedVllm

OLDEST = (0, 24)
TESTED = "0.24, 0.28, 0.30, 0.32 and 0.33"

PARAMETERS = {
    "schedule": (),
    "add_request": ("request",),
    "finish_requests": ("request_ids", "finished_status"),
    "reset_prefix_cache": (),
    "shutdown": (),
    "_preempt_request": ("request", "timestamp"),
    "_free_request": ("request", "delay_free_blocks"),
}
LINES = (
    "SchedulingPolicy.PRIORITY",
    "key=lambda r: (r.priority, r.arrival_time)",
    ".peek_request()",
    "new_blocks = self.kv_cache_manager.allocate_slots(",
    "full_sequence_must_fit=self.scheduler_reserve_full_isl",
    "request = request_queue.pop_request()",
)
"""Lines of `schedule`, in this order: the victim is the running request with the largest (priority,
arrival time); the head of the queue is read, gets its blocks under the configured rule of
admission, and is removed from the queue."""
POOL = ("touch", "free_blocks", "evict_blocks", "get_num_free_blocks", "get_cached_block")
NEEDED = {
    "request_id",
    "num_tokens",
    "new_computed_blocks",
    "num_encoder_tokens",
    "total_computed_tokens",
    "num_local_computed_tokens",
    "num_tokens_main_model",
    "apply_admission_cap",
    "prefill_end",
}
"""Parameters of `get_num_blocks_to_allocate` that the plug-in can supply."""


def check_scheduler(scheduler: Any, version: str) -> None:
    numbers = re.match(r"(\d+)\.(\d+)", version)
    if numbers and (int(numbers[1]), int(numbers[2])) < OLDEST:
        _refuse(version, f"it is older than {OLDEST[0]}.{OLDEST[1]}")
    for method, expected in PARAMETERS.items():
        if not hasattr(scheduler, method):
            _refuse(version, f"it has no Scheduler.{method}")
        missing = set(expected) - set(inspect.signature(getattr(scheduler, method)).parameters)
        if missing:
            _refuse(version, f"Scheduler.{method} does not take {', '.join(sorted(missing))}")
    source = inspect.getsource(scheduler.schedule)
    position = 0
    for line in LINES:
        position = source.find(line, position)
        if position < 0:
            _refuse(version, f"Scheduler.schedule does not have `{line}` in the expected place")


def check_kv(manager: Any, version: str) -> frozenset[str]:
    """Return the known parameters that this version's `get_num_blocks_to_allocate` takes."""
    for name in POOL:
        if not hasattr(manager.block_pool, name):
            _refuse(version, f"it has no BlockPool.{name}")
    parameters = inspect.signature(manager.coordinator.get_num_blocks_to_allocate).parameters
    required = {n for n, p in parameters.items() if p.default is inspect.Parameter.empty}
    unknown = required - NEEDED
    if unknown:
        _refuse(version, f"get_num_blocks_to_allocate requires {', '.join(sorted(unknown))}")
    return frozenset(NEEDED & set(parameters))


def _refuse(version: str, reason: str) -> None:
    raise UnsupportedVllm(
        f"vLLM {version} is not supported: {reason}. The plug-in was tested with {TESTED}; "
        "install one of those, or run this server without --scheduler-cls"
    )
