"""A small valid file of every trace format, from the tests of that format."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.fuzz.sessions import DOCUMENT, SESSIONS
from tests.traces.samples import SAMPLES
from tests.traces.test_read import OPENHANDS, WEKA, mini
from traces.formats.native import parse_programs
from traces.stored import Writer

NATIVE = b"\n".join(
    json.dumps(line).encode()
    for line in (
        {
            "format": "turnstile-trace-1",
            "id": "a",
            "prefix": {"id": "system:1", "tokens": 40},
            "recorded_start_s": 1.5,
            "source": "by hand",
            "turns": [
                {"prompt_tokens": 90, "output_tokens": 8, "tools": ["cd"], "command": "cd x",
                 "tool_gap_s": 3.2, "gap_provenance": "measured"},
                {"prompt_tokens": 160, "output_tokens": 6, "kept_tokens": 98},
            ],
            "messages": [{"role": "user", "content": "fix it"}],
            "prompt_messages": [1, 1],
        },
        {
            "format": "turnstile-trace-1",
            "id": "a/explore",
            "fork": {"program_id": "a", "after_turn": 0, "delay_s": 0.5, "joined_before_turn": 1},
            "turns": [{"prompt_tokens": 90, "output_tokens": 20}],
        },
    )
)  # fmt: skip


def turn(program: str, number: int, at_s: float, **fields: Any) -> dict[str, Any]:
    """Return a record of turns.jsonl."""
    return {
        "program_id": program, "turn": number, "job_id": "p", "scheduled_at_s": at_s,
        "sent_at_s": at_s, "finished_at_s": at_s + 1.0, "first_token_at_s": at_s + 0.5,
        "prompt_tokens": 100 + 50 * number, "output_tokens": 10, "device_hit_tokens": 0,
        "dram_hit_tokens": 0, "ssd_hit_tokens": 0, "queue_s": 0.1, "load_s": 0.0,
        "prefill_s": 0.4, "decode_s": 0.5, "preempted_s": 0.0, "recompute_s": 0.0,
        "preemptions": 0, "kept_tokens": 100 * (number > 0), "tools": ["bash"], "gap_s": 0.5,
        "gap_provenance": "measured", "wait_s": 0.0, "pinned_hit": False, "error": None,
        **fields,
    }  # fmt: skip


CSV = b"program,start,end,prompt_tokens,output_tokens,tool\na,0,1,90,8,ls\na,3,4,160,6,\n"
SYSTEM = {"id": "system:1", "tokens": 40}
MESSAGES = [{"role": "user", "content": "fix it"}]
TURNS = b"".join(
    json.dumps(line).encode() + b"\n"
    for line in (
        turn("p", 0, 0.0, system=SYSTEM, messages=MESSAGES, messages_repeated=0, answer="ls"),
        turn("q", 0, 0.2, error="the server answered 500: no"),
        turn("r", 0, 0.4, job_id="p"),
        turn("p", 1, 2.0, messages=MESSAGES, messages_repeated=2, answer="done", command="ls"),
    )
)

LEGACY = [
    {"id": 0, "timestamp": "2026-01-01T00:00:00", "source": "agent", "action": "system",
     "args": {"content": "be brief", "tools": [{"name": "bash"}]}},
    {"id": 1, "timestamp": "2026-01-01T00:00:01", "source": "user", "action": "message",
     "args": {"content": "fix it"}},
    {"id": 2, "timestamp": "2026-01-01T00:00:05", "source": "agent", "action": "run",
     "args": {"command": "ls && pwd"}, "tool_call_metadata": {"function_name": "execute_bash",
     "model_response": {"id": "a", "usage": {"prompt_tokens": 90, "completion_tokens": 9},
     "choices": [{"message": {"content": "on", "tool_calls": [{"function": {"name": "x"}}]}}]}}},
    {"id": 3, "timestamp": "2026-01-01T00:00:06", "source": "environment", "observation": "run",
     "content": "a b"},
    {"id": 4, "timestamp": "2026-01-01T00:00:09", "source": "agent", "action": "condensation",
     "args": {"summary": "so far"}, "llm_metrics": {"accumulated_token_usage":
     {"prompt_tokens": 200, "completion_tokens": 30}}},
    {"id": 5, "timestamp": "2026-01-01T00:00:12", "source": "agent", "action": "finish",
     "args": {"thought": "done"}, "llm_metrics": {"accumulated_token_usage":
     {"prompt_tokens": 400, "completion_tokens": 50}}},
]  # fmt: skip
MINI_2: Mapping[str, Any] = {
    "trajectory_format": "mini-swe-agent-1.1",
    "info": {"config": {"environment": {"timeout": 30}}},
    "messages": [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "fix it"}]},
        {"object": "response", "output": "x", "extra": {"timestamp": 1.7e9, "actions": [
            {"command": "ls | wc"}], "response": {"created_at": 1.69e9, "usage": {
            "input_tokens": 100, "output_tokens": 20, "output_tokens_details":
            {"reasoning_tokens": 4}}}}},
        {"role": "tool", "content": "3", "extra": {"timestamp": 1.7e9 + 3}},
        {"role": "user", "content": "no", "extra": {"response": {"usage": {
            "prompt_tokens": 130, "completion_tokens": 2}}}},
        {"role": "assistant", "content": "```bash\nls\n```", "timestamp": 1.7e9 + 9, "extra": {
            "response": {"created": 1.7e9 + 8, "usage": {"prompt_tokens": 90}}}},
    ],
}  # fmt: skip
ROWS = b"\n".join(json.dumps({"instance_id": "r", "history": LEGACY}).encode() for _ in "ab")


def _json(value: object) -> bytes:
    return json.dumps(value).encode()


def _samples(*suffixes: str) -> tuple[bytes, ...]:
    """Return files of the contract test's samples, so that every format is among the inputs."""
    return tuple(
        data
        for sample in SAMPLES.values()
        for name, data in sample.files.items()
        if name.endswith(suffixes)
    )


def _packed() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.packed"
        with Writer(path) as writer:
            for program in parse_programs(NATIVE, "a"):
                writer.add(program)
        return path.read_bytes()


TRACES: dict[str, tuple[bytes, ...]] = {
    "a.jsonl": (NATIVE, TURNS, ROWS, b"\n".join(map(_json, LEGACY)), *SESSIONS,
                *_samples(".jsonl")),
    "turns.jsonl": (TURNS,),
    "a.json": (_json(WEKA), _json(mini("m", 1_700_000_011)), _json(MINI_2), _json(OPENHANDS),
               _json(LEGACY), DOCUMENT, *_samples(".json", ".traj")),
    "a.jsonl.gz": (NATIVE,),
    "a.packed": (_packed(),),
    "a.csv": (CSV,),
}  # fmt: skip
"""The possible contents by file name."""
