"""Rules for the turn to preempt, which every policy takes as its argument `victim`.

`lcf` is "least computed first" of vLLM #53723 and RFC #54644: the running turn whose preemption
wastes least. Departure: a turn whose prompt is partly computed counts with its whole prompt.
`last` is stock vLLM's rule, and `program` is `turnstile`'s and Continuum's: the turn of the
program that arrived last. The score of vLLM #56897 needs the largest number of output tokens, which
agents do not set to the length of their answers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Literal

from servers.policies.base import Policy, Request
from servers.policies.program_order import of_latest_program

Victim = Literal["last", "lcf", "program"]


def last(running: Sequence[Request]) -> Request:
    return running[-1]


def lcf(running: Sequence[Request]) -> Request:
    return min(reversed(running), key=lambda r: r.prompt_tokens + r.output_tokens)


RULES: Final[Mapping[str, Callable[[Sequence[Request]], Request]]] = {
    "last": last,
    "lcf": lcf,
    "program": of_latest_program,
}


def with_victim(policy: type[Policy], rule: str) -> type[Policy]:
    """Return the policy with another rule for the turn to preempt."""
    choose = RULES[rule]

    def victim(_self: Policy, running: Sequence[Request], _now_s: float) -> Request:
        return choose(running)

    return type(policy.__name__, (policy,), {"victim": victim, "__module__": __name__})
