"""What a replay asks of NVIDIA Dynamo's frontend, and what it learns from an answer.

Dynamo rejects `vllm_xargs` and `return_token_ids`. It returns token ids, the worker and times in
the extension `nvext`, if a request names them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from servers.basics.json_object import JsonObject
from servers.records.turns import TurnRecord
from traces.lenient import mapping, seconds

REQUEST = {
    "nvext": {"extra_fields": ["completion_token_ids", "worker_id", "timing", "engine_data"]}
}
"""Fields of the body of a request."""
OWNER = "nvidia"
"""`owned_by` of the models that a frontend lists."""


@dataclass(frozen=True, slots=True)
class Frontend:
    workers: Mapping[int, int] = field(default_factory=dict)
    """Index of each worker that generates answers, by its id; empty if unknown."""
    disaggregated: bool = False
    """Whether prompts are computed by workers of their own."""
    block_tokens: int = 0
    has_sessions: bool = False
    """Whether its router keeps a program until it learns of its end."""

    def complete(self, record: TurnRecord, nvext: JsonObject) -> None:
        """Add what the answer's extension says to the record of an ended turn."""
        program = mapping(mapping(nvext.get("engine_data")).get("thunderagent"))
        worker = mapping(nvext.get("worker_id")).get("decode_worker_id")
        if program:  # then that id is the ThunderAgent router's
            worker = program.get("selected_worker_id") or program.get("assigned_worker_hint")
        if type(worker) is int and worker in self.workers:
            record.replica = self.workers[worker]
            record.held_s = seconds(program.get("waited_seconds")) or 0.0
        if self.disaggregated:
            record.device_hit_tokens = self._hit_tokens(record.prompt_tokens or 0, nvext)

    def _hit_tokens(self, prompt_tokens: int, nvext: JsonObject) -> int | None:
        """Return the tokens that the router found in the cache of the prefill worker; None without
        a KV router. `cached_tokens` is of the decode worker, which caches nothing."""
        share = mapping(nvext.get("timing")).get("kv_hit_rate")
        if not isinstance(share, int | float) or not 0 <= share <= 1 or not self.block_tokens:
            return None
        blocks = -(-prompt_tokens // self.block_tokens)
        return min(round(share * blocks) * self.block_tokens, prompt_tokens)


def is_dynamo(model: JsonObject) -> bool:
    return model.get("owned_by") == OWNER
