"""Defines the step times and the KV memory of an engine, from which virtual time is computed.

`Profile` has whole picoseconds and blocks. `roofline` derives one from published peaks, and
`measured` from a live engine's times. `TableProfile` has the larger step formula, for operator
tables.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from operator import itemgetter
from typing import Any, Literal, TypeVar

from servers.basics.errors import UnknownProfile
from servers.basics.nearest import did_you_mean
from servers.profiles.kv_memory import KvMemory

CAPTURED = (1, 2, 4, *range(8, 256, 8), *range(256, 513, 16))
"""The tokens of a step for which vLLM captures CUDA graphs by default."""
Knots = tuple[tuple[int, int], ...]
"""Tokens of a step, rising from 1, and its time in picoseconds."""


@dataclass(frozen=True, slots=True)
class WindowTimes:
    """Step times of the layers that attend only to the last `tokens` tokens, including the computed
    one, or to the tokens of the same chunk. They are added to the times of the layers that attend
    to all tokens."""

    tokens: int
    context_ps: int
    """For each token that a decode reads: its context, or the window if that is less."""
    pair_ps: int
    """For each query-key pair of a prefill chunk within the window."""
    chunked: bool = False
    """Whether a token attends to those before it in its chunk of `tokens` tokens."""

    def read(self, context: int) -> int:
        """Return how many tokens the last token of a context of `context` tokens attends to."""
        if self.chunked:
            return (context - 1) % self.tokens + 1
        return min(context, self.tokens)

    def pairs(self, computed: int, chunk: int) -> int:
        """Return the pairs of `chunk` tokens after `computed` ones: the last token of a context of
        n tokens has n pairs, or the window if that is less."""
        if self.chunked:
            return self._pairs_before(computed + chunk) - self._pairs_before(computed)
        growing = min(max(self.tokens - computed, 0), chunk)
        return growing * computed + growing * (growing + 1) // 2 + (chunk - growing) * self.tokens

    def step_ps(self, chunks: Iterable[tuple[int, int]], contexts: Iterable[int]) -> int:
        """Return the time of a step; see `Profile.batch_ps`."""
        read = sum(map(self.read, contexts))
        pairs = sum(self.pairs(computed, chunk) for chunk, computed in chunks)
        return read * self.context_ps + pairs * self.pair_ps

    def _pairs_before(self, tokens: int) -> int:
        """Return the pairs of the first `tokens` tokens of a sequence, in chunks."""
        chunks, rest = divmod(tokens, self.tokens)
        return chunks * (self.tokens * (self.tokens + 1) // 2) + rest * (rest + 1) // 2


@dataclass(frozen=True, slots=True)
class Profile(KvMemory):
    """Step times and KV memory of one model on one machine.

    The duration in picoseconds of a step that computes T tokens of S turns, whose decodes read C
    context tokens and whose prefill chunks have P query-key pairs, is

        base_ps + max(weights_ps, T * token_ps) + S * sequence_ps + C * context_ps + P * pair_ps

    with T `padded`, and, if layers have a sliding window, `window.step_ps` of the batch.
    """

    hardware: str
    model: str
    provenance: Literal["analytic", "measured", "operator-table"]
    max_model_len: int
    kv_bytes_per_token: int
    base_ps: int
    weights_ps: int
    token_ps: int
    sequence_ps: int
    """Fixed cost of each turn in a step: inputs, sampling, streaming the token, and reading and
    writing its states."""
    context_ps: int
    pair_ps: int
    request_ps: int
    """Time from a client's send to the engine's queue: HTTP and tokenizer. Not part of a step. It
    makes a turn with a gap of 0 arrive after the start of the step that follows the previous
    turn's last token, as with any real client."""
    dram_bytes_per_s: float
    """Bandwidth from host to device, for reloads from DRAM."""
    ssd_bytes_per_s: float
    request_token_ps: int = field(default=0, kw_only=True)
    """Time of the API server for each token of a prompt, before it is in the engine's queue: chat
    template, tokenizer and block hashes. It processes one prompt after the other."""
    load_ps: int = field(default=0, kw_only=True)
    """CPU time of the admission of a turn that loads KV from a tier. The step of its batch takes
    this much longer, and the read starts after it."""
    load_token_ps: int = field(default=0, kw_only=True)
    """The same, for each loaded token."""
    graph_tokens: int = field(default=0, kw_only=True)
    """Most tokens of a step with a CUDA graph, one of `CAPTURED`. vLLM pads smaller steps to the
    next captured size. 0: step times include that."""
    schedules_ahead: bool = field(default=False, kw_only=True)
    """Whether a step is scheduled when the one before it begins, as vLLM's asynchronous scheduling
    does: a turn that arrives while a step is computed joins the step after the next one."""
    window: WindowTimes | None = field(default=None, kw_only=True)
    """None if no layer has a window, or if the other terms include layers with one."""

    def __reduce__(self) -> tuple[Callable[[Mapping[str, Any]], Profile], tuple[dict[str, Any]]]:
        """Pickle the fields, which a process with the compiled core can also read."""
        return profile_of, (asdict(self),)

    def batch_ps(self, chunks: Sequence[tuple[int, int]], contexts: Sequence[int]) -> int:
        """Return the time of a step with prefill chunks, given as (tokens, tokens computed before
        them), and with a decode for each of the contexts, which include its new token."""
        tokens = len(contexts) + sum(chunk for chunk, _ in chunks)
        pairs = sum(chunk * computed + chunk * (chunk + 1) // 2 for chunk, computed in chunks)
        step_ps = self.step_ps(tokens, len(contexts) + len(chunks), sum(contexts), pairs)
        return step_ps + (self.window.step_ps(chunks, contexts) if self.window else 0)

    def step_ps(self, tokens: int, sequences: int, context: int, pairs: int) -> int:
        """Return the time of a step, excluding layers with a window."""
        return self.tokens_ps(tokens) + self.turns_ps(sequences, context, pairs)

    def padded(self, tokens: int) -> int:
        """Return how many tokens vLLM computes in a step of `tokens` tokens."""
        return tokens if tokens > self.graph_tokens else CAPTURED[bisect_left(CAPTURED, tokens)]

    def tokens_ps(self, tokens: int) -> int:
        """Return the part of a step's time that depends only on its number of tokens."""
        return self.base_ps + max(self.weights_ps, self.padded(tokens) * self.token_ps)

    def turns_ps(self, sequences: int, context: int, pairs: int) -> int:
        """Return the other part of a step's time."""
        return sequences * self.sequence_ps + context * self.context_ps + pairs * self.pair_ps

    def increment_ps(self, decodes: int, chunk: int) -> int:
        """Return how much longer each step takes than the previous one while the same turns run:
        each decode reads one more token, and the prefill chunk (0 tokens: none) one more chunk.
        Layers with a window are excluded."""
        return decodes * self.context_ps + chunk * chunk * self.pair_ps


def knots_ps(knots: Knots, token_ps: int, tokens: int) -> int:
    """Return a time that is linear between `knots` and rises by `token_ps` per token after the last
    one."""
    after = bisect_right(knots, tokens, key=itemgetter(0))
    start, start_ps = knots[after - 1]
    if after == len(knots):
        return start_ps + (tokens - start) * token_ps
    end, end_ps = knots[after]
    return start_ps + (tokens - start) * (end_ps - start_ps) // (end - start)


@dataclass(frozen=True, slots=True)
class TableProfile(Profile):
    """A profile whose steps follow operator tables more closely than `Profile` does.

    A step that computes T tokens of S turns, in which D decodes read C context tokens in all and
    prefill chunks make P query-key pairs, takes, in picoseconds,

        base_ps + W(T) + S * sequence_ps + C * context_ps + P * pair_ps
            + [D > 0] * (decode_ps + C // D * mean_context_ps) + [P > 0] * prefill_ps

    W is linear between `knots` and rises by `token_ps` per token after the last one; it may fall
    between knots of a few tokens. D is S, less
    one if there is a chunk: exact for a single chunk, and strides have at most one. All terms but
    C and P are constant in a stride, and C // D rises by one per step, so that a stride takes
    exactly as long as its steps.
    """

    knots: Knots
    """(T, W(T))."""
    decode_ps: int
    prefill_ps: int
    mean_context_ps: int

    def tokens_ps(self, tokens: int) -> int:
        return self.base_ps + knots_ps(self.knots, self.token_ps, self.padded(tokens))

    def turns_ps(self, sequences: int, context: int, pairs: int) -> int:
        total_ps = sequences * self.sequence_ps
        if not context:
            return total_ps + self.prefill_ps + pairs * self.pair_ps
        total_ps += self.decode_ps + context * self.context_ps
        if pairs:
            mean = context // (sequences - 1)
            return total_ps + mean * self.mean_context_ps + self.prefill_ps + pairs * self.pair_ps
        return total_ps + context // sequences * self.mean_context_ps

    def increment_ps(self, decodes: int, chunk: int) -> int:
        constant = decodes * self.context_ps + chunk * chunk * self.pair_ps
        return constant + (self.mean_context_ps if decodes else 0)


def profile_of(fields: Mapping[str, Any]) -> Profile:
    """The profile with these fields, which may come from JSON."""
    for name in ("kv_groups", "block_lengths"):
        if name in fields:
            fields = {**fields, name: tuple(fields[name])}
    if fields.get("window") is not None:
        fields = {**fields, "window": WindowTimes(**fields["window"])}
    if "knots" not in fields:
        return Profile(**fields)
    knots = tuple((tokens, ps) for tokens, ps in fields["knots"])
    return TableProfile(**{**fields, "knots": knots})


T = TypeVar("T")


def find(kind: str, table: Mapping[str, T], name: str) -> T:
    """Return the entry of that name. `kind` is the name of the option. Raises UnknownProfile."""
    if name in table:
        return table[name]
    hint = did_you_mean(name, table)
    raise UnknownProfile(f"--{kind} {name}: unknown{hint} (known: {', '.join(table)})")
