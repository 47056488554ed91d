"""Generates text with a given number of tokens, for formats that have texts instead of lengths.

In: runs of tokens (`traces.exports.contents`). Out: meaningless English words. A word after a space
is one token for the usual tokenizers (o200k, cl100k, Llama 3, Mistral), and a text has 3.3
characters per token, as our readers assume. Equal runs have equal words, so prompts share the same
parts as in the trace, and beyond them only a few words by chance.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from functools import lru_cache

from traces.exports.contents import Runs, Source

TWO = (
    *("of", "to", "in", "is", "on", "it", "as", "at", "by", "we", "an", "be", "or", "if", "do"),
    *("so", "up", "my", "he", "us", "me", "go", "am", "no"),
)
THREE = (
    *("the", "and", "for", "was", "are", "not", "you", "all", "can", "had", "her", "one", "our"),
    *("out", "has", "new", "now", "two", "may", "who", "any", "use", "how", "way", "day", "get"),
    *("see", "him", "his", "its", "let", "put", "old", "top", "run", "set", "big", "end", "far"),
)
CHUNK = 1024
"""Number of words drawn at once."""


def text(runs: Runs, begin: int, end: int) -> str:
    """Return the words of tokens `begin` to `end` of a prompt."""
    words: list[str] = []
    at = begin
    for source, leave in runs:
        while at < min(leave, end):
            chunk, first = divmod(at, CHUNK)
            until = min(leave, end, (chunk + 1) * CHUNK)
            words += _words(source, chunk)[first : first + until - at]
            at = until
    return "".join(words)


@lru_cache(maxsize=1 << 10)
def _words(source: Source, chunk: int) -> Sequence[str]:
    """Return the words of a source at these tokens of a prompt, which depend on the arguments only.
    Seven of ten words have two letters and a space, the others three, so that the first n words of
    a prompt have 3.3 n characters."""
    seed = hashlib.sha256(repr((source, chunk)).encode()).digest()
    draws = struct.unpack(f"<{CHUNK}H", hashlib.shake_128(seed).digest(2 * CHUNK))
    return [
        " " + (THREE[draw % len(THREE)] if (at + 1) * 33 // 10 - at * 33 // 10 == 4
               else TWO[draw % len(TWO)])
        for at, draw in enumerate(draws, chunk * CHUNK)
    ]  # fmt: skip
