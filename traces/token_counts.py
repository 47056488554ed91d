"""Counts the tokens of text, for files that record text without usage, and for servers without it.

In: text. Out: tokens, by a tokenizer that the user names, or else by the number of characters per
token. `read_traces` creates one counter for a set of files: it fits the characters per token to the
files of the set that have text and usage, or else uses that of 80 mini-swe-agent trajectories. The
answers of servers are counted only by a tokenizer.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from statistics import median

from servers.basics.errors import InvalidInput, TraceRejected, Unavailable
from servers.basics.text import one_line
from traces.lenient import read_bytes

CHARACTERS_PER_TOKEN = 3.3
"""Median of 80 trajectories of mini-swe-agent with gemini-3-pro (3,183 calls): shell commands,
their outputs, and answers."""
DEFAULT_BASIS = "median error 6% of prompts and 11% of answers in 80 trajectories of mini-swe-agent"
MIN_OBSERVED = 20
"""Minimum number of texts with usage to which characters per token are fitted."""
PLAUSIBLE = (1.0, 10.0)
"""Outside this range of characters per token, a text and its usage do not belong together, as with
an abbreviated prompt."""
MAX_REMEMBERED = 1024
"""Number of texts that are not counted again. A prompt repeats the texts of the prompt before."""


@dataclass(slots=True)
class TokenCounter:
    """Counts the tokens of text in the same way for all files."""

    count: Callable[[str], float]
    basis: str
    """A description of the method, for messages."""
    can_be_fitted: bool = False
    estimated: int = 0
    """Number of lengths that were estimated."""
    sha256: str = ""
    """Hash of the tokenizer's file; "" if characters are counted."""
    observed: list[tuple[int, int]] = field(default_factory=list)
    """(characters, recorded tokens) of texts with usage."""

    def length(self, texts: Sequence[str]) -> int:
        """Return the number of tokens in consecutive texts, at least 1."""
        self.estimated += 1
        return max(1, round(sum(map(self.count, texts))))

    def observe(self, characters: int, tokens: int) -> None:
        """Record a text with usage."""
        if tokens and PLAUSIBLE[0] <= characters / tokens <= PLAUSIBLE[1]:
            self.observed.append((characters, tokens))

    def fitted(self) -> TokenCounter | None:
        """Return a counter fitted to the observed texts. None if no length was estimated, there are
        too few texts, or a tokenizer is used."""
        if not (self.can_be_fitted and self.estimated and len(self.observed) >= MIN_OBSERVED):
            return None
        ratio = median(characters / tokens for characters, tokens in self.observed)
        error = median(abs(characters / ratio - n) / n for characters, n in self.observed)
        basis = f"fitted to {len(self.observed):,} texts with usage, median error {error:.0%}"
        return by_characters(ratio, basis)


def by_characters(ratio: float, basis: str, can_be_fitted: bool = False) -> TokenCounter:
    what = f"1 token per {ratio:.2f} characters, inferred; {basis}"
    return TokenCounter(lambda text: len(text) / ratio, what, can_be_fitted)


def default_counter() -> TokenCounter:
    return by_characters(CHARACTERS_PER_TOKEN, DEFAULT_BASIS, can_be_fitted=True)


def by_tokenizer(path: Path) -> TokenCounter:
    """Return a counter that uses a file of the `tokenizers` library, such as tokenizer.json."""
    option = f"--tokenizer {one_line(str(path))}"
    try:
        from tokenizers import Tokenizer
    except ModuleNotFoundError:
        raise Unavailable(
            f"{option}: needs tokenizers; pip install 'turnstile-bench[tokenizers]'"
        ) from None
    try:
        data = read_bytes(path)
        tokenizer = Tokenizer.from_buffer(data)
    except TraceRejected as error:
        raise InvalidInput(f"{option}: {error}; give a model's tokenizer.json") from None
    except Exception as error:  # the library raises plain Exception
        raise InvalidInput(
            f"{option}: not a tokenizers file ({one_line(str(error))}); "
            "give a model's tokenizer.json"
        ) from None

    @lru_cache(MAX_REMEMBERED)
    def count(text: str) -> float:
        # A batch, because other threads can run while it is encoded.
        return len(tokenizer.encode_batch_fast([text], add_special_tokens=False)[0])

    basis = f"counted by the tokenizer {one_line(path.name)}"
    return TokenCounter(count, basis, sha256=hashlib.sha256(data).hexdigest())


def counter_of(tokenizer: Path | None) -> TokenCounter:
    return default_counter() if tokenizer is None else by_tokenizer(tokenizer)
