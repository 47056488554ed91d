"""Whether the installed vLLM is one that the plug-in can work in.

vLLM calls its scheduler private, so the plug-in names here what it leans on: methods with their
parameters, attributes, and the lines of `schedule` that pick a victim and admit the head of the
queue. In: vLLM's classes. Out: nothing, or an `UnsupportedVllm` that says what is missing.
"""

from __future__ import annotations

import inspect
import re
from typing import Any

from servers.errors import UnsupportedVllm

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
    "request = request_queue.pop_request()",
)
"""Of `schedule`: the victim is the running request of largest (priority, arrival time), and the
head of the queue is looked at, given its blocks, and taken out, in this order."""
POOL = ("touch", "free_blocks", "evict_blocks", "get_num_free_blocks")
NEEDED = {
    "request_id",
    "num_tokens",
    "new_computed_blocks",
    "num_encoder_tokens",
    "total_computed_tokens",
    "num_local_computed_tokens",
    "num_tokens_main_model",
}
"""What `get_num_blocks_to_allocate` may ask for."""


def check_scheduler(scheduler: Any, version: str) -> None:
    numbers = re.match(r"(\d+)\.(\d+)", version)
    if numbers and (int(numbers[1]), int(numbers[2])) < OLDEST:
        _refuse(version, f"it is older than {OLDEST[0]}.{OLDEST[1]}")
    for method, wanted in PARAMETERS.items():
        if not hasattr(scheduler, method):
            _refuse(version, f"Scheduler.{method} is gone")
        missing = set(wanted) - set(inspect.signature(getattr(scheduler, method)).parameters)
        if missing:
            _refuse(version, f"Scheduler.{method} takes no {', '.join(sorted(missing))}")
    source = inspect.getsource(scheduler.schedule)
    at = 0
    for line in LINES:
        at = source.find(line, at)
        if at < 0:
            _refuse(version, f"Scheduler.schedule no longer has `{line}` where it was")


def check_kv(manager: Any, version: str) -> frozenset[str]:
    """Names of what `get_num_blocks_to_allocate` of this version asks for."""
    for name in POOL:
        if not hasattr(manager.block_pool, name):
            _refuse(version, f"BlockPool.{name} is gone")
    parameters = inspect.signature(manager.coordinator.get_num_blocks_to_allocate).parameters
    required = {n for n, p in parameters.items() if p.default is inspect.Parameter.empty}
    unknown = required - NEEDED
    if unknown:
        _refuse(version, f"get_num_blocks_to_allocate asks for {', '.join(sorted(unknown))}")
    return frozenset(NEEDED & set(parameters))


def _refuse(version: str, reason: str) -> None:
    raise UnsupportedVllm(
        f"vLLM {version} is not supported: {reason}. The plug-in was tested with {TESTED}; "
        "install one of those, or run this server without --scheduler-cls"
    )
