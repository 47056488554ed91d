"""Samples of formats of spans and of benchmark trajectories, written by hand."""

from __future__ import annotations

import json
from typing import Any

SYSTEM = "be brief " * 10


def otlp() -> bytes:
    """Return two conversations of one request each, and of two with a tool in between."""

    def span(
        trace: str, number: int, at_s: float, end_s: float, **attributes: Any
    ) -> dict[str, Any]:
        values = [
            {"key": key.replace("__", "."), "value": {"intValue": str(value)}}
            if isinstance(value, int)
            else {"key": key.replace("__", "."), "value": {"stringValue": value}}
            for key, value in attributes.items()
        ]
        return {
            "traceId": trace, "spanId": f"{trace}{number}", "parentSpanId": "", "name": "span",
            "startTimeUnixNano": str(1_700_000_000_000_000_000 + round(at_s * 1e9)),
            "endTimeUnixNano": str(1_700_000_000_000_000_000 + round(end_s * 1e9)),
            "attributes": values,
        }  # fmt: skip

    def chat(trace: str, number: int, at_s: float, prompt: int, *said: str) -> dict[str, Any]:
        roles = ("system", "user", "assistant", "tool")
        messages = [
            {"role": role, "parts": [{"type": "text", "content": content}]}
            for role, content in zip(roles, (SYSTEM, *said), strict=False)
        ]
        answer = [{"role": "assistant", "parts": [{"type": "text", "content": "on"}]}]
        return span(
            trace, number, at_s, at_s + 2, gen_ai__operation__name="chat",
            gen_ai__conversation__id=f"conversation {trace}",
            gen_ai__usage__input_tokens=prompt, gen_ai__usage__output_tokens=20,
            gen_ai__input__messages=json.dumps(messages),
            gen_ai__output__messages=json.dumps(answer),
        )  # fmt: skip

    tool = span("a", 2, 2.0, 3.5, gen_ai__operation__name="execute_tool", gen_ai__tool__name="ls")
    spans = [
        tool,
        chat("b", 1, 9, 100, "test it"),
        chat("a", 3, 3.5, 150, "fix it", "on", "x y z"),
        chat("a", 1, 0, 100, "fix it"),
    ]
    return json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]}).encode()


def langfuse() -> bytes:
    def trace(id: str, *observations: dict[str, Any]) -> dict[str, Any]:
        inside = [{"id": f"{id}{i}", "traceId": id, **o} for i, o in enumerate(observations)]
        return {"trace": {"id": id, "latency": 7, "observations": inside}, "observations": inside}

    def generation(second: int, prompt: int, *said: str) -> dict[str, Any]:
        roles = ("system", "user", "assistant", "tool")
        messages = [
            {"role": role, "content": content}
            for role, content in zip(roles, (SYSTEM, *said), strict=False)
        ]
        return {
            "type": "GENERATION", "startTime": f"2026-01-01T00:00:{second:02}.000Z",
            "endTime": f"2026-01-01T00:00:{second + 2:02}.000Z", "latency": 2000,
            "usageDetails": {"input": prompt, "output": 20, "total": prompt + 20},
            "input": json.dumps(messages), "output": json.dumps({"content": "on"}),
        }  # fmt: skip

    tool = {"type": "TOOL", "name": "ls", "startTime": "2026-01-01T00:00:02.000Z",
            "endTime": "2026-01-01T00:00:03.500Z"}  # fmt: skip
    a = trace("a", generation(0, 100, "fix it"), tool, generation(4, 150, "fix it", "on", "x y z"))
    return json.dumps([a, trace("b", generation(9, 100, "test it"))]).encode()


def atif(id: str, *seconds: int) -> bytes:
    """Return a trajectory with an agent step at each second."""

    def agent(number: int, second: int) -> dict[str, Any]:
        return {
            "step_id": number + 3, "source": "agent", "message": "on",
            "timestamp": f"2026-01-01T00:00:{second:02}Z",
            "tool_calls": [{"tool_call_id": "c", "function_name": "bash",
                            "arguments": {"command": "ls"}}],
            "observation": {"results": [{"source_call_id": "c", "content": "x"}]},
            "metrics": {"prompt_tokens": 100 + 50 * number, "completion_tokens": 20},
        }  # fmt: skip

    steps = [
        {"step_id": 1, "source": "system", "message": SYSTEM},
        {"step_id": 2, "source": "user", "message": "fix it"},
        *(agent(number, second) for number, second in enumerate(seconds)),
    ]
    document = {"schema_version": "ATIF-v1.7", "session_id": id, "agent": {"name": "a"}}
    return json.dumps({**document, "steps": steps}).encode()


def swe_agent(task: str, *times_s: float) -> bytes:
    """Return a trajectory with a step for each time of a tool."""
    steps = [
        {"action": "ls -F", "observation": "x", "response": "on", "execution_time": time_s}
        for time_s in times_s
    ]
    history = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": task}]
    for _ in times_s:
        history.append({"role": "assistant", "content": "on and on", "action": "ls -F"})
        history.append({"role": "user", "content": "a file and another file"})
    document = {"environment": "main", "trajectory": steps, "history": history}
    return json.dumps({**document, "info": {"model_stats": {"api_calls": 0}}}).encode()


def bfcl() -> bytes:
    rows = (
        {"id": "multi_turn_base_0", "result": [[[{"ls": "{}"}], []]],
         "input_token_count": [[100, 150]], "output_token_count": [[20, 20]],
         "latency": [[1.5, 0.5]]},
        {"id": "live_simple_0", "result": ["cd(folder='x')"], "input_token_count": 100,
         "output_token_count": 20, "latency": 0.5},
    )  # fmt: skip
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def mlperf_endpoints() -> bytes:
    def row(id: str, turn: int, role: str, **fields: Any) -> dict[str, Any]:
        return {"conversation_id": id, "turn": turn, "role": role, **fields}

    call = {"id": "f:0", "type": "function",
            "function": {"name": "bash", "arguments": '{"command": "ls"}'}}  # fmt: skip
    rows = (
        row("a", 1, "user", content="fix it", system=SYSTEM),
        row("a", 2, "assistant", reasoning_content="look around", tool_calls=[call]),
        row("a", 3, "tool", tool_results=[{"tool_call_id": "f:0", "content": "x y z"}],
            delay_seconds=1.5),
        row("a", 4, "assistant", content="done"),
        row("b", 1, "user", content="test it", system=SYSTEM),
        row("b", 2, "assistant", content="done"),
    )  # fmt: skip
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)
