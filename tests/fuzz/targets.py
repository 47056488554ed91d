"""All that is fuzzed, by name, and how a process does a part of it."""

from __future__ import annotations

from tests.fuzz import folders, loaders, questions, streams, worlds
from tests.fuzz.target import Found, bounded, run

TARGETS = {
    target.name: target
    for part in (loaders, streams, questions, worlds, folders)
    for target in part.TARGETS
}


def chunk(name: str, seed: int, first: int, count: int) -> Found:
    """In a process of its own, which `bounded` may end."""
    try:
        with bounded():
            return run(TARGETS[name], seed, range(first, first + count))
    finally:
        loaders.leave_nothing()
