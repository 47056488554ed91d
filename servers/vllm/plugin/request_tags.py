"""A turn inside the engine, and what its client said of it.

In: the request body's `vllm_xargs`, of which all are optional: `program_id`, `turn` (its place in
the program), `is_last` (0 or 1), `tools` (names of the tools that the answer calls, comma
separated; "" for none), `warm_up` (1: nobody's turn, sent before a measurement), `ended` (nobody's
turn, which says that this program is over). Out: a `Turn`. What cannot be read counts as not said.
Standard library only; lengths in tokens, times in seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from servers.policies.base import Request


class Said(NamedTuple):
    program_id: str | None = None
    turn: int | None = None
    is_last: bool | None = None
    tools: tuple[str, ...] | None = None
    """None: nothing said, so that the answer is looked at."""
    warm_up: bool = False
    ended: str | None = None
    """A program that is over."""

    @property
    def nobodys(self) -> bool:
        """The turn is no program's: neither policy nor events know of it."""
        return self.warm_up or self.ended is not None


def read_xargs(xargs: Mapping[str, Any] | None) -> Said:
    xargs = xargs or {}
    tools, ended = xargs.get("tools"), _id(xargs.get("ended"))
    turn, is_last = _whole(xargs.get("turn")), _whole(xargs.get("is_last"))
    return Said(
        _id(xargs.get("program_id")) if ended is None else None,
        turn,
        bool(is_last) if is_last in (0, 1) else None,
        tuple(filter(None, map(str.strip, tools.split(",")))) if isinstance(tools, str) else None,
        _whole(xargs.get("warm_up")) == 1,
        ended,
    )


def _id(value: object) -> str | None:
    return str(value) if isinstance(value, str | int) and value != "" else None


def _whole(value: object) -> int | None:
    try:
        return int(str(value))
    except ValueError:
        return int(value) if isinstance(value, bool) else None


@dataclass(slots=True, eq=False)
class Turn:
    view: Request
    """What the policy sees."""
    said: Said
    pinned_hit: bool = False
    """The program's pin was still held when the turn arrived."""
    admitted_s: float | None = None
    """First admission."""
    hit_tokens: int = 0
    """Of the prompt, cached at first admission."""

    @property
    def number(self) -> int:
        """Its place in the program: as the client counts, else as the engine does."""
        return self.view.index if self.said.turn is None else self.said.turn
