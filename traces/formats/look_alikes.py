"""Names the format that an unrecognised file resembles, by the keys of its object.

In: the first object of the file. Out: a sentence with the format, and either the fields that are
missing or the reason why it cannot be read.
"""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from servers.basics.nearest import nearest
from servers.basics.text import one_line
from traces.lenient import mapping

NOT_READ = "which cannot be read here; convert it to turnstile-trace-1"
MAX_KEYS = 5
"""Maximum number of keys in a message."""


@dataclass(frozen=True, slots=True)
class LookAlike:
    name: str
    """The format's name in the registry if it can be read."""
    keys: tuple[str, ...]
    """The keys of an object of this format. `a.b` is the key `b` of the object in `a`, or of the
    first object of the list in `a`."""
    reason: str = NOT_READ


LOOK_ALIKES = (
    LookAlike("turnstile", ("format", "id", "turns.prompt_tokens", "turns.output_tokens")),
    LookAlike("turns.jsonl", ("program_id", "turn", "sent_at_s", "prompt_tokens")),
    LookAlike("weka", ("id", "block_size", "requests.in", "requests.out")),
    LookAlike("azure-copilot", ("session_id", "date", "turns.llm_calls")),
    LookAlike("tracelab", ("session_id", "round_index", "input_tokens_total", "output_tokens")),
    LookAlike("agentinfer", ("session_id", "actor_id", "started_at", "input_tokens")),
    LookAlike("dynamo", ("schema", "event_type", "event_time_unix_ms", "request.request_id")),
    LookAlike("applied-compute", ("input_prompt_length", "assistant_response_length")),
    LookAlike("mooncake", ("input_length", "output_length", "timestamp")),
    LookAlike("bailian", ("chat_id", "parent_chat_id", "input_length", "output_length")),
    LookAlike("llmservingsim", ("input_toks", "output_toks", "arrival_time_ns")),
    LookAlike("lmcache-agent", ("session_id", "timestamp", "input", "output")),
    LookAlike("aiperf-dag", ("session_id", "turns.messages", "turns.max_tokens")),
    LookAlike("claude-code", ("sessionId", "uuid", "parentUuid", "type")),
    LookAlike("codex", ("timestamp", "type", "payload")),
    LookAlike("gemini-cli", ("sessionId", "projectHash", "messages")),
    LookAlike("otel", ("resourceSpans",)),
    LookAlike("otel", ("trace_id", "span_id", "attributes")),
    LookAlike("otel", ("trace_id", "spans")),
    LookAlike("langfuse", ("trace", "observations")),
    *(
        LookAlike(
            "a recording of Exgentic", keys,
            "which has neither token counts nor times, only the steps; give the OpenTelemetry "
            "traces of the same run",
        )
        for keys in (
            ("event", "run_id", "session_id", "step"),
            ("session_id", "is_finished", "agent_cost", "benchmark_cost"),
            ("task", "context", "actions"),
        )
    ),
    LookAlike("atif", ("schema_version", "agent", "steps")),
    LookAlike("swe-agent", ("environment", "trajectory", "history")),
    LookAlike("mlperf-endpoints", ("conversation_id", "turn", "role")),
    LookAlike(
        "the schema of Azure's Copilot data set", ("window_start", "window_end", "record.turns"),
        "which has no sessions; give the data files",
    ),
    LookAlike(
        "a log of LLMServingSim's bench",
        ("input_toks", "output_toks", "arrival_time", "first_token_ts"),
        "which has no times between turns; give the workload file that was benchmarked",
    ),
    LookAlike(
        "ShareGPT conversations", ("conversations.from", "conversations.value"),
        "which have neither token counts nor times",
    ),
    LookAlike("bfcl", ("id", "result", "input_token_count", "output_token_count")),
)  # fmt: skip


RECIPE = "turnstile-recipe-1"


def describe_toml(data: bytes, name: str) -> str:
    """Describe a TOML file, which is never a trace."""
    try:
        document = tomllib.loads(data.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError):
        return "not a trace; files of traces are JSON, CSV or Parquet"
    if document.get("format") == RECIPE:
        return use_of_recipe(name)
    return "not a trace; if it has the settings of a sweep, run bench sweep FILE without --traces"


def use_of_recipe(name: str) -> str:
    """Return the remedy for a recipe file that was given as a trace."""
    return (
        "a recipe, which describes a workload and is not a trace; draw its programs with "
        f"bench traces synthesize {one_line(name)} --out programs.jsonl.gz"
    )


def describe(document: object, known: Collection[str]) -> str:
    """Describe what an object without a known format resembles. `known` are the formats' names."""
    found = keys_of(document)
    if not found:
        what = "an object with no fields" if isinstance(document, dict) else "no object"
        return f"unknown format ({what}); known are {', '.join(known)}"
    like = max(LOOK_ALIKES, key=lambda like: _similarity(like, found))
    share, exact = _similarity(like, found)
    has = ", ".join(key for key in like.keys if key in found)
    if share == 1 and like.name not in known:
        return f"looks like {like.name} (has {has}), {like.reason}"
    if share >= 0.5 and exact > 1 and like.name in known:
        missing = [_missing(key, found) for key in like.keys if key not in found]
        lacks = ", ".join(missing) or "a form that its reader recognises"
        return f"looks like {like.name} (has {has}), but lacks {lacks}"
    top = one_line(", ".join(sorted(key for key in found if "." not in key)[:MAX_KEYS]))
    return f"unknown format (an object with {top}); known are {', '.join(known)}"


def keys_of(document: object) -> set[str]:
    """Return the keys of an object, and the keys of the objects in it as `a.b`."""
    top = mapping(document)
    return {*top, *_inner(top)}


def _inner(top: Mapping[str, Any]) -> Iterable[str]:
    for key, value in top.items():
        first = value[0] if isinstance(value, list) and value else value
        yield from (f"{key}.{inner}" for inner in mapping(first))


def _similarity(like: LookAlike, found: Collection[str]) -> tuple[float, int]:
    present = sum(key in found for key in like.keys)
    return present / len(like.keys), present


def _missing(key: str, found: Collection[str]) -> str:
    *_, own = key.split(".")
    other = nearest(own, [name.split(".")[-1] for name in found])
    return f"{key} (did you mean that by {one_line(other)}?)" if other else key
