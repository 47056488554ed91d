"""The names that the user may have meant by an unknown one, for messages.

In: the unknown name and the known ones. Out: text such as "fcfs" or "a100-40g or a100-80g", empty
where nothing is close. vLLM loads this file, so it needs the standard library only.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

CUTOFF = 0.7
"""Least similarity of a suggestion (difflib's ratio): one error in four letters. At difflib's own
0.6 `threads` would suggest `agent_reads`."""


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the one or two names whose first words are `name`, or else the most similar one. Case
    does not matter."""
    by_key = {each.casefold(): each for each in known}
    key = name.casefold()
    rest = {each: each[len(key) :] for each in by_key if each.startswith(key)}
    found = [each for each, more in rest.items() if not more[:1].isalnum()]
    if not 1 <= len(found) <= 2:
        found = difflib.get_close_matches(key, by_key, n=1, cutoff=CUTOFF)
    return " or ".join(by_key[each] for each in found)


def did_you_mean(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """Return the end of a message about an unknown name: "; did you mean fcfs?", or where nothing
    is close, `otherwise` after a semicolon, if it is given."""
    close = nearest(name, known)
    remedy = f"did you mean {close}?" if close else otherwise
    return f"; {remedy}" if remedy else ""
