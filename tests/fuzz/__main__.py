"""python -m tests.fuzz [INPUTS [SEED]]: run this many inputs over all targets, on all cores.

Inputs that fail are printed with their numbers and saved in `fuzz-found/`, and the exit code is 1.
`python -m tests.fuzz TARGET NUMBER SEED` runs one input again, with its traceback.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path

from tests.fuzz.loaders import remove_folder
from tests.fuzz.target import Target, bounded, check, input_of
from tests.fuzz.targets import TARGETS, chunk

CHUNK_S = 5.0
"""Estimated duration of the work that a process gets at a time."""
INPUTS_PER_S = 1_000
SAVED = Path("fuzz-found")
MAX_PRINTED = 20


def shares(inputs: int) -> dict[str, int]:
    """Distribute the inputs over the targets, with at least one each."""
    total_share = sum(target.share for target in TARGETS.values())
    counts = {name: max(1, int(inputs * t.share / total_share)) for name, t in TARGETS.items()}
    first = next(iter(counts))
    counts[first] += max(0, inputs - sum(counts.values()))
    return counts


def main(inputs: int, seed: int) -> int:
    started_s = time.monotonic()
    accepted: Counter[str] = Counter()
    failures = 0
    counts = shares(inputs)
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        running = {}
        for name, count in sorted(counts.items(), key=lambda of: TARGETS[of[0]].share):
            size = max(1, min(int(CHUNK_S * INPUTS_PER_S * min(1, TARGETS[name].share)), count))
            for first in range(0, count, size):
                part = min(size, count - first)
                running[pool.submit(chunk, name, seed, first, part)] = name
        for done in as_completed(running):
            name, outcome = running[done], done.result()
            accepted[name] += outcome.accepted
            for number, data, error in outcome.failures:
                failures += 1
                if failures <= MAX_PRINTED:
                    _save(name, seed, number, data, error)
    for name, count in counts.items():
        print(f"{name:24} {count:9,} inputs, {accepted[name] / count:4.0%} accepted")
    elapsed_s = time.monotonic() - started_s
    print(f"{sum(counts.values()):,} inputs in {elapsed_s:.0f} s, seed {seed}: {failures} failed")
    return 1 if failures else 0


def _save(name: str, seed: int, number: int, data: bytes, error: str) -> None:
    """Save and print a failure at once, since a long run may be stopped."""
    SAVED.mkdir(exist_ok=True)
    path = SAVED / f"{name.replace(' ', '-').strip('-')}-{seed}-{number}"
    path.write_bytes(data)
    print(f"{name} {number}: {error}\n    {path}", flush=True)


def run_again(target: Target, number: int, seed: int) -> int:
    try:
        with bounded():
            print("accepted" if check(target, input_of(target, seed, number)) else "refused")
    finally:
        remove_folder()
    return 0


if __name__ == "__main__":
    arguments = sys.argv[1:]
    if len(arguments) == 3:
        sys.exit(run_again(TARGETS[arguments[0]], int(arguments[1]), int(arguments[2])))
    sys.exit(main(int((arguments or ["100000"])[0]), int((arguments[1:] or ["0"])[0])))
