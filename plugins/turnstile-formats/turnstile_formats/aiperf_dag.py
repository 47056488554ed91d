"""AIPerf's `dag_jsonl`: benchmark inputs of conversations that fork, spawn and join.

In: a conversation per line, `{session_id, turns[{messages[], max_tokens, delay, forks[],
spawns[{children[], join_at}]}]}`, with delays in milliseconds. Out: a program per conversation.
`messages` has only the messages that a turn adds. A fork inherits its parent's context, a spawned
conversation starts without one, and the parent waits at `join_at`. There are no token counts: they
are estimated from the text, and outputs have `max_tokens`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import orjson

from servers.basics.errors import TraceRejected
from servers.basics.json_object import JsonObject
from servers.basics.text import identifier, text
from traces.assumptions import Assumptions
from traces.formats.about import BY_TEXT, COUNT, About
from traces.formats.shared.rows import first_row, in_seconds, rows
from traces.formats.shared.timed_calls import UNNAMED_TOOL
from traces.lenient import MAX_GAP_S, MAX_TOKENS, Repairs, items, mapping, tokens
from traces.program import Fork, Program, SharedPrefix, Turn
from traces.token_counts import TokenCounter

ABOUT = About(
    name="aiperf-dag",
    holds="benchmark inputs, not recordings",
    tokens="inferred",
    tool_times="unstated",
    starts=False,
    sub_agents=True,
    accuracy=f"{BY_TEXT}; outputs are `max_tokens`",
    without=COUNT,
    title="AIPerf `dag_jsonl`",
    rules=(
        "An output has `max_tokens`, or 128. `delay` is the gap, **unstated**. `forks` inherit "
        "the parent's context; `spawns` start anew, and the parent waits at `join_at`"
    ),
)

DEFAULT_OUTPUT_TOKENS = 128
MAX_DEPTH = 100
"""Maximum nesting of forks."""


@dataclass(frozen=True, slots=True)
class Child:
    id: str
    parent: str
    turn: int
    inherits: bool
    join_at: int | None


def sniff(first_bytes: bytes) -> bool:
    row = first_row(first_bytes)
    turns = items(row.get("turns"))
    if "session_id" not in row or not (turns or row.get("orchestrator") is True):
        return False
    return not turns or "messages" in mapping(turns[0])


def load(data: bytes, name: str, repairs: Repairs) -> list[Program]:
    return load_with(data, name, repairs, Assumptions())


def load_with(data: bytes, name: str, repairs: Repairs, assumptions: Assumptions) -> list[Program]:
    counter = assumptions.tokens
    conversations: dict[str, Sequence[JsonObject]] = {}
    for number, row in enumerate(rows(data, repairs)):
        id = identifier(row.get("session_id")) or f"{name}-{number}"
        if turns := [mapping(turn) for turn in items(row.get("turns"))]:
            if id in conversations:
                repairs.add(f"a second conversation with id {id}: left out")
            conversations.setdefault(id, turns)
        else:
            repairs.add("a conversation without turns, which only starts others: left out")
    children = _children(conversations, repairs)
    programs: dict[str, Program] = {}
    for id in _parents_first(conversations, children):
        programs[id] = _program(id, conversations[id], children.get(id), programs, repairs, counter)
    if not programs:
        raise TraceRejected("no conversation with turns")
    return _with_prefixes(programs, children, conversations, counter)


def _children(
    conversations: Mapping[str, Sequence[JsonObject]], repairs: Repairs
) -> dict[str, Child]:
    """Return how each started conversation is started."""
    found: dict[str, Child] = {}
    for parent, turns in conversations.items():
        for number, turn in enumerate(turns):
            for child in _started(parent, number, turn):
                if child.id not in conversations or child.id == parent:
                    repairs.add("a conversation that is started but not in the file: left out")
                elif found.setdefault(child.id, child) is not child:
                    repairs.add("a conversation that is started twice: only the first time counts")
    return found


def _started(parent: str, turn: int, fields: JsonObject) -> Iterator[Child]:
    for id in items(fields.get("forks")):
        yield Child(identifier(id), parent, turn, True, None)
    for spawn in items(fields.get("spawns")):
        if isinstance(spawn, str):
            yield Child(identifier(spawn), parent, turn, False, None)
        join_at = mapping(spawn).get("join_at")
        for id in items(mapping(spawn).get("children")):
            yield Child(
                identifier(id), parent, turn, False, join_at if isinstance(join_at, int) else None
            )


def _parents_first(conversations: JsonObject, children: Mapping[str, Child]) -> list[str]:
    """Return the ids, each after its parent's. Raises TraceRejected for a cycle."""
    ordered: dict[str, None] = {}
    for id in conversations:
        path: dict[str, None] = {}
        while id not in ordered:
            if id in path:
                raise TraceRejected(f"conversation {id} is started by itself; remove the cycle")
            path[id] = None
            if (child := children.get(id)) is None:
                break
            id = child.parent
        ordered.update(dict.fromkeys(reversed(path)))
    return list(ordered)


def _program(
    id: str,
    turns: Sequence[JsonObject],
    child: Child | None,
    programs: Mapping[str, Program],
    repairs: Repairs,
    counter: TokenCounter,
) -> Program:
    parent = programs[child.parent].turns if child else ()
    context = parent[child.turn].context_tokens if child and child.inherits else 0
    made: list[Turn] = []
    for number, turn in enumerate(turns):
        prompt = context + _message_tokens(turn, repairs, counter)
        output = _output_tokens(turn, repairs)
        if prompt + output > MAX_TOKENS:
            raise TraceRejected(f"conversation {id}: its context grows above {MAX_TOKENS:,} tokens")
        following = turns[number + 1] if number + 1 < len(turns) else {}
        gap_s = _delay_s(following)
        tools = UNNAMED_TOOL if following else ()
        made.append(Turn(prompt, output, context if number else 0, tools, tool_gap_s=gap_s))
        context = prompt + output
    fork = None
    if child is not None:
        fork = Fork(
            child.parent, child.turn, _delay_s(turns[0]), _join(child, len(parent), repairs)
        )
    return Program(id, tuple(made), fork=fork)


def _join(child: Child, parent_turns: int, repairs: Repairs) -> int | None:
    if child.join_at is None or child.turn < child.join_at < parent_turns:
        return child.join_at
    repairs.add("a join_at that is not a later turn of the parent: it does not wait")
    return None


def _delay_s(turn: JsonObject) -> float:
    return round(min(in_seconds(turn.get("delay"), 1e3) or 0.0, MAX_GAP_S), 3)


def _message_tokens(turn: JsonObject, repairs: Repairs, counter: TokenCounter) -> int:
    """Return the length of a turn's messages and tool definitions."""
    repairs.add(f"a turn without token counts: {counter.basis}")
    messages = items(turn.get("messages"))
    total = sum(counter.length([_content(mapping(message))]) for message in messages)
    if tools := _tools(turn):
        total += counter.length([tools])
    return max(total, 1)


def _content(message: JsonObject) -> str:
    content = message.get("content")
    if isinstance(content, str):
        return text(content)
    return "".join(text(mapping(part).get("text")) for part in items(content))


def _output_tokens(turn: JsonObject, repairs: Repairs) -> int:
    output = tokens(turn.get("max_tokens")) or tokens(mapping(turn.get("extra")).get("max_tokens"))
    if not output:
        repairs.add(f"a turn without max_tokens: set to {DEFAULT_OUTPUT_TOKENS}")
    return output or DEFAULT_OUTPUT_TOKENS


Path = tuple[SharedPrefix, ...]


def _with_prefixes(
    programs: Mapping[str, Program],
    children: Mapping[str, Child],
    conversations: Mapping[str, Sequence[JsonObject]],
    counter: TokenCounter,
) -> list[Program]:
    """Return the programs with the parts that their prompts share: equal tools and system prompts,
    and the context of a conversation with its forks. `programs` has parents first."""
    forked: dict[str, int] = {}
    """The longest context of each conversation that a fork inherits."""
    for child in children.values():
        if child.inherits:
            context = programs[child.parent].turns[child.turn].context_tokens
            forked[child.parent] = max(context, forked.get(child.parent, 0))
    begins: dict[str, Path] = {}
    """The beginning of all prompts of a conversation."""
    result: dict[str, Program] = {}
    for id, program in programs.items():
        start = children.get(id)
        if start is not None and start.inherits:
            inherited = programs[start.parent].turns[start.turn].context_tokens
            begins[id] = (*begins[start.parent], SharedPrefix(f"{start.parent}:context", inherited))
            if len(begins[id]) > MAX_DEPTH:
                raise TraceRejected(f"conversation {id}: forks nested deeper than {MAX_DEPTH}")
        else:
            begins[id] = _system_prompt(conversations[id][0], counter)
        turns = [
            replace(
                turn, prefixes=_path(begins[id], id, min(turn.prompt_tokens, forked.get(id, 0)))
            )
            for turn in program.turns
        ]
        result[id] = replace(program, turns=tuple(turns))
    return list(result.values())


def _path(begin: Path, id: str, end: int) -> Path:
    if end > (begin[-1].tokens if begin else 0):
        return (*begin, SharedPrefix(f"{id}:context", end))
    return begin


def _system_prompt(turn: JsonObject, counter: TokenCounter) -> Path:
    """Return the tools and the system message of a conversation's first turn."""
    messages = [mapping(message) for message in items(turn.get("messages"))]
    if not messages or messages[0].get("role") != "system":
        return ()
    tools, system = _tools(turn), _content(messages[0])
    digest = hashlib.sha256(f"{tools} {system}".encode()).hexdigest()[:12]
    length = counter.length([system]) + (counter.length([tools]) if tools else 0)
    return (SharedPrefix(f"system:{digest}", length),)


def _tools(turn: JsonObject) -> str:
    tools = items(turn.get("tools"))
    return orjson.dumps(tools).decode() if tools else ""
