"""Prometheus metrics of the plug-in, which vLLM serves on its own page `/metrics`.

In: events and the state of the runner. Out: metrics of `prometheus_client`, labelled like vLLM's.
The scheduler is in another process than the API server. If `PROMETHEUS_MULTIPROC_DIR` names an
empty folder when vLLM starts, both write their metrics there, and each API server shows them all.
vLLM sets it itself if it has several API servers.
"""

from __future__ import annotations

import os
import time
from collections import Counter as Failures
from typing import Any

from prometheus_client import Counter, Gauge, Histogram
from vllm.logger import init_logger

from servers.policies.runner import PolicyRunner
from servers.vllm.plugin.policy_guard import PolicyGuard

UPDATE_S = 1.0
LABELS = ("model_name", "engine")

PROGRAMS = Gauge(
    "turnstile:programs",
    "Programs that have not ended, with a turn in progress or between two turns",
    LABELS,
    multiprocess_mode="mostrecent",
)
PINS = Gauge(
    "turnstile:pins",
    "Programs whose KV is retained between two turns",
    LABELS,
    multiprocess_mode="mostrecent",
)
PINNED_BLOCKS = Gauge(
    "turnstile:pinned_kv_blocks", "KV blocks of pins", LABELS, multiprocess_mode="mostrecent"
)
PINNED_SHARE = Gauge(
    "turnstile:pinned_kv_ratio",
    "KV blocks of pins over all KV blocks, 0 to 1",
    LABELS,
    multiprocess_mode="mostrecent",
)
LONGEST_WAIT = Gauge(
    "turnstile:longest_wait_seconds",
    "Time since the arrival of the turn that has waited for longest; 0 if none waits",
    LABELS,
    multiprocess_mode="mostrecent",
)
PROGRAM_SECONDS = Histogram(
    "turnstile:program_seconds",
    "Seconds from the arrival of a program's first turn to the end of its last, of ended programs, "
    "without requests that belong to no program",
    LABELS,
    buckets=(1, 3, 10, 20, 30, 60, 120, 180, 300, 600, 1200, 1800, 3600, 7200, 14400, 28800),
)
PINNED = Counter("turnstile:pinned", "Finished turns whose KV was pinned", LABELS)
UNPINNED = Counter(
    "turnstile:unpinned",
    "Pins that ended: reused by the next turn (a hit), expired, reclaimed under memory pressure, "
    "released by the policy's review, replaced, ended with the program, or reset",
    (*LABELS, "reason"),
)
HELD_BACK = Counter(
    "turnstile:held_back_steps",
    "Steps in which no turn was admitted because the policy held all waiting ones back",
    LABELS,
)
FAILURES = Counter(
    "turnstile:policy_failures", "Exceptions in the policy, by method", (*LABELS, "method")
)

logger = init_logger("vllm.turnstile")


class Metrics:
    def __init__(
        self,
        runner: PolicyRunner[Any, Any],
        guard: PolicyGuard | None,
        kv_blocks: int,
        model_name: str,
        engine: int,
    ) -> None:
        self._runner, self._guard, self._kv_blocks = runner, guard, kv_blocks
        self._labels = labels = (model_name, str(engine))
        self._failures: Failures[str] = Failures()
        """Those that the metric has."""
        self._updated_s = -UPDATE_S
        self._pinned = PINNED.labels(*labels)
        self._held_back = HELD_BACK.labels(*labels)
        self._program_s = PROGRAM_SECONDS.labels(*labels)
        for reason in ("reused", "expired", "pressure", "review", "replaced", "ended", "reset"):
            UNPINNED.labels(*labels, reason)
        # Prometheus sees no increase in a series that begins with its first failure.
        for method in guard.methods if guard is not None else ():
            FAILURES.labels(*labels, method)
        if "PROMETHEUS_MULTIPROC_DIR" not in os.environ:
            logger.info(
                "The metrics of the scheduling policy are not on /metrics: start vLLM with "
                "PROMETHEUS_MULTIPROC_DIR set to an empty folder to have them there."
            )

    def count(self, event: str, fields: dict[str, Any]) -> None:
        if event == "pinned":
            self._pinned.inc()
        elif event == "unpinned":
            UNPINNED.labels(*self._labels, fields["reason"]).inc()

    def count_held_back(self) -> None:
        self._held_back.inc()

    def count_program(self, program_s: float) -> None:
        self._program_s.observe(program_s)

    def update(self, *, idle: bool) -> None:
        """Set the gauges, at most once a second unless the engine becomes idle."""
        now_s = time.monotonic()
        if now_s - self._updated_s < UPDATE_S and not idle:
            return
        self._updated_s = now_s
        runner, labels = self._runner, self._labels
        PROGRAMS.labels(*labels).set(runner.programs)
        PINS.labels(*labels).set(len(runner.pins))
        PINNED_BLOCKS.labels(*labels).set(runner.pins.blocks)
        PINNED_SHARE.labels(*labels).set(runner.pins.blocks / self._kv_blocks)
        arrivals_s = [turn.view.arrival_s for turn in runner.queued.values()]
        LONGEST_WAIT.labels(*labels).set(
            max(runner.now_s - min(arrivals_s, default=runner.now_s), 0)
        )
        if self._guard is not None and self._guard.failures != self._failures:
            for method, failures in self._guard.failures.items():
                FAILURES.labels(*labels, method).inc(failures - self._failures[method])
            self._failures = self._guard.failures.copy()
