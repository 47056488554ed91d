"""The fuzz targets by name, and a function that runs part of one in a separate process."""

from __future__ import annotations

from tests.fuzz import folders, loaders, streams, structured, user_input, worlds
from tests.fuzz.target import Outcome, bounded, run

TARGETS = {
    target.name: target
    for part in (loaders, structured, streams, user_input, worlds, folders)
    for target in part.TARGETS
}


def chunk(name: str, seed: int, first: int, count: int) -> Outcome:
    """Run `count` inputs from number `first` on in this process, which `bounded` may end."""
    try:
        with bounded():
            return run(TARGETS[name], seed, range(first, first + count))
    finally:
        loaders.remove_folder()
