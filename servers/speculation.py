"""Speculative decoding as a setting: how many tokens are drafted, and how many are accepted.

In: the text of --speculate. Out: what the schedulers of both virtual times need. A step verifies
the drafts of a turn, so that it generates one token more than it accepts. How many it accepts is
drawn by program, turn and position in the answer, and so is the same under every policy.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from typing import Final

from servers.basics.errors import InvalidInput
from servers.basics.nearest import did_you_mean

DRAFT_LAYERS: Final = {"ngram": False, "eagle": True, "eagle3": True, "mtp": True}
"""Methods of vLLM, and whether they draft with layers that have KV. vLLM then allocates slots for
the next drafts too, and computes the last block of a prefix hit again."""
NOT_MODELLED: Final = {
    "draft_model": "it has the time and the KV of a second model; use eagle3 or mtp",
    "suffix": "its number of drafts depends on the text, which traces lack; use ngram",
    "medusa": "its heads have no KV and their time was not compared; use eagle3",
    "mlp_speculator": "its time was not compared; use eagle3",
    "dflash": "it drafts in parallel with slots of its own; use eagle3",
    "dspark": "it drafts in parallel with slots of its own; use eagle3",
}
MOST_DRAFTS: Final = 16
_EXAMPLE: Final = "such as mtp:3,accept=0.8 or eagle3:3,accept=0.9,0.7,0.5"
_BITS: Final = 53
_MASK: Final = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Speculation:
    method: str
    tokens: int
    """Number of drafts of a turn in a step (vLLM's `num_speculative_tokens`)."""
    accept: tuple[float, ...]
    """Share of steps that accept the first draft, the first two, and so on: vLLM's acceptance rates
    per position."""
    draft_share: float | None
    """Time of one pass of the draft layers, as a share of the model's; None: from the model."""

    @property
    def lookahead(self) -> int:
        """Number of slots beyond a step's tokens, for the KV of the next drafts."""
        return self.tokens if DRAFT_LAYERS[self.method] else 0

    @property
    def drops_block(self) -> bool:
        """Whether the last block of a prefix hit is computed again."""
        return DRAFT_LAYERS[self.method]

    def accepted(self, key: int, position: int) -> int:
        """Return how many drafts are accepted in the step that begins after `position` tokens of
        the answer of the turn with this key."""
        bits = (key + position * 0x9E3779B97F4A7C15) & _MASK  # SplitMix64
        bits = ((bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        bits = ((bits ^ (bits >> 27)) * 0x94D049BB133111EB) & _MASK
        drawn = ((bits ^ (bits >> 31)) >> (64 - _BITS)) / (1 << _BITS)
        return sum([drawn < share for share in self.accept])

    def __str__(self) -> str:
        shares = ",".join(f"{share:.6g}" for share in self.accept)
        draft = "" if self.draft_share is None else f",draft={self.draft_share:.6g}"
        return f"{self.method}:{self.tokens},accept={shares}{draft}"


def turn_key(program_id: str, turn: int) -> int:
    """Return the key of a turn for `Speculation.accepted`."""
    return int.from_bytes(blake2b(f"{turn} {program_id}".encode(), digest_size=8).digest(), "big")


@cache
def parse_speculation(text: str) -> Speculation:
    """Read METHOD:TOKENS,accept=SHARES[,draft=SHARE]. Raises InvalidInput."""
    try:
        return _parse(text.replace(" ", ""))
    except ValueError as wrong:
        raise InvalidInput(f"--speculate {text}: {wrong}") from None


def _parse(text: str) -> Speculation:
    head, *rest = text.split(",")
    method, _, count = head.partition(":")
    if method in NOT_MODELLED:
        raise ValueError(f"{method} is not modelled: {NOT_MODELLED[method]}")
    if method not in DRAFT_LAYERS:
        hint = did_you_mean(method, DRAFT_LAYERS)
        raise ValueError(f"unknown method {method!r}{hint} (known: {', '.join(DRAFT_LAYERS)})")
    if not count.isdecimal() or not 1 <= int(count) <= MOST_DRAFTS:
        raise ValueError(f"the number of drafts must be 1 to {MOST_DRAFTS}, {_EXAMPLE}")
    given: dict[str, list[float]] = {"accept": [], "draft": []}
    name = ""
    for item in rest:
        before, equals, value = item.rpartition("=")
        name = before if equals else name
        if name not in given:
            raise ValueError(f"{item!r} is neither accept=SHARES nor draft=SHARE, {_EXAMPLE}")
        given[name].append(_share(name, value))
    if len(given["draft"]) > 1 or (given["draft"] and not DRAFT_LAYERS[method]):
        raise ValueError("draft is one share of the model's time, and ngram takes none")
    accept = _accept(given["accept"], int(count))
    return Speculation(method, int(count), accept, next(iter(given["draft"]), None))


def _share(name: str, text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise ValueError(f"{name}={text}: must be a share from 0 to 1, {_EXAMPLE}")
    return share


def _accept(shares: list[float], tokens: int) -> tuple[float, ...]:
    """One share is the share of drafts that are accepted if the drafts before them were."""
    if not shares:
        raise ValueError(f"accept is missing, the share of drafts that are accepted, {_EXAMPLE}")
    if len(shares) == 1:
        return tuple(shares[0] ** position for position in range(1, tokens + 1))
    if len(shares) != tokens:
        raise ValueError(
            f"accept has {len(shares)} shares for {tokens} drafts; give one for each, or one for "
            "all"
        )
    if sorted(shares, reverse=True) != shares:
        raise ValueError(
            "accept must not rise from one draft to the next, since a draft is accepted only "
            "after those before it"
        )
    return tuple(shares)
