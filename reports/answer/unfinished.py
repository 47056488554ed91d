"""Marks the answer of an unfinished run, such as one whose other shards have not run.

In: cells without a result. Out: the first sentence, marked as interim.
"""

from __future__ import annotations

from collections.abc import Iterable

from reports.run_folder.read import NOT_FINISHED, NOT_RUN


def not_run(missing: Iterable[tuple[str, str]]) -> int:
    """Return how many of the cells without a result have not finished. The others failed."""
    return sum(why == NOT_RUN or why.startswith(NOT_FINISHED) for _, why in missing)


def so_far(sentence: str, missing: Iterable[tuple[str, str]], finished: int) -> str:
    """Return the first sentence of an answer, marked as interim if cells have not run. `finished`
    is the number of cells with a result."""
    every_missing = list(missing)
    if not finished or not not_run(every_missing):
        return sentence
    cells = finished + len(every_missing)
    return f"Unfinished: {finished:,} of {cells:,} cells have a result. So far: {sentence}"
