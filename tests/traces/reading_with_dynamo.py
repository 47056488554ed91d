"""What Dynamo makes of exported traces, run by a Python that has `ai-dynamo`.

Arguments: a format (mooncake, agentic-mooncake or weka) and a path. Replays the trace offline and
prints, as JSON, Dynamo's summary.
"""

from __future__ import annotations

import json
import sys

from dynamo.replay import run_trace_replay

ENGINE = {
    "engine": {
        "backend": "vllm",
        "num_gpu_blocks": 100_000,
        "block_size": 64,
        "max_num_seqs": 256,
        "max_num_batched_tokens": 8192,
    }
}
format, path = sys.argv[1:]
options: dict[str, object] = {}
if format != "mooncake":
    options["execution_model"] = "any"
if format != "weka":
    options["trace_block_size"] = {"mooncake": 512, "agentic-mooncake": 64}[format]
report = run_trace_replay(
    path, extra_engine_args=ENGINE, trace_format=format.replace("-", "_"), **options
)
print(json.dumps({k: v for k, v in report.summary.items() if isinstance(v, int | float)}))
