"""A consistent hash: a key goes to the replica of the next point on a ring of hashes.

Source: Karger et al., Consistent Hashing and Random Trees (STOC 1997); `consistent_hash.rs` of
vllm-project/router, whose points are hashes of server addresses by mcrouter's function.
There are no addresses here, so the points are BLAKE2b hashes of the replicas' numbers.
"""

from __future__ import annotations

from bisect import bisect_left
from hashlib import blake2b

POINTS = 160
"""Points on the ring for each replica."""


class HashRing:
    def __init__(self, replicas: int) -> None:
        self._points = sorted(
            (_hash(f"{index}:{point}"), index)
            for index in range(replicas)
            for point in range(POINTS)
        )

    def replica(self, key: str) -> int:
        place = bisect_left(self._points, (_hash(key), -1))
        return self._points[place % len(self._points)][1]


def _hash(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=7).digest(), "big")
