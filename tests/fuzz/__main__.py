"""python -m tests.fuzz [INPUTS [SEED]]: so many inputs over all targets, on all cores.

What is answered wrongly is told with its number, its bytes are kept in `fuzz-found/`, and the exit
code is 1. `python -m tests.fuzz TARGET NUMBER SEED` runs one input again, with its traceback.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path

from tests.fuzz.loaders import leave_nothing
from tests.fuzz.target import Target, answered, bounded, input_of
from tests.fuzz.targets import TARGETS, chunk

CHUNK_S = 5.0
"""Of work that is handed out at a time, at a guess."""
PER_S = 1_000
FOUND = Path("fuzz-found")
TOLD = 20


def shares(inputs: int) -> dict[str, int]:
    """Inputs by target: at least one each, and all of them together."""
    whole = sum(target.share for target in TARGETS.values())
    counts = {name: max(1, int(inputs * t.share / whole)) for name, t in TARGETS.items()}
    first = next(iter(counts))
    counts[first] += max(0, inputs - sum(counts.values()))
    return counts


def main(inputs: int, seed: int) -> int:
    began_s = time.monotonic()
    taken: Counter[str] = Counter()
    wrong = 0
    counts = shares(inputs)
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        under_way = {}
        for name, count in sorted(counts.items(), key=lambda of: TARGETS[of[0]].share):
            size = max(1, min(int(CHUNK_S * PER_S * min(1, TARGETS[name].share)), count))
            for first in range(0, count, size):
                part = min(size, count - first)
                under_way[pool.submit(chunk, name, seed, first, part)] = name
        for done in as_completed(under_way):
            name, found = under_way[done], done.result()
            taken[name] += found.taken
            for number, data, why in found.wrong:
                wrong += 1
                if wrong <= TOLD:
                    _tell(name, seed, number, data, why)
    for name, count in counts.items():
        print(f"{name:24} {count:9,} inputs, {taken[name] / count:4.0%} taken")
    took_s = time.monotonic() - began_s
    print(
        f"{sum(counts.values()):,} inputs in {took_s:.0f} s, seed {seed}: {wrong} answered wrongly"
    )
    return 1 if wrong else 0


def _tell(name: str, seed: int, number: int, data: bytes, why: str) -> None:
    """At once: a long run may be stopped."""
    FOUND.mkdir(exist_ok=True)
    path = FOUND / f"{name.replace(' ', '-').strip('-')}-{seed}-{number}"
    path.write_bytes(data)
    print(f"{name} {number}: {why}\n    {path}", flush=True)


def again(target: Target, number: int, seed: int) -> int:
    try:
        with bounded():
            print("taken" if answered(target, input_of(target, seed, number)) else "refused")
    finally:
        leave_nothing()
    return 0


if __name__ == "__main__":
    words = sys.argv[1:]
    if len(words) == 3:
        sys.exit(again(TARGETS[words[0]], int(words[1]), int(words[2])))
    sys.exit(main(int((words or ["100000"])[0]), int((words[1:] or ["0"])[0])))
