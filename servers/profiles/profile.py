"""How long a step of an engine takes and how much KV it holds; virtual time uses these numbers.

`Profile` has whole picoseconds and blocks. `roofline` makes one from published peaks, `measured`
from times of a live engine.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeVar

from servers.errors import UnknownProfile


@dataclass(frozen=True, slots=True)
class Profile:
    """How long a step takes and how much KV fits, for one model on one machine.

    A step that computes T tokens of S turns, in which decodes read C context tokens in all and
    prefill chunks make P query-key pairs, takes, in picoseconds,

        base_ps + max(weights_ps, T * token_ps) + S * sequence_ps + C * context_ps + P * pair_ps
    """

    hardware: str
    model: str
    provenance: Literal["analytic", "measured"]
    kv_blocks: int
    block_tokens: int
    max_model_len: int
    kv_bytes_per_token: int
    base_ps: int
    weights_ps: int
    token_ps: int
    sequence_ps: int
    """Fixed cost of each turn in a step: inputs, sampling, streaming the token."""
    context_ps: int
    pair_ps: int
    request_ps: int
    """Time from a client's send to the engine's queue: HTTP and tokenizer. Not part of a step.
    Without it, a turn whose gap is 0 would arrive before the step that follows the last token of
    its program's previous turn, which no client can do."""
    dram_bytes_per_s: float
    """From host to device, for reloads from DRAM."""
    ssd_bytes_per_s: float

    def step_ps(self, tokens: int, sequences: int, context: int, pairs: int) -> int:
        compute_ps = max(self.weights_ps, tokens * self.token_ps) + sequences * self.sequence_ps
        return self.base_ps + compute_ps + context * self.context_ps + pairs * self.pair_ps


T = TypeVar("T")


def find(kind: str, table: Mapping[str, T], name: str) -> T:
    """The entry of that name. `kind` is the name of the option. Raises UnknownProfile."""
    if name in table:
        return table[name]
    close = difflib.get_close_matches(name.lower(), table, n=1, cutoff=0.4)
    hint = f"; did you mean {close[0]}?" if close else ""
    raise UnknownProfile(f"--{kind} {name}: unknown{hint} (known: {', '.join(table)})")
