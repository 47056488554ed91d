"""AIPerf's `dag_jsonl`: conversations that spawn others.

In: programs. Out: a conversation per line. Each turn has its new messages (filler text of the right
length), `max_tokens`, and the gap as the next turn's delay in milliseconds. A turn that drops so
much history that its prompt is not longer than the previous context begins a new conversation,
spawned by the previous one. Sub-agents are spawned, and joined where their parent waits for them.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, field
from functools import lru_cache

import orjson

from servers.basics.json_object import JsonObject
from traces.exports.contents import PREFIX, Runs, Source, prompts
from traces.exports.timeline import PAUSES, pauses, sub_agents
from traces.lenient import Repairs
from traces.program import Program, Provenance

TWO = (
    *("of", "to", "in", "is", "on", "it", "as", "at", "by", "we", "an", "be", "or", "if", "do"),
    *("so", "up", "my", "he", "us", "me", "go", "am", "no"),
)
THREE = (
    *("the", "and", "for", "was", "are", "not", "you", "all", "can", "had", "her", "one", "our"),
    *("out", "has", "new", "now", "two", "may", "who", "any", "use", "how", "way", "day", "get"),
    *("see", "him", "his", "its", "let", "put", "old", "top", "run", "set", "big", "end", "far"),
)
CHUNK = 1024
"""Number of words drawn at once."""


def text(runs: Runs, begin: int, end: int) -> str:
    """Return the words of tokens `begin` to `end` of a prompt. A word after a space is one token
    for the usual tokenizers (o200k, cl100k, Llama 3, Mistral), and a text has 3.3 characters per
    token, as our readers assume."""
    words: list[str] = []
    at = begin
    for source, leave in runs:
        while at < min(leave, end):
            chunk, first = divmod(at, CHUNK)
            until = min(leave, end, (chunk + 1) * CHUNK)
            words += _words(source, chunk)[first : first + until - at]
            at = until
    return "".join(words)


@lru_cache(maxsize=1 << 10)
def _words(source: Source, chunk: int) -> Sequence[str]:
    """Return the words of a source at these tokens of a prompt, which depend on the arguments only.
    Seven of ten words have two letters and a space, the others three, so that the first n words of
    a prompt have 3.3 n characters."""
    seed = hashlib.sha256(repr((source, chunk)).encode()).digest()
    draws = struct.unpack(f"<{CHUNK}H", hashlib.shake_128(seed).digest(2 * CHUNK))
    return [
        " " + (THREE[draw % len(THREE)] if (at + 1) * 33 // 10 - at * 33 // 10 == 4
               else TWO[draw % len(TWO)])
        for at, draw in enumerate(draws, chunk * CHUNK)
    ]  # fmt: skip


FOLDER = False
NO_TOOLS = "aiperf-dag has no tool names"
NO_STARTS = "aiperf-dag has no starts of programs: AIPerf's load options decide when each begins"
NO_PROVENANCE = "aiperf-dag does not say whether a gap was measured: it is read as unstated"
FILLER = "aiperf-dag has texts instead of lengths: prompts are filler of about as many tokens"
REWRITTEN = (
    "aiperf-dag only appends to a prompt: one that dropped part of its history still repeats it"
)
SHORTENED = "aiperf-dag only appends to a prompt: a shorter one begins a conversation of its own"
NO_HASHES = "aiperf-dag has no hashes of blocks: prompts share what their texts have in common"
LATER_JOIN = (
    "aiperf-dag cannot wait for a sub-agent in another conversation than the one that started it: "
    "it is waited for before the last turn, or not at all"
)
MUST_JOIN = (
    "aiperf-dag waits for each sub-agent that is not started by a last turn: one that nothing "
    "waits for is waited for before the last turn"
)


@dataclass(slots=True)
class GrowingContext:
    """Consecutive turns of a program whose prompts each repeat the context before."""

    id: str
    first: int
    turns: list[JsonObject] = field(default_factory=list)

    @property
    def last(self) -> int:
        return self.first + len(self.turns) - 1


def write(programs: Sequence[Program], losses: Repairs) -> Iterator[bytes]:
    children = sub_agents(programs)
    losses.add(FILLER)
    ids = {program.id for program in programs}
    for program in programs:
        _add_losses(program, losses)
        conversations = _conversations(program, ids, losses)
        _spawn(conversations, children.get(program.id, ()), losses)
        for conversation in conversations:
            row = {"session_id": conversation.id, "turns": conversation.turns}
            yield orjson.dumps(row) + b"\n"


def _conversations(program: Program, ids: Set[str], losses: Repairs) -> list[GrowingContext]:
    """Return the conversations of a program; each spawns the next one. `ids` are taken."""
    delay_s = program.fork.delay_s if program.fork is not None else 0.0
    found: list[GrowingContext] = []
    context = 0
    for number, (turn, runs) in enumerate(zip(program.turns, prompts(program), strict=True)):
        if number and turn.prompt_tokens > context:
            if turn.kept_tokens < context:
                losses.add(REWRITTEN)
            messages = [_message("user", runs, context)]
        else:
            if number:
                losses.add(SHORTENED)
            id = f"{program.id}~{number}" if number else program.id
            while number and id in ids:
                id += "~"
            following = GrowingContext(id, number)
            if found:
                found[-1].turns[-1]["spawns"] = [id]
            found.append(following)
            messages = _opening(runs, program.fork is None and number == 0)
        found[-1].turns.append({
            "messages": messages,
            "max_tokens": turn.output_tokens,
            "extra": {"min_tokens": turn.output_tokens, "ignore_eos": True},
            "delay": round(delay_s * 1e3, 3),
        })  # fmt: skip
        context = turn.context_tokens
        delay_s = turn.tool_gap_s
    return found


def _opening(runs: Runs, may_have_system: bool) -> list[dict[str, str]]:
    """Return the messages of a first prompt. What it shares with other programs is the system
    prompt, which only the first turn of a job may have."""
    shared = max((end for source, end in runs if source[0] == PREFIX), default=0)
    if not may_have_system or not shared:
        return [_message("user", runs, 0)]
    system = {"role": "system", "content": text(runs, 0, shared)}
    return [system, _message("user", runs, shared)] if shared < runs[-1][1] else [system]


def _message(role: str, runs: Runs, begin: int) -> dict[str, str]:
    return {"role": role, "content": text(runs, begin, runs[-1][1])}


def _spawn(
    conversations: Sequence[GrowingContext], children: Sequence[Program], losses: Repairs
) -> None:
    """Add the sub-agents to the turns that start them."""
    for child in children:
        fork = child.fork
        assert fork is not None  # noqa: S101 (for the type checker)
        parent = next(c for c in conversations if fork.after_turn <= c.last)
        turn = parent.turns[fork.after_turn - parent.first]
        spawns = turn.setdefault("spawns", [])
        joined = fork.joined_before_turn
        if joined is not None and joined > parent.last:
            losses.add(LATER_JOIN)
            joined = None
        elif joined is None and fork.after_turn < parent.last:
            losses.add(MUST_JOIN)
        if fork.after_turn == parent.last:
            spawns.append(child.id)
            continue
        join_at = (parent.last if joined is None else joined) - parent.first
        group = next((s for s in spawns if s["join_at"] == join_at), None)
        if group is None:
            group = {"children": [], "join_at": join_at}
            spawns.append(group)
        group["children"].append(child.id)


def _add_losses(program: Program, losses: Repairs) -> None:
    if program.recorded_start_s is not None and program.fork is None:
        losses.add(NO_STARTS)
    losses.add(NO_HASHES, bool(program.prefix_ids))
    losses.add(PAUSES.format("aiperf-dag"), pauses(program))
    losses.add(NO_TOOLS, sum(bool(turn.tools) for turn in program.turns))
    stated = (turn.gap_provenance != Provenance.UNSTATED for turn in program.turns[:-1])
    losses.add(NO_PROVENANCE, sum(stated))
