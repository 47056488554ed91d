"""Error messages for lines of Turnstile's own trace format.

In: pydantic's error for a line. Out: text with the field, the value and the remedy. For an unknown
field, the remedy names the field that the user may have meant, even if the name comes from another
format.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from pydantic import ValidationError

from servers.basics.nearest import nearest
from servers.basics.text import brief, describe_first_error, one_line

FOREIGN_FIELDS = {
    "prompt_tokens": (
        "in", "input", "input_length", "input_tokens", "input_tokens_total", "input_toks", "isl",
        "prompt", "prompt_length", "context_tokens",
    ),
    "output_tokens": (
        "out", "output", "output_length", "output_toks", "osl", "completion", "completion_tokens",
        "generated_tokens", "response_tokens",
    ),
    "kept_tokens": ("cached", "cached_tokens", "cached_input_tokens", "prefix_tokens"),
    "tool_gap_s": (
        "delay", "delay_s", "delay_ms", "duration", "duration_s", "duration_ms", "gap", "gap_s",
        "gap_ms", "latency", "sleep", "think_time", "tool_latency", "tool_ms", "tool_s",
        "tool_seconds", "tool_time", "tool_time_s", "tool_time_ms", "tool_duration",
        "tool_duration_s", "tool_duration_ms", "tool_wait_ms", "wait", "wait_s", "wait_ms",
    ),
    "gap_provenance": ("provenance", "gap_source", "measured"),
    "tools": ("tool", "tool_name", "tool_names", "tool_calls", "function", "functions"),
    "id": ("conversation_id", "job_id", "name", "program", "session", "session_id"),
    "turns": ("calls", "llm_calls", "requests", "rounds", "steps"),
    "recorded_start_s": (
        "arrival", "arrival_s", "arrival_time", "start", "start_s", "start_time", "timestamp",
    ),
    "fork": ("parent", "parent_id", "parent_session_id"),
    "program_id": ("parent", "parent_id", "session_id"),
}  # fmt: skip
"""Names in other formats and in everyday use, by the field of this format."""
OTHER_UNITS = ("_ms", "_us", "_ns")
MAX_FIELDS = 3
"""Maximum number of unknown fields in a message."""


def problem(
    error: ValidationError, fields_at: Callable[[Sequence[int | str]], Collection[str]]
) -> str:
    """Describe the error in a line. `fields_at` returns the fields of the object with an error at
    this location."""
    errors = error.errors(include_url=False)
    unknown: dict[str, str] = {}
    suggestions = 0
    for each in errors:
        if each["type"] != "extra_forbidden":
            continue
        *_, name = each["loc"]
        meant = meant_field(str(name), fields_at(each["loc"]))
        suggestions += bool(meant)
        where = f"{one_line('.'.join(map(str, each['loc'])))} is {brief(each['input'])}"
        unknown.setdefault(
            str(name), f"{where}: not a field of this format; {meant or 'remove it'}"
        )
    no_format = any(e["type"] == "missing" and e["loc"] == ("format",) for e in errors)
    if not no_format and not suggestions:
        return describe_first_error(error)
    parts = ['format: missing; add "format": "turnstile-trace-1"'] if no_format else []
    return "; ".join(parts + list(unknown.values())[:MAX_FIELDS])


def meant_field(name: str, fields: Collection[str]) -> str:
    """Return a question with the field that an unknown name may stand for, or ""."""
    key = name.casefold().replace("-", "_")
    foreign = [f for f, others in FOREIGN_FIELDS.items() if f in fields and key in others]
    field = foreign[0] if foreign else nearest(key, fields)
    if not field:
        return ""
    unit = " in seconds" if key.endswith(OTHER_UNITS) and field.endswith("_s") else ""
    return f"did you mean {field}{unit}?"
