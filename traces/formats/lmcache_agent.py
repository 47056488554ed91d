"""LMCache's agent traces: the text of each LLM call's prompt and answer, and when it was sent.

In: a call per line, `{timestamp, input, output, session_id}`, with the timestamp in Unix
microseconds and the whole prompt as `input`. Out: a program per session. Token counts are inferred
from the number of characters, and the duration of a call from its tokens.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from servers.errors import TraceRejected
from traces.block_hashes import Hashes, share_blocks
from traces.formats.rows import clock_s, first_row, rows
from traces.formats.timed_calls import Agent, TimedCall, estimate_ends, programs_of
from traces.lenient import MAX_TOKENS, Repairs, identifier, text
from traces.program import Program
from traces.token_counts import CHARACTERS_PER_TOKEN

BLOCK_TOKENS = 16
BLOCK_CHARACTERS = BLOCK_TOKENS * CHARACTERS_PER_TOKEN


def sniff(first_bytes: bytes) -> bool:
    row = first_row(first_bytes)
    return {"input", "output", "timestamp", "session_id"} <= row.keys() and isinstance(
        row["input"], str
    )


def load(data: bytes, name: str, repairs: Repairs) -> list[Program]:
    agents: dict[str, Agent] = {}
    texts: dict[int, tuple[str, str]] = {}
    """The prompt and the answer of each call, by the identity of the call."""
    for row in rows(data, repairs):
        prompt, answer = text(row.get("input")), text(row.get("output"))
        if not prompt:
            repairs.add("a call without a prompt: left out")
            continue
        if not answer:
            repairs.add("a call without an answer: 1 output token")
        repairs.add(
            f"a call without token counts: inferred from its {CHARACTERS_PER_TOKEN} characters per "
            "token"
        )
        call = TimedCall(count(prompt), count(answer), clock_s(row.get("timestamp"), 1e6))
        texts[id(call)] = prompt, answer
        session = identifier(row.get("session_id")) or name
        agents.setdefault(session, Agent(session, [])).calls.append(call)
    if not agents:
        raise TraceRejected("no call with a prompt")
    for agent in agents.values():
        agent.calls.sort(key=lambda call: call.start_s or 0.0)
        estimate_ends(agent.calls, repairs)
    return _shared(*programs_of(agents.values(), repairs, unnamed_tool=True), texts)


def count(content: str) -> int:
    """Return an estimate of the number of tokens."""
    return min(max(1, round(len(content) / CHARACTERS_PER_TOKEN)), MAX_TOKENS)


def _shared(
    programs: list[Program], agents: list[Agent], texts: dict[int, tuple[str, str]]
) -> list[Program]:
    """Set what prompts share, from their texts. A prompt keeps the previous answer only if the
    answer follows the previous prompt in it."""
    hashes_of: dict[str, list[Hashes]] = {
        agent.id: [text_hashes(texts[id(call)][0]) for call in agent.calls] for agent in agents
    }
    result = []
    for program, agent in zip(share_blocks(programs, hashes_of, BLOCK_TOKENS), agents, strict=True):
        turns = list(program.turns)
        for i, (before, call) in enumerate(pairwise(agent.calls), 1):
            prompt, answer = texts[id(before)]
            if not texts[id(call)][0].startswith(answer, len(prompt)):
                kept = min(turns[i].kept_tokens, turns[i - 1].prompt_tokens)
                turns[i] = replace(turns[i], kept_tokens=kept)
        result.append(replace(program, turns=tuple(turns)))
    return result


def text_hashes(prompt: str) -> list[int]:
    """Return a hash for each block of characters that is as long as a block of tokens."""
    ends = [round((i + 1) * BLOCK_CHARACTERS) for i in range(int(len(prompt) / BLOCK_CHARACTERS))]
    return [hash(prompt[a:b]) for a, b in pairwise([0, *ends])]
