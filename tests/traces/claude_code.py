"""Builds lines of Claude Code's sessions."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from tests.traces.sample import json_lines

Line = dict[str, Any]

START_S = 1.77e9


def iso(at_s: float) -> str:
    return datetime.fromtimestamp(START_S + at_s, UTC).isoformat().replace("+00:00", "Z")


def line(kind: str, uuid: str, parent: str | None, at_s: float, **fields: Any) -> Line:
    return {
        "type": kind, "uuid": uuid, "parentUuid": parent, "timestamp": iso(at_s),
        "isSidechain": False, "sessionId": "s", "version": "2.1.0", **fields,
    }  # fmt: skip


def user(uuid: str, parent: str | None, at_s: float, content: Any = "go", **fields: Any) -> Line:
    message = {"role": "user", "content": content}
    return line("user", uuid, parent, at_s, message=message, **fields)


def result(uuid: str, parent: str, at_s: float, tool: str, **fields: Any) -> Line:
    block = {"type": "tool_result", "tool_use_id": tool, "content": "x"}
    return user(uuid, parent, at_s, [block], **fields)


def answer(
    uuid: str, parent: str | None, at_s: float, id: str, *blocks: Line,
    new: int = 100, cached: int = 0, output: int = 20, stop: str | None = "end_turn",
    model: str = "claude-x", **fields: Any,
) -> Line:  # fmt: skip
    """Return a line of an answer, to a prompt with `new` tokens after the `cached` ones."""
    usage = {"input_tokens": 2, "cache_creation_input_tokens": new - 2,
             "cache_read_input_tokens": cached, "output_tokens": output}  # fmt: skip
    message = {"id": id, "model": model, "content": list(blocks), "usage": usage,
               "stop_reason": stop}  # fmt: skip
    return line("assistant", uuid, parent, at_s, message=message, **fields)


def tool(id: str, name: str = "Read", **given: Any) -> Line:
    return {"type": "tool_use", "id": id, "name": name, "input": given}


def written(content: str) -> Line:
    return {"type": "text", "text": content}


def session(*lines: Line) -> bytes:
    return json_lines(*lines)


def session_with_an_inferred_count() -> bytes:
    """Return a session with two output counts, one of which is estimated from the answer."""
    return session(
        user("u", None, 0),
        answer("a", "u", 4, "m1", written("x" * 330), tool("t"), output=3, stop=None),
        result("r", "a", 9, "t"),
        answer("b", "r", 12, "m2", written("done"), cached=100, new=150),
    )
