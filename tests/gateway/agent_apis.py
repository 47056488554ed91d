"""Requests and answers of the APIs that Claude Code and Codex use, as vLLM 0.32 sends them."""

from __future__ import annotations

from typing import Any

import orjson

ARGUMENTS = '{"command": "ls -la"}'
PARAMETERS = {"type": "object", "properties": {"command": {"type": "string"}}}
USAGE = {"input_tokens": 17, "cache_read_input_tokens": 32, "output_tokens": 80}
COUNTED = {
    "input_tokens": 49,
    "input_tokens_details": {"cached_tokens": 32, "cache_write_tokens": 0},
    "output_tokens": 80,
    "output_tokens_details": {"reasoning_tokens": 0},
    "total_tokens": 129,
}
TOOL_USE = {"type": "tool_use", "id": "t1", "name": "bash", "input": {"command": "ls -la"}}
MESSAGE = {"id": "m1", "type": "message", "role": "assistant", "model": "m", "content": []}
FUNCTION_CALL = {
    "type": "function_call",
    "id": "fc1",
    "call_id": "t1",
    "name": "bash",
    "arguments": ARGUMENTS,
    "status": "completed",
}
RESPONSE = {
    "id": "r1",
    "object": "response",
    "created_at": 1795827063,
    "model": "m",
    "output": [],
    "parallel_tool_calls": True,
    "tool_choice": "auto",
    "tools": [],
    "error": None,
}
DONE = {
    **RESPONSE,
    "status": "completed",
    "output": [FUNCTION_CALL],
    "usage": COUNTED,
    "metrics": {"queue_time_ms": 0.5},
}


def sse(events: list[dict[str, Any]]) -> bytes:
    return b"".join(
        b"event: " + event["type"].encode() + b"\ndata: " + orjson.dumps(event) + b"\n\n"
        for event in events
    )


def json_delta(text: str) -> dict[str, Any]:
    delta = {"type": "input_json_delta", "partial_json": text}
    return {"type": "content_block_delta", "index": 0, "delta": delta}


MESSAGES_STREAM = sse(
    [
        {"type": "message_start", "message": {**MESSAGE, "usage": {"input_tokens": 49}}},
        {"type": "content_block_start", "index": 0, "content_block": {**TOOL_USE, "input": {}}},
        json_delta(ARGUMENTS[:9]),
        json_delta(ARGUMENTS[9:]),
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": USAGE},
        {"type": "message_stop"},
    ]
)
MESSAGES_WHOLE = orjson.dumps(
    {**MESSAGE, "content": [TOOL_USE], "stop_reason": "tool_use", "usage": USAGE}
)
RESPONSES_WHOLE = orjson.dumps(DONE)
RESPONSES_STREAM = sse(
    [
        {"type": "response.created", "response": {**RESPONSE, "status": "in_progress"}},
        {
            "type": "response.output_item.added",
            "output_index": 0,
            "item": {**FUNCTION_CALL, "arguments": ""},
        },
        {
            "type": "response.function_call_arguments.delta",
            "item_id": "fc1",
            "output_index": 0,
            "delta": ARGUMENTS,
        },
        {"type": "response.output_item.done", "output_index": 0, "item": FUNCTION_CALL},
        {"type": "response.completed", "response": DONE},
    ]
)
MESSAGES_ASK: dict[str, Any] = {
    "model": "m",
    "max_tokens": 9,
    "messages": [{"role": "user", "content": "list"}],
}
RESPONSES_ASK: dict[str, Any] = {"model": "m", "input": "list"}
