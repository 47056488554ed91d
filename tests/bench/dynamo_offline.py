"""Dynamo's offline replay for `test_against_dynamo.py`, run by a Python that has `ai-dynamo`.

Prints a line with its version; then, for each line {"trace", "engine"} on stdin, a line with the
seconds of one replay and its summary. One process runs all replays, so that neither its start nor
its imports count.
"""

from __future__ import annotations

import json
import sys
import time
from importlib.metadata import version

from dynamo.replay import run_trace_replay

TRACE_BLOCK_TOKENS = 512

print(version("ai-dynamo"), flush=True)
for line in sys.stdin:
    request = json.loads(line)
    started_s = time.perf_counter()
    report = run_trace_replay(
        request["trace"], extra_engine_args=request["engine"], trace_block_size=TRACE_BLOCK_TOKENS
    )
    call_s = time.perf_counter() - started_s
    # Dynamo's own time, which excludes reading the trace: our programs are in memory too.
    replay_s = report.summary["wall_time_ms"] / 1e3
    print(json.dumps({"replay_s": replay_s, "call_s": call_s} | report.summary), flush=True)
