"""LMCache's agent traces: the prompt, the answer and the time of each LLM call, as text.

In: a call per line, `{timestamp, input, output, session_id}`, with the timestamp in Unix
microseconds and the whole prompt as `input`. Out: a program per session. There are no token counts:
they are estimated from the text, and the duration of a call from its tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from servers.basics.errors import TraceRejected
from servers.basics.text import identifier, text
from traces.assumptions import Assumptions
from traces.block_hashes import Hashes, extend_prefixes, kept_tokens, share_blocks
from traces.formats.about import BY_TEXT, CALL_END, COUNT, MEASURED, About
from traces.formats.shared.calls import Call
from traces.formats.shared.rows import clock_s, first_row, rows
from traces.formats.shared.timed_calls import TimedAgent, estimate_ends, programs_of
from traces.lenient import MAX_TOKENS, Repairs
from traces.program import Program, Turn

ABOUT = About(
    name="lmcache-agent",
    holds="texts of prompts and answers",
    tokens="inferred",
    tool_times="inferred",
    repeats=MEASURED,
    accuracy=f"{BY_TEXT}; {CALL_END}",
    without=COUNT,
    title="LMCache agent traces",
    rules=(
        "Also as Parquet. Gaps are **inferred**. A prompt keeps what its text has in common "
        "with the previous one"
    ),
)

BLOCK_TOKENS = 16
Texts = dict[int, tuple[str, str]]
"""The prompt and the answer of each call, by the identity of the call."""


def sniff(first_bytes: bytes) -> bool:
    row = first_row(first_bytes)
    return {"input", "output", "timestamp", "session_id"} <= row.keys() and isinstance(
        row["input"], str
    )


def load_with(data: bytes, name: str, repairs: Repairs, assumptions: Assumptions) -> list[Program]:
    agents: dict[str, TimedAgent] = {}
    texts: Texts = {}
    counter = assumptions.tokens
    for row in rows(data, repairs):
        prompt, answer = text(row.get("input")), text(row.get("output"))
        if not prompt:
            repairs.add("a call without a prompt: left out")
            continue
        if not answer:
            repairs.add("a call without an answer: 1 output token")
        repairs.add(f"a call without token counts: {counter.basis}")
        lengths = [min(counter.length([part]), MAX_TOKENS) for part in (prompt, answer)]
        call = Call(lengths[0], lengths[1], clock_s(row.get("timestamp"), 1e6))
        texts[id(call)] = prompt, answer
        session = identifier(row.get("session_id")) or name
        agents.setdefault(session, TimedAgent(session, [])).calls.append(call)
    if not agents:
        raise TraceRejected("no call with a prompt")
    for agent in agents.values():
        agent.calls.sort(key=lambda call: call.start_s or 0.0)
        estimate_ends(agent.calls, repairs)
    return _shared(*programs_of(agents.values(), repairs, unnamed_tool=True), texts)


def _shared(programs: list[Program], agents: list[TimedAgent], texts: Texts) -> list[Program]:
    """Set the parts that prompts share, from their texts."""
    characters = sum(len(texts[id(call)][0]) for agent in agents for call in agent.calls)
    per_token = characters / sum(turn.prompt_tokens for p in programs for turn in p.turns)
    hashes_of: dict[str, list[Hashes]] = {
        agent.id: [_text_hashes(texts[id(call)][0], per_token) for call in agent.calls]
        for agent in agents
    }
    shared = share_blocks(programs, hashes_of, BLOCK_TOKENS)
    return [
        replace(program, turns=_with_kept(program.turns, [texts[id(c)] for c in agent.calls]))
        for program, agent in zip(shared, agents, strict=True)
    ]


def _with_kept(turns: Sequence[Turn], texts: Sequence[tuple[str, str]]) -> tuple[Turn, ...]:
    """Mark the previous prompt as kept by each turn whose text begins with it, and the previous
    answer only if it follows."""
    kept = list(turns)
    for i, ((prompt, answer), (following, _)) in enumerate(pairwise(texts), 1):
        before, turn = turns[i - 1], turns[i]
        output = before.output_tokens if following.startswith(answer, len(prompt)) else 0
        most = min(turn.kept_tokens, before.prompt_tokens + output)
        if following.startswith(prompt):
            whole = kept_tokens(
                before.prompt_tokens, output, turn.prompt_tokens, None, BLOCK_TOKENS
            )
            most = max(most, whole)
        kept[i] = replace(turn, kept_tokens=most)
    return extend_prefixes(kept)


def _text_hashes(prompt: str, characters_per_token: float) -> list[int]:
    """Return a hash for each block of characters that is as long as a block of tokens."""
    block = max(1.0, BLOCK_TOKENS * characters_per_token)
    ends = [round((i + 1) * block) for i in range(int(len(prompt) / block))]
    return [hash(prompt[a:b]) for a, b in pairwise([0, *ends])]
