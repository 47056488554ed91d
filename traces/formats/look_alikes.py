"""Names the format that an unrecognised file resembles, by the keys of its object.

In: the first object of the file. Out: a sentence with the format, and either the fields that are
missing or the reason why it cannot be read.
"""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Iterable

from servers.basics.json_object import JsonObject
from servers.basics.nearest import nearest
from servers.basics.text import one_line
from traces.formats.registry import FIRST_BYTES, NOT_INSTALLED, PACKAGED, abouts, known_formats
from traces.formats.shared.linked import first_lines
from traces.lenient import document_start, line_start, mapping

KINDS = "files of traces are JSON, CSV or Parquet"
MAX_KEYS = 5
"""Maximum number of keys in a message."""
NO_STEPS = (
    "which has neither token counts nor times, only the steps; give the OpenTelemetry traces of "
    "the same run"
)


EXGENTIC = "a recording of Exgentic"
UNREADABLE = tuple(
    (name, tuple(keys.split()), reason)
    for name, keys, reason in (
        (EXGENTIC, "event run_id session_id step", NO_STEPS),
        (EXGENTIC, "session_id is_finished agent_cost benchmark_cost", NO_STEPS),
        (EXGENTIC, "task context actions", NO_STEPS),
        (
            "the schema of Azure's Copilot data set",
            "window_start window_end record.turns",
            "which has no sessions; give the data files",
        ),
        (
            "a log of LLMServingSim's bench",
            "input_toks output_toks arrival_time first_token_ts",
            "which has no times between turns; give the workload file that was benchmarked",
        ),
        (
            "ShareGPT conversations",
            "conversations.from conversations.value",
            "which have neither token counts nor times",
        ),
        (
            "an export of AIPerf's results",
            "metadata.session_num metadata.request_start_ns",
            "which has what was measured, not the trace; give the trace that AIPerf replayed",
        ),
        (
            "rollouts of reinforcement learning",
            "group stream prompt_len out_lens obs_lens",
            "which have lengths, but neither the times nor the tools of the calls between them",
        ),
    )
)
"""Files that cannot be read, with the keys of an object in them (`keys_of`) and the reason."""

RECORD = "record the agent with bench record, or give its OpenTelemetry spans"
SPANS = "export the traces as OpenTelemetry spans"
CLAUDE = "the output of claude -p, which has no times", "give its session in ~/.claude/projects"
CODEX = (
    "the output of codex exec, which has sums and no times",
    "give its rollout in ~/.codex/sessions",
)
COPILOT = "a session of Copilot CLI, which has no prompt lengths"
CLINE = "messages as Cline and Roo Code keep them, which have neither counts nor times"
OTHERS = tuple(
    (name, frozenset(keys.split()), remedy)
    for name, keys, remedy in (
        ("a session of Qwen Code", "sessionId uuid message.parts", RECORD),
        ("a session of OpenCode", "info.id messages.info messages.parts", RECORD),
        ("a message of OpenCode", "sessionID role modelID", RECORD),
        ("a session of Amp", "v messages.messageId", RECORD),
        ("messages of Cline or Roo Code", "ts type say", RECORD),
        ("messages of Cline or Roo Code", "ts type ask", RECORD),
        (CLINE, "role content.type content.text", RECORD),
        ("a session of goose", "working_dir message_count", RECORD),
        (COPILOT, "type data parentId timestamp", RECORD),
        ("a chat of Copilot in VS Code", "requests responderUsername", RECORD),
        ("a conversation of Cursor", "composerId conversation", RECORD),
        ("a conversation of Cursor", "composerId fullConversationHeadersOnly", RECORD),
        ("a message of Cursor", "bubbleId tokenCount", RECORD),
        (CLAUDE[0], "type subtype session_id uuid", CLAUDE[1]),
        (CLAUDE[0], "type message session_id parent_tool_use_id", CLAUDE[1]),
        (CODEX[0], "type thread_id", CODEX[1]),
        ("records of Logfire", "span_name otel_scope_name", SPANS),
        ("a session of AgentOps", "session_id events.event_type", SPANS),
    )
)
"""Files of other tools, with the keys of an object in them and what to give instead. Readers of
ours would take some of them for their own."""
AIDER = b"# aider chat started"
SQLITE = b"SQLite format 3\0"
RECIPE = "turnstile-recipe-1"


def of_another_tool(data: bytes) -> str | None:
    """Return what a file of another tool is and what to do, or None. Ask the formats of installed
    packages before, which may read it."""
    first_bytes = data[:FIRST_BYTES]
    if first_bytes.lstrip().startswith(AIDER):
        return f"a chat of Aider, which has no times and cannot be read here; {RECORD}"
    if first_bytes.startswith(SQLITE):
        return (
            "a SQLite database, which cannot be read here; export the table with its calls as "
            "CSV, and give --columns"
        )
    document = document_start(first_bytes)
    first = next(iter(document), None) if isinstance(document, list) else document
    for found in map(keys_of, (first, *first_lines(first_bytes))):
        for name, keys, remedy in OTHERS:
            # Lines of Claude Code's own sessions may have session_id besides. The line of Codex has
            # only two fields, which many records have.
            is_like = keys == found if name == CODEX[0] else keys <= found
            if is_like and not {"session_id", "sessionId"} <= found:
                which = " and" if ", which" in name else ", which"
                return f"{name}{which} cannot be read here; {remedy}"
    return None


def describe_toml(data: bytes, name: str) -> str:
    """Describe a TOML file, which is never a trace."""
    try:
        document = tomllib.loads(data.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError):
        return f"not a trace; {KINDS}"
    if document.get("format") == RECIPE:
        return use_of_recipe(name)
    return "not a trace; if it has the settings of a sweep, run bench sweep FILE without --traces"


def use_of_recipe(name: str) -> str:
    """Return the remedy for a recipe file that was given as a trace."""
    return (
        "a recipe, which describes a workload and is not a trace; draw its programs with "
        f"bench traces synthesize {one_line(name)} --out programs.jsonl.gz"
    )


def describe(document: object) -> str:
    """Describe what an object without a known format resembles."""
    known = known_formats().names()
    found = keys_of(document)
    if not found:
        what = "an object with no fields" if isinstance(document, dict) else "no object"
        return f"unknown format ({what}); known are {', '.join(known)}"
    keys_of_formats = {name: about.keys for name, about in abouts().items()} | PACKAGED
    readable = [
        (name, keys, "" if name in known else NOT_INSTALLED)
        for name, kinds in keys_of_formats.items()
        for keys in kinds
    ]
    name, keys, reason = max([*readable, *UNREADABLE], key=lambda like: _similarity(like[1], found))
    share, exact = _similarity(keys, found)
    has = ", ".join(key for key in keys if key in found)
    is_close = share >= 0.5 and exact > 1
    if (share == 1 and reason) or (is_close and reason == NOT_INSTALLED):
        return f"looks like {name} (has {has}), {reason}"
    if is_close and not reason:
        missing = [_missing(key, found) for key in keys if key not in found]
        lacks = ", ".join(missing) or "a form that its reader recognises"
        return f"looks like {name} (has {has}), but lacks {lacks}"
    top = one_line(", ".join(sorted(key for key in found if "." not in key)[:MAX_KEYS]))
    return f"unknown format (an object with {top}); known are {', '.join(known)}"


def needs_package(data: bytes) -> bool:
    """Return whether the first line of a file is of a format of `PACKAGE`, which is missing."""
    found = keys_of(line_start(data[:FIRST_BYTES]))
    names = [name for name, kinds in PACKAGED.items() if any(found.issuperset(k) for k in kinds)]
    return not set(names) <= set(known_formats().names())


def keys_of(document: object) -> set[str]:
    """Return the keys of an object, and as `a.b` the keys of the object in `a`, or of the first
    object of the list in `a`."""
    top = mapping(document)
    return {*top, *_inner(top)}


def _inner(top: JsonObject) -> Iterable[str]:
    for key, value in top.items():
        first = value[0] if isinstance(value, list) and value else value
        yield from (f"{key}.{inner}" for inner in mapping(first))


def _similarity(keys: Collection[str], found: Collection[str]) -> tuple[float, int]:
    present = sum(key in found for key in keys)
    return present / len(keys), present


def _missing(key: str, found: Collection[str]) -> str:
    *_, own = key.split(".")
    other = nearest(own, [name.split(".")[-1] for name in found])
    return f"{key} (did you mean that by {one_line(other)}?)" if other else key
