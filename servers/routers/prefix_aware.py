"""A turn goes where most of its prompt was seen before, unless the load is out of balance.

Source: the cache-aware policy of vllm-router (`--policy cache_aware`), which SGLang's gateway has
too, with the defaults of vllm-router 0.1.17 (`router_args.py`). The router has a shadow of each
replica's prefix cache: the prompts that it sent there. Every 120 s (`eviction_interval_s`) it gives
up the least recently used of more than `max_tree_tokens`. It asks no replica.

1. If the replica with the most turns has more than `balance_turns` more than the one with the
   fewest, and more than `balance_ratio` times as many, the one with the fewest serves the turn.
2. Else, if a replica has seen more than `threshold` of the prompt, the one that has seen most.
3. Else the one with the smallest shadow.

Departure: shadows count tokens, where the source counts characters (`max_tree_size`, 2^25): four
characters to a token.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence

from servers.basics.compiled_core import mypyc_attr
from servers.routers.base import Replica, RoutedTurn, Router, Runs, least_busy, usable

THRESHOLD = 0.3
BALANCE_TURNS = 64
BALANCE_RATIO = 1.5
EVICTION_INTERVAL_S = 120.0
MAX_TREE_TOKENS = 2**25 // 4


class Shadow:
    """The prompts that one replica was sent, in runs."""

    def __init__(self) -> None:
        self.tokens = 0
        self._runs: OrderedDict[Hashable, tuple[int, int]] = OrderedDict()
        """By run: its first and last token; the least recently used run first."""

    def known(self, runs: Runs) -> int:
        """Return how many leading tokens of a prompt it was sent before."""
        known = 0
        for run, end in runs:
            if (found := self._runs.get(run)) is None:
                break
            known = min(found[1], end)
            if known < end:
                break
        return known

    def add(self, runs: Runs) -> None:
        begin = 0
        for run, end in runs:
            _, before = self._runs.pop(run, (begin, begin))
            self._runs[run] = begin, max(before, end)
            self.tokens += max(before, end) - before
            begin = end

    def evict(self, most_tokens: int) -> None:
        """Give up the least recently used runs beyond this number of tokens."""
        while self.tokens > most_tokens and len(self._runs) > 1:
            _, (first, last) = self._runs.popitem(last=False)
            self.tokens -= last - first


@mypyc_attr(allow_interpreted_subclasses=True)
class PrefixAware(Router):
    """A turn goes where most of its prompt was seen before, unless turns pile up there."""

    name = "prefix-aware"
    source = "SGLang's gateway and vllm-router, --policy cache_aware"
    needs_runs = True

    def __init__(
        self,
        replicas: Sequence[Replica],
        *,
        threshold: float = THRESHOLD,
        balance_turns: int = BALANCE_TURNS,
        balance_ratio: float = BALANCE_RATIO,
        eviction_interval_s: float = EVICTION_INTERVAL_S,
        max_tree_tokens: int = MAX_TREE_TOKENS,
    ) -> None:
        super().__init__(replicas)
        if not 0 <= threshold <= 1:
            raise ValueError(f"threshold must be from 0 to 1, not {threshold}")
        if eviction_interval_s <= 0:
            raise ValueError(f"eviction_interval_s must be above 0, not {eviction_interval_s}")
        self._threshold = threshold
        self._balance_turns = balance_turns
        self._balance_ratio = balance_ratio
        self.period_s = eviction_interval_s
        self._max_tree_tokens = max_tree_tokens
        self._shadows = [Shadow() for _ in replicas]

    def route(self, turn: RoutedTurn, now_s: float) -> int | None:
        chosen = self._chosen(turn)
        self._shadows[chosen].add(turn.runs)
        return chosen

    def tick(self, now_s: float) -> Sequence[tuple[RoutedTurn, int]]:
        for shadow in self._shadows:
            shadow.evict(self._max_tree_tokens)
        return ()

    def _chosen(self, turn: RoutedTurn) -> int:
        replicas = usable(self.replicas)
        indices = [replica.index for replica in replicas]
        turns = [replica.turns for replica in self.replicas]
        counted = [turns[index] for index in indices]
        fewest, most = min(counted), max(counted)
        if most - fewest > self._balance_turns and most > self._balance_ratio * fewest:
            return least_busy(replicas)
        known = [shadow.known(turn.runs) for shadow in self._shadows]
        best = max(indices, key=lambda index: (known[index], -turns[index], -index))
        if known[best] > self._threshold * turn.prompt_tokens:
            return best
        return min(indices, key=lambda index: (self._shadows[index].tokens, turns[index], index))
