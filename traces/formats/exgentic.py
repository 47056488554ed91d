"""Exgentic recordings, which are refused: they have no token counts and no times.

In: `trajectory.jsonl` (`{event, run_id, session_id, step, action | observation}` per line),
`results.json` and `session.json`. The OpenTelemetry traces of the same runs can be read.
"""

from __future__ import annotations

from servers.basics.errors import TraceRejected
from traces.lenient import Repairs, document_start, line_start, mapping
from traces.program import Program

FIELDS = (
    ("event", "run_id", "session_id", "step"),
    ("session_id", "is_finished", "agent_cost", "benchmark_cost"),
    ("task", "context", "actions"),
)
"""Fields of a trajectory's line, of results and of a session."""


def sniff(first_bytes: bytes) -> bool:
    starts = (mapping(document_start(first_bytes)), mapping(line_start(first_bytes)))
    return any(all(name in start for name in names) for start in starts for names in FIELDS)


def load(_data: bytes, _name: str, _repairs: Repairs) -> list[Program]:
    raise TraceRejected(
        "Exgentic's recordings have neither token counts nor times, only the steps; give the "
        "OpenTelemetry traces of the same runs (format otel)"
    )
