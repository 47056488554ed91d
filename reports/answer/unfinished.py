"""Marks the answer of a run of which some cells have not been run, such as those of other shards.

In: cells without a result. Out: the first sentence, which then says so.
"""

from __future__ import annotations

from collections.abc import Iterable

from reports.run_folder.read import NOT_FINISHED, NOT_RUN


def not_run(missing: Iterable[tuple[str, str]]) -> int:
    """Return how many of the cells without a result were not run to their end. Others failed."""
    return sum(why == NOT_RUN or why.startswith(NOT_FINISHED) for _, why in missing)


def so_far(sentence: str, missing: Iterable[tuple[str, str]], finished: int) -> str:
    """Return the first sentence of an answer, as an interim one if cells were not run. `finished`:
    the number of cells with a result."""
    every_missing = list(missing)
    if not finished or not not_run(every_missing):
        return sentence
    cells = finished + len(every_missing)
    return f"Unfinished: {finished:,} of {cells:,} cells have a result. So far: {sentence}"
