"""Estimates the length of a prompt for a router, before the server has counted its tokens.

In: a prompt in characters or token ids, and the program's last turn. Out: an estimate in tokens,
and the prompt as runs of contents.
"""

from __future__ import annotations

from harness.gateway.conversations import DigestedPrompt
from harness.gateway.programs import GatewayProgram
from servers.routers.base import Runs

CHARS_PER_TOKEN = 4.0
"""Used until the server has counted the tokens of a turn of the program."""


def estimated_tokens(program: GatewayProgram, prompt: DigestedPrompt) -> int:
    """Return the tokens of the last turn that the prompt repeats, as the server counted them, and
    the rest by the characters per token of that turn."""
    if not prompt.ends:
        return 0
    length, before = prompt.ends[-1], program.prompt
    if before is None or not program.prompt_tokens or not program.prompt_pieces:
        return max(1, round(length * _tokens_per_unit(prompt)))
    common, last = before.shared(prompt), before.ends[program.prompt_pieces - 1]
    if common >= len(before) and not program.reasoned:
        repeated, tokens = before.ends[-1], float(program.prompt_tokens + program.output_tokens)
    else:
        pieces = min(common, program.prompt_pieces)
        repeated = before.ends[pieces - 1] if pieces else 0
        tokens = program.prompt_tokens * repeated / last
    return max(1, round(tokens + (length - repeated) * program.prompt_tokens / last))


def runs_of_prompt(prompt: DigestedPrompt) -> Runs:
    """Return a run for each piece. The characters per token are always the same here, because runs
    of different turns are compared."""
    per_unit = _tokens_per_unit(prompt)
    pairs = zip(prompt.digests, prompt.ends, strict=True)
    return tuple((digest, max(1, round(end * per_unit))) for digest, end in pairs)


def _tokens_per_unit(prompt: DigestedPrompt) -> float:
    return 1.0 if prompt.in_tokens else 1 / CHARS_PER_TOKEN
