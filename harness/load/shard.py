"""Selects the share of a sweep's cells that one of several processes runs (`--shard 3/16`)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from servers.basics.errors import InvalidInput

T = TypeVar("T")
MAX_SHARDS = 10_000


@dataclass(frozen=True, slots=True)
class Shard:
    number: int
    """From 1."""
    count: int

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    def share(self, values: Sequence[T]) -> list[T]:
        """Return this shard's values. Each round deals one value to every shard and begins with
        another shard, so that no shard gets the same policy in every round."""
        return [
            value
            for index, value in enumerate(values)
            if (index + index // self.count) % self.count == self.number - 1
        ]


def parse_shard(text: str) -> Shard:
    """Raises InvalidInput."""
    found = re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", text)
    if found is None:
        raise InvalidInput(f"--shard {text!a}: give a number and a count, such as 3/16")
    number, count = int(found[1]), int(found[2])
    if not 1 <= count <= MAX_SHARDS:
        raise InvalidInput(f"--shard {text}: must be of 1 to {MAX_SHARDS:,} shards")
    if not 1 <= number <= count:
        raise InvalidInput(f"--shard {text}: the number must be from 1 to {count}")
    return Shard(number, count)
