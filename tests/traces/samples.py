"""A small trace of every built-in format, on which `test_formats.py` runs its contract tests.

Each has two programs whose prompts share a prefix, and one of them has a second turn.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tests.traces import span_samples
from traces import Provenance


@dataclass(frozen=True)
class Sample:
    files: Mapping[str, bytes]
    """Contents by file name."""
    gap_provenance: tuple[Provenance, ...]
    """The provenance of each tool gap, in order of the programs and their turns."""
    gaps: str | None = None
    """The recipe of the gaps that the format does not record."""
    shares_prefix: bool = True
    """Whether the format records what the prompts of several programs have in common."""
    refusal: str = ""
    """Why the format is recognised and refused."""


def json_lines(*records: object) -> bytes:
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


def native() -> Sample:
    prefix = {"id": "system:1", "tokens": 64}
    a = {
        "format": "turnstile-trace-1", "id": "a", "prefix": prefix,
        "turns": [{"prompt_tokens": 100, "output_tokens": 20, "tool_gap_s": 1.5},
                  {"prompt_tokens": 150, "output_tokens": 20, "kept_tokens": 120}],
    }  # fmt: skip
    b = {**a, "id": "b", "turns": [{"prompt_tokens": 100, "output_tokens": 20}]}
    return Sample({"a.jsonl": json_lines(a, b)}, (Provenance.MEASURED,))


def turns_of_a_run() -> Sample:
    def turn(program: str, number: int, at_s: float, **fields: Any) -> dict[str, Any]:
        return {
            "program_id": program, "turn": number, "job_id": program,
            "scheduled_at_s": at_s, "sent_at_s": at_s,
            "prompt_tokens": 100 + 50 * number, "output_tokens": 20,
            "kept_tokens": 120 * (number > 0), "tools": ["ls"], "error": None, **fields,
        }  # fmt: skip

    system = {"id": "system:1", "tokens": 64}
    lines = json_lines(
        turn("a", 0, 0.0, system=system),
        turn("b", 0, 1.0, system=system),
        turn("a", 1, 3.0, gap_s=1.5, gap_provenance="measured"),
    )
    return Sample({"turns.jsonl": lines}, (Provenance.MEASURED,))


def mini_swe_agent() -> Sample:
    def document(id: str, task: str, *calls: dict[str, Any]) -> bytes:
        opening = [
            {"role": "system", "content": "be brief " * 20},
            {"role": "user", "content": task},
        ]
        return json.dumps(
            {"trajectory_format": "mini-swe-agent-1.1", "instance_id": id,
             "messages": [*opening, *calls]}
        ).encode()  # fmt: skip

    def call(prompt: int, at_s: float) -> dict[str, Any]:
        usage = {"prompt_tokens": prompt, "completion_tokens": 20}
        return {"role": "assistant", "content": "on", "extra": {
            "actions": [{"command": "ls"}], "timestamp": 1.7e9 + at_s,
            "response": {"usage": usage}}}  # fmt: skip

    observed = {"role": "tool", "content": "x", "extra": {"timestamp": 1.7e9 + 1.5}}
    return Sample(
        {
            "a.traj.json": document("a", "fix it", call(100, 0), observed, call(150, 4)),
            "b.traj.json": document("b", "test it", call(100, 1)),
        },
        (Provenance.MEASURED,),
    )


def weka() -> Sample:
    def request(t: float, prompt: int, hash_ids: list[int], **fields: Any) -> dict[str, Any]:
        return {"t": t, "type": "n", "in": prompt, "out": 20, "hash_ids": hash_ids,
                "stop": "tool_use", **fields}  # fmt: skip

    def sub_agent(name: str, last_block: int) -> dict[str, Any]:
        return {"t": 9, "type": "subagent", "agent_id": name, "duration_ms": 5000,
                "requests": [request(0, 200, [7, 8, last_block], api_time=2.0)]}  # fmt: skip

    document = {
        "id": "s", "block_size": 64, "hash_id_scope": "local",
        "requests": [
            request(0, 150, [1, 2], api_time=2.0),
            sub_agent("a", 10),
            sub_agent("b", 11),
            request(20, 300, [1, 2, 3, 4]),
            request(60, 400, [1, 2, 3, 4, 5]),
        ],
    }  # fmt: skip
    return Sample(
        {"s.json": json.dumps(document).encode()}, (Provenance.MEASURED, Provenance.INFERRED)
    )


def openhands() -> Sample:
    def event(kind: str, second: int, **fields: Any) -> dict[str, Any]:
        return {"kind": kind, "timestamp": f"2026-01-01T00:00:{second:02}", **fields}

    def action(second: int, response: str) -> dict[str, Any]:
        return event("ActionEvent", second, source="agent", llm_response_id=response,
                     tool_name="terminal", action={"command": "ls"})  # fmt: skip

    def document(id: str, task: str, *events: dict[str, Any]) -> bytes:
        usages = [{"response_id": "x", "prompt_tokens": 100, "completion_tokens": 20},
                  {"response_id": "y", "prompt_tokens": 150, "completion_tokens": 20}]  # fmt: skip
        state = {"id": id, "stats": {"usage_to_metrics": {"agent": {"token_usages": usages}}}}
        opening = [
            event("SystemPromptEvent", 0, source="agent", system_prompt={"text": "be brief " * 20}),
            event("MessageEvent", 1, source="user", llm_message={"content": [{"text": task}]}),
        ]
        return json.dumps({"base_state": state, "events": [*opening, *events]}).encode()

    observed = event("ObservationEvent", 4, observation={"content": [{"text": "x"}]})
    return Sample(
        {
            "a.json": document("a", "fix it", action(2, "x"), observed, action(9, "y")),
            "b.json": document("b", "test it", action(3, "x")),
        },
        (Provenance.MEASURED,),
    )


SAMPLES = {
    "turnstile": native(),
    "turns.jsonl": turns_of_a_run(),
    "mini-swe-agent": mini_swe_agent(),
    "weka": weka(),
    "openhands": openhands(),
    "otel": Sample({"a.json": span_samples.otlp()}, (Provenance.MEASURED,)),
    "langfuse": Sample({"a.json": span_samples.langfuse()}, (Provenance.MEASURED,)),
    "exgentic": Sample({"a.jsonl": span_samples.exgentic()}, (), refusal="neither token counts"),
    "atif": Sample(
        {"a.json": span_samples.atif("a", 2, 9), "b.json": span_samples.atif("b", 3)},
        (Provenance.INFERRED,),
    ),
    "swe-agent": Sample(
        {
            "a.traj": span_samples.swe_agent("fix it", 1.5, 1),
            "b.traj": span_samples.swe_agent("x", 1),
        },
        (Provenance.MEASURED,),
    ),
    "bfcl": Sample(
        {"a.json": span_samples.bfcl()},
        (Provenance.SYNTHESISED,),
        gaps="bfcl",
        shares_prefix=False,
    ),
    "mlperf-endpoints": Sample(
        {"a.jsonl": span_samples.mlperf_endpoints()}, (Provenance.MEASURED,)
    ),
}
"""Samples by the name in `traces.formats.registry.FORMATS`."""
