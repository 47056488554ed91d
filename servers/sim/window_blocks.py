"""Hashed blocks of a model with sliding windows (`servers.sim.windows`)."""

from __future__ import annotations


class Block:
    """A hashed block."""

    __slots__ = ("copies", "references")

    def __init__(self, copies: list[Block]) -> None:
        self.references = 1
        self.copies = copies
        """The blocks of the same group and content, including this one."""
        copies.append(self)


class Content:
    """The blocks with the KV of one block of tokens and all tokens before it."""

    __slots__ = ("full", "windows")

    def __init__(self) -> None:
        self.full: list[Block] = []
        self.windows: tuple[list[Block], ...] = ()
        """By window group; empty if none was ever hashed."""
