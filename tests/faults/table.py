"""Faults of an engine and their outcomes: the rows of docs/reference/reliability.md.

`tests/faults`, `tests/foreign_routers` and `tests/real/test_faults.py` check each row. "…" stands
for any text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum


class Outcome(Enum):
    """State of the cell after a fault, what the sweep does next, and its exit code."""

    FINE = ("finished", "`done.json`", "continues", "continues", 0)
    MARKED = (
        "marked",
        "finished, but fails a validity gate, which the report and stderr name; it decides no "
        "headline, and the command runs it again",
        "continues",
        "continues",
        1,
    )
    FAILED = (
        "failed",
        "no `done.json`; `failed.json` and the report have the reason; the command runs it again",
        "continues",
        "stops",
        1,
    )
    REFUSED = ("none", "the input is refused", "does not start", "does not start", 2)

    def __init__(
        self, cell: str, meaning: str, on_continue: str, on_stop: str, exit_code: int
    ) -> None:
        self.cell = cell
        self.meaning = meaning
        self.on_continue = on_continue
        self.on_stop = on_stop
        self.exit_code = exit_code


@dataclass(frozen=True, slots=True)
class Fault:
    name: str
    key: str
    """Selects the fault in the tests."""
    error: str | None
    """`error` in the record of the affected turn; None if no turn is affected."""
    outcome: Outcome
    message: str
    """Message in `failed.json`, of the validity gate or on stderr; empty if none."""
    detected: str
    """Time until the fault is detected, and what determines it."""


PROCESS = "0.5 s"
TURN = "at once"
GONE = "2 s after a failed turn, or 7 s without a byte of any turn"
START = "`--ready-within-s` (900 s)"

REPLAYED = [
    Fault(
        "Server killed (SIGKILL)",
        "killed",
        "connection lost after 0 output tokens",
        Outcome.FAILED,
        "vLLM was ended by signal 9 (out of memory?): … (log: …/server.log)",
        PROCESS,
    ),
    Fault(
        "Server stopped (SIGSTOP), or its machine hangs",
        "stopped",
        "http://… is lost: no response for 5 s (--lost-after-s)",
        Outcome.FAILED,
        "http://… is lost: no response for 5 s (--lost-after-s)",
        "`--lost-after-s` (60 s) without a byte or `/v1/models`, plus 10 s",
    ),
    Fault(
        "Engine hangs, its HTTP server answers",
        "stuck",
        "http://… is stuck: no byte for … in 6 s (--stuck-after-s)",
        Outcome.FAILED,
        "http://… is stuck: no byte for … in 6 s (--stuck-after-s)",
        "`--stuck-after-s` (900 s) without a byte of any turn",
    ),
    Fault(
        "Server closes its port but keeps running",
        "refuses",
        "connection lost after 0 output tokens",
        Outcome.FAILED,
        "http://… is lost: connection refused",
        GONE + ", plus 10 s for its exit",
    ),
    Fault(
        "Every answer has the wrong length",
        "all one short",
        "the server counted … prompt and 5 output tokens, but the trace has … and 6",
        Outcome.FAILED,
        "no program finished; the first failed turn: the server counted …",
        TURN,
    ),
    Fault(
        "Another process takes the port between its choice and its use",
        "port stolen",
        None,
        Outcome.FINE,
        "",
        "at once; up to three other ports are tried",
    ),
]
OF_A_TURN = [
    Fault(name, key, error, Outcome.MARKED, "… failed turns in … jobs (first: …)", noticed)
    for name, key, error, noticed in [
        (
            "Connection cut in an answer",
            "cut",
            "connection lost after 3 output tokens",
            TURN,
        ),
        ("Stream ends early", "ends early", "the stream was cut after 3 tokens", TURN),
        (
            "Stream is not a completion",
            "garbage",
            "cannot read the stream as a completion: …",
            TURN,
        ),
        (
            "Answer too short",
            "one short",
            "the server counted 26 prompt and 5 output tokens, but the trace has 26 and 6",
            TURN,
        ),
        (
            "Prompt cut short by the server",
            "prompt cut short",
            "the server counted 25 prompt and 6 output tokens, but the trace has 26 and 6",
            TURN,
        ),
        ("Server answers 500", "500", "the server answered 500: EngineDeadError …", TURN),
        ("Error inside a stream", "engine error", "the engine failed: CUDA error", TURN),
        (
            "One turn hangs, the others continue",
            "hangs",
            "turn timeout of 8 s exceeded after 0 output tokens",
            "`--turn-timeout-s` (3600 s)",
        ),
        (
            "A turn is extremely slow",
            "slow",
            "turn timeout of 8 s exceeded after … output tokens",
            "`--turn-timeout-s` (3600 s)",
        ),
    ]
]
AT_START = [
    Fault(
        "Server dies at start",
        "dies at start",
        None,
        Outcome.FAILED,
        "vLLM exited with code 1: ValueError: the KV cache is too small (log: …)",
        "0.2 s",
    ),
    Fault(
        "Server never becomes healthy",
        "never healthy",
        None,
        Outcome.FAILED,
        "vLLM was not healthy after …: loading weights (log: …)",
        START,
    ),
]
TIER = [
    Fault(
        "LMCache server killed",
        "lmcache killed",
        "vLLM lost its offload tier: LMCache was ended by signal 9 (out of memory?): …",
        Outcome.FAILED,
        "vLLM lost its offload tier: LMCache was ended by signal 9 (out of memory?): …",
        PROCESS,
    ),
    Fault(
        "LMCache delivers no tokens",
        "no hits",
        None,
        Outcome.MARKED,
        "no token came from the offload tier: it does not work, or was not needed",
        "at the end of the cell",
    ),
]
REPLICAS = [
    Fault(
        "One of several replicas killed",
        "killed",
        "connection lost after 0 output tokens",
        Outcome.FAILED,
        "vLLM was ended by signal 9 (out of memory?): … (log: …/replica-0/server.log)",
        PROCESS,
    ),
]
ROUTER_KILLED = Fault(
    "Router of another project killed (SIGKILL)",
    "router killed",
    "connection lost after … output tokens",
    Outcome.FAILED,
    "vllm-router:… was ended by signal 9 (out of memory?): … (log: …/server/router.log)",
    PROCESS,
)
"""Checked by `tests/foreign_routers/test_sweep.py`, which needs a router that is installed."""
BEHIND_THE_GATEWAY = [
    Fault(
        "A replica killed, for agents behind the gateway",
        "killed",
        "no answer from the server: …",
        Outcome.FAILED,
        "vLLM was ended by signal 9 (out of memory?): … (log: …/replica-…/server.log)",
        PROCESS,
    ),
    Fault(
        "A replica stopped (SIGSTOP), for agents behind the gateway",
        "stopped",
        "replica … (http://…) is lost: no response for 5 s (--lost-after-s)",
        Outcome.FAILED,
        "replica … (http://…) is lost: no response for 5 s (--lost-after-s)",
        "`--lost-after-s` (60 s) without a finished turn or `/v1/models`, plus 10 s",
    ),
]
OF_A_URL = [
    Fault(
        "`--engine URL`: server killed",
        "killed",
        "connection lost after 0 output tokens",
        Outcome.FAILED,
        "http://… is lost: connection refused",
        GONE,
    ),
    Fault(
        "`--engine URL`: no server listens when a cell begins",
        "gone",
        "cannot connect to …: connection refused",
        Outcome.FAILED,
        "http://… is lost: connection refused",
        GONE,
    ),
    Fault(
        "`--engine URL`: no server listens when the sweep begins",
        "gone",
        None,
        Outcome.REFUSED,
        "bench: --engine …: no OpenAI-compatible server responds (… Connection refused); check "
        "that it runs, its host and port, and that …/v1/models lists its model",
        "10 s",
    ),
]
REAL = [
    Fault(
        "vLLM: EngineCore killed (SIGKILL)",
        "core killed",
        "…: EngineCore encountered an issue…",
        Outcome.FAILED,
        "vLLM exited with code …: …engine core exited unexpectedly…",
        "when vLLM ends, within seconds",
    ),
    Fault(
        "vLLM: a worker killed (SIGKILL), as by the kernel when out of memory",
        "worker killed",
        "…: EngineCore encountered an issue…",
        Outcome.FAILED,
        "vLLM exited with code …: …died unexpectedly…",
        "when vLLM ends, within seconds",
    ),
    Fault(
        "vLLM: an allocation of a worker fails (a limit on its memory)",
        "out of memory",
        "…: EngineCore encountered an issue…",
        Outcome.FAILED,
        "vLLM exited with code …: …",
        "when vLLM ends, within seconds",
    ),
    Fault(
        "vLLM: EngineCore stopped (SIGSTOP); `/health` still answers 200",
        "core stopped",
        "http://… is stuck: no byte for … in 20 s (--stuck-after-s)",
        Outcome.FAILED,
        "http://… is stuck: no byte for … in 20 s (--stuck-after-s)",
        "`--stuck-after-s` (900 s) without a byte of any turn",
    ),
]
"""Faults of a real vLLM: `make test-real`."""
FAKE_SERVER = [
    *REPLAYED,
    *OF_A_TURN,
    *AT_START,
    *TIER,
    *REPLICAS,
    ROUTER_KILLED,
    *BEHIND_THE_GATEWAY,
    *OF_A_URL,
]


def matches(expected: str, message: str) -> bool:
    """Return whether the whole message matches `expected`, in which "…" matches any text."""
    return (
        re.fullmatch(".*".join(map(re.escape, expected.split("…"))), message, re.DOTALL) is not None
    )
