"""Add seeds to a sweep until the intervals of its capacity ratios are narrow (`--until 5%`).

In: settings, and a function that runs them. Out: the run folder of the last round. Each round is
decided from the finished cells and the seeds in `sweep.json`, so the same command continues.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from harness.console import print_message
from reports.statistics.seeds_needed import MAX_SEEDS, seeds_for
from servers.basics.errors import InvalidInput

if TYPE_CHECKING:
    from harness.load.settings import SweepSettings

Run = Callable[["SweepSettings"], tuple[Path, Mapping[str, str]]]


def parse_until(text: str) -> float:
    """Return a share: 0.05 for `5%`. Raises InvalidInput."""
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        value = math.nan
    if not 0.001 <= value < 1:
        raise InvalidInput(f"--until {text!a}: give a share from 0.1% to 99%, such as 5%")
    return value


def refuse_until(settings: SweepSettings, text: str) -> None:
    """Raise InvalidInput for settings that search no capacities of one machine."""
    from harness.engines.base import engine_kind
    from harness.load.machines import is_list
    from harness.sweep.resolve import fixed_by

    fixed = fixed_by(settings.load, engine_kind(settings.machine.engine))
    fixed = fixed or ("--no-capacity" if settings.no_capacity else "")
    if fixed:
        raise InvalidInput(f"--until {text}: needs a search for capacities; remove {fixed}")
    if is_list(settings.machine):
        raise InvalidInput(
            f"--until {text}: works on one machine at a time; give one --hardware and one --model"
        )


def run_until(
    settings: SweepSettings,
    share: float,
    folder: Path,
    run: Run,
    width_of: Callable[[Path], float | None],
) -> tuple[Path, Mapping[str, str]]:
    """Run rounds with more and more seeds until `width_of` is at most `share`. It returns the
    largest relative half width of an interval in a folder, None if there is none to narrow."""
    seeds = first_seeds(settings, folder)
    while True:
        folder, failed = run(replace(settings, seeds=_text(seeds)))
        width = width_of(folder)
        if failed or width is None or width <= share:
            return folder, failed
        if len(seeds) >= MAX_SEEDS:
            print_message(
                f"intervals of ratios are ±{width:.0%} with {len(seeds)} seeds, the most that "
                f"--until tries"
            )
            return folder, failed
        count = seeds_for(len(seeds), width, share)
        print_message(f"intervals of ratios are ±{width:.0%}; continuing with {count} seeds")
        seeds = [*seeds, *_more(seeds, count - len(seeds))]


def first_seeds(settings: SweepSettings, folder: Path) -> list[int]:
    """Return the seeds of the first round: those of the folder if it has begun already."""
    from harness.load.rates import parse_seeds
    from harness.sweep.resolve import DEFAULT_SEEDS
    from reports.run_folder.read import read_sweep

    given = list(parse_seeds(settings.seeds or DEFAULT_SEEDS))
    if not (folder / "sweep.json").is_file():
        return given
    stored = list(read_sweep(folder).seeds)
    return stored if stored[: len(given)] == given else given


def widest_ratio(folder: Path) -> float | None:
    """Return the largest relative half width of the intervals of capacity ratios, infinity with one
    seed; None if no variant has a ratio."""
    from reports.run_folder.read import load_run
    from reports.statistics.searched import searched

    found = searched(load_run(folder))
    ratios = [each.ratio for each in found.found if each.ratio is not None] if found else []
    widths = [r.high / r.value - 1 if r.has_interval else math.inf for r in ratios]
    return max(widths, default=None)


def _more(seeds: Sequence[int], count: int) -> list[int]:
    return [max(seeds) + 1 + k for k in range(count)]


def _text(seeds: Sequence[int]) -> str:
    return ",".join(map(str, seeds))
