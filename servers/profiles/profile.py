"""The step times and the KV capacity of an engine, which virtual time is computed from.

`Profile` has whole picoseconds and blocks. `roofline` derives one from published peaks, `measured`
from times of a live engine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeVar

from servers.errors import UnknownProfile
from servers.nearest import nearest


@dataclass(frozen=True, slots=True)
class Profile:
    """Step times and KV capacity of one model on one machine.

    The duration in picoseconds of a step that computes T tokens of S turns, whose decodes read C
    context tokens and whose prefill chunks have P query-key pairs, is

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
    """Time from a client's send to the engine's queue: HTTP and tokenizer. Not part of a step. It
    makes a turn with a gap of 0 arrive after the start of the step that follows the previous
    turn's last token, as with any real client."""
    dram_bytes_per_s: float
    """Bandwidth from host to device, for reloads from DRAM."""
    ssd_bytes_per_s: float

    def step_ps(self, tokens: int, sequences: int, context: int, pairs: int) -> int:
        compute_ps = max(self.weights_ps, tokens * self.token_ps) + sequences * self.sequence_ps
        return self.base_ps + compute_ps + context * self.context_ps + pairs * self.pair_ps


T = TypeVar("T")


def find(kind: str, table: Mapping[str, T], name: str) -> T:
    """Return the entry of that name. `kind` is the name of the option. Raises UnknownProfile."""
    if name in table:
        return table[name]
    close = nearest(name, table)
    hint = f"; did you mean {close}?" if close else ""
    raise UnknownProfile(f"--{kind} {name}: unknown{hint} (known: {', '.join(table)})")
