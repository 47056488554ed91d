"""A small trace of every built-in format, on which `test_formats.py` runs its contract tests.

Each has two programs whose prompts share a prefix, and one of them has a second turn.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from traces import Provenance


@dataclass(frozen=True)
class Sample:
    files: Mapping[str, bytes]
    """Contents by file name."""
    gap_provenance: tuple[Provenance, ...]
    """The provenance of each tool gap, in order of the programs and their turns."""


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


def claude_code() -> Sample:
    def session(id: str, *lines: dict[str, Any]) -> bytes:
        chain = {"isSidechain": False, "sessionId": id, "version": "2.1.0"}
        parents = [None, *(line["uuid"] for line in lines)]
        records = zip(parents, lines, strict=False)
        return json_lines(*({"parentUuid": parent, **line, **chain} for parent, line in records))

    def prompt(id: str, at: str) -> dict[str, Any]:
        message = {"role": "user", "content": "fix it"}
        return {"type": "user", "uuid": f"{id}-1", "timestamp": at, "message": message}

    def answer(id: str, n: int, at: str, block: dict[str, Any], cached: int) -> dict[str, Any]:
        usage = {"input_tokens": 4, "cache_creation_input_tokens": 100 + 50 * n - 4 - cached,
                 "cache_read_input_tokens": cached, "output_tokens": 20}  # fmt: skip
        message = {"id": f"msg_{id}{n}", "model": "claude-x", "content": [block], "usage": usage,
                   "stop_reason": "end_turn"}  # fmt: skip
        return {"type": "assistant", "uuid": f"{id}-a{n}", "timestamp": at, "message": message}

    called = {"type": "tool_use", "id": "t", "name": "Bash", "input": {"command": "ls"}}
    result = {"type": "tool_result", "tool_use_id": "t", "content": "x"}
    done = {"type": "text", "text": "done"}
    observed = {"type": "user", "uuid": "a-2", "timestamp": "2026-01-01T00:00:05.500Z",
                "message": {"role": "user", "content": [result]}}  # fmt: skip
    return Sample(
        {
            "a.jsonl": session(
                "a",
                prompt("a", "2026-01-01T00:00:00Z"),
                answer("a", 0, "2026-01-01T00:00:04Z", called, 64),
                observed,
                answer("a", 1, "2026-01-01T00:00:09Z", done, 100),
            ),
            "b.jsonl": session(
                "b",
                prompt("b", "2026-01-01T00:01:00Z"),
                answer("b", 0, "2026-01-01T00:01:04Z", done, 64),
            ),
        },
        (Provenance.MEASURED,),
    )


def codex() -> Sample:
    def line(kind: str, second: float, **payload: Any) -> dict[str, Any]:
        return {"timestamp": f"2026-01-01T00:00:{second:06.3f}Z", "type": kind, "payload": payload}

    def counted(second: float, calls: int) -> dict[str, Any]:
        last = {"input_tokens": 50 + 50 * calls, "cached_input_tokens": 64, "output_tokens": 20}
        info = {"total_token_usage": {"input_tokens": 125 * calls}, "last_token_usage": last}
        return line("event_msg", second, type="token_count", info=info)

    def rollout(id: str, *lines: dict[str, Any]) -> bytes:
        opening = [
            line("session_meta", 0, id=id, cli_version="0.100.0"),
            line("turn_context", 0, model="gpt-x"),
            line("response_item", 1, type="message", role="user", content=[{"text": "fix it"}]),
        ]
        return json_lines(*opening, *lines)

    call = line("response_item", 4, type="function_call", name="exec_command", call_id="c",
                arguments=json.dumps({"cmd": "ls"}))  # fmt: skip
    output = line("response_item", 5.5, type="function_call_output", call_id="c", output="x")
    done = line("response_item", 9, type="message", role="assistant", content=[{"text": "done"}])
    return Sample(
        {
            "rollout-a.jsonl": rollout("a", call, counted(4, 1), output, done, counted(9, 2)),
            "rollout-b.jsonl": rollout("b", done, counted(9, 1)),
        },
        (Provenance.MEASURED,),
    )


def gemini_cli() -> Sample:
    def session(id: str, *messages: dict[str, Any]) -> bytes:
        head = {"sessionId": id, "projectHash": "0" * 8, "startTime": "2026-01-01T00:00:00Z"}
        user = {"id": "u", "timestamp": "2026-01-01T00:00:01Z", "type": "user", "content": "fix it"}
        patch = {"$set": {"lastUpdated": "2026-01-01T00:00:01Z"}}
        return json_lines(head, user, patch, *messages)

    def answer(n: int, second: int, *calls: dict[str, Any]) -> dict[str, Any]:
        counts = {"input": 100 + 50 * n, "output": 20, "cached": 64, "thoughts": 0, "tool": 0}
        return {"id": f"g{n}", "timestamp": f"2026-01-01T00:00:0{second}Z", "type": "gemini",
                "content": "on", "model": "gemini-x", "tokens": counts,
                "toolCalls": list(calls)}  # fmt: skip

    call = {"name": "run_shell_command", "args": {"command": "ls"},
            "timestamp": "2026-01-01T00:00:05.500Z"}  # fmt: skip
    return Sample(
        {
            "session-a.jsonl": session("a", answer(0, 4, call), answer(1, 9)),
            "session-b.jsonl": session("b", answer(0, 4)),
        },
        (Provenance.MEASURED,),
    )


SAMPLES = {
    "turnstile": native(),
    "turns.jsonl": turns_of_a_run(),
    "claude-code": claude_code(),
    "codex": codex(),
    "gemini-cli": gemini_cli(),
    "mini-swe-agent": mini_swe_agent(),
    "weka": weka(),
    "openhands": openhands(),
}
"""Samples by the name in `traces.formats.registry.FORMATS`."""
