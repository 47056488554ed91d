"""Add seeds to a sweep until its capacities are known well enough (`--until`).

That is when the intervals of the capacity ratios are narrow (`--until 5%`), or when the schedulers
with the highest capacities are separated (`--until separated`), or more seeds would take too long
(`--until 5min`). A sweep without seeds and loads gets a minute.

In: settings, and a function that runs them. Out: the run folder of the last round. Each round is
decided from the finished cells and the seeds in `sweep.json`, so the same command continues.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from harness.console import print_message
from servers.basics.errors import InvalidInput
from servers.basics.phrasing import listed

if TYPE_CHECKING:
    from harness.load.settings import Execution, SweepSettings
    from reports.run_folder.read import Run
    from reports.statistics.capacities import VariantCapacity

SEPARATED = "separated"
DEFAULT = "1min"
MINUTES = re.compile(r"([1-9][0-9]{0,3})min")


class RunSettings(Protocol):
    def __call__(
        self, settings: SweepSettings, *, continues: bool
    ) -> tuple[Path, Mapping[str, str]]:
        """Run a round; `continues`: not the first one."""


class NotYet(NamedTuple):
    """Why a sweep needs another round."""

    reason: str
    seeds: int
    """How many seeds the next round has, including the last round's."""


Rule = Callable[["Run"], NotYet | None]
"""Takes the run after a round; None if no other round is needed."""


def parse_until(text: str) -> Rule:
    """Return the rule for a share such as `5%`, a time such as `5min`, or `separated`. Raises
    InvalidInput."""
    if match := MINUTES.fullmatch(text):
        return within(int(match[1]))
    return separated if text == SEPARATED else narrow(_share(text))


def _share(text: str) -> float:
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        value = math.nan
    if not 0.001 <= value < 1:
        raise InvalidInput(
            f"--until {text!a}: give a share from 0.1% to 99%, such as 5%, a time such as 5min, or "
            f"{SEPARATED}"
        )
    return value


def with_default(settings: SweepSettings, execution: Execution) -> SweepSettings:
    """Return the settings with the default of `--until`, if they leave the seeds and the loads of
    a search for capacities to us. It is for `sim`, whose cells take about as long everywhere."""
    from harness.load.machines import is_list
    from harness.load.settings import Machine
    from harness.sweep.resolve import AUTO

    loads = settings.load.agents or (settings.jps if settings.jps != AUTO else None)
    given = settings.until or settings.seeds or loads or execution.shard
    if given or settings.machine.engine != Machine().engine or is_list(settings):
        return settings
    return settings if _without_search(settings) else replace(settings, until=DEFAULT)


def _without_search(settings: SweepSettings) -> str:
    """Return the option with which no capacities are searched; empty if they are."""
    from harness.engines.base import engine_kind
    from harness.sweep.resolve import fixed_by

    fixed = fixed_by(settings.load, engine_kind(settings.machine.engine))
    fixed = fixed or ("--no-capacity" if settings.no_capacity else "")
    return fixed or (f"--scenario {scenario}" if (scenario := settings.load.scenario) else "")


def refuse_until(settings: SweepSettings, text: str) -> None:
    """Raise InvalidInput for settings that search no capacities of one machine."""
    from harness.load.machines import is_list

    if fixed := _without_search(settings):
        raise InvalidInput(
            f"--until {text}: needs a search for capacities; remove {fixed} or --until"
        )
    if is_list(settings):
        raise InvalidInput(
            f"--until {text}: works on one machine at a time; give one --hardware, one --model and "
            "at most one --burst"
        )


def run_until(
    settings: SweepSettings, rule: Rule, folder: Path, run: RunSettings
) -> tuple[Path, Mapping[str, str]]:
    """Run rounds with more and more seeds until the rule needs no other."""
    from reports.run_folder.read import load_run
    from reports.statistics.best import MAX_SEEDS

    seeds, continues = first_seeds(settings, folder), False
    while True:
        seeded = replace(settings, seeds=",".join(map(str, seeds)))
        folder, failed = run(seeded, continues=continues)
        continues = True
        not_yet = None if failed else rule(load_run(folder))
        if not_yet is None:
            return folder, failed
        if len(seeds) >= MAX_SEEDS:
            print_message(f"{not_yet.reason} with {len(seeds)} seeds, the most that --until tries")
            return folder, failed
        print_message(
            f"{not_yet.reason}; continuing with {not_yet.seeds} seeds (for the answer with "
            f"{len(seeds)}, stop and add --seeds {','.join(map(str, seeds))} in another folder)"
        )
        seeds += range(max(seeds) + 1, max(seeds) + 1 + not_yet.seeds - len(seeds))


def first_seeds(settings: SweepSettings, folder: Path) -> list[int]:
    """Return the seeds of the first round: the folder's if it has begun already."""
    from harness.load.rates import parse_seeds
    from harness.load.settings import DEFAULT_SEEDS
    from reports.run_folder.read import read_sweep

    given = list(parse_seeds(settings.seeds or DEFAULT_SEEDS))
    if not (folder / "sweep.json").is_file():
        return given
    stored = list(read_sweep(folder).seeds)
    return stored if stored[: len(given)] == given else given


def widest_ratio(run: Run) -> float | None:
    """Return the largest relative half width of the intervals of capacity ratios, infinity with one
    seed; None if no variant has a ratio."""
    ratios = [each.ratio for each in _capacities(run) if each.ratio is not None]
    widths = [r.high / r.value - 1 if r.has_interval else math.inf for r in ratios]
    return max(widths, default=None)


def _capacities(run: Run) -> Sequence[VariantCapacity]:
    from reports.statistics.searched import searched

    return found.found if (found := searched(run)) else ()


def narrow(share: float, width_of: Callable[[Run], float | None] = widest_ratio) -> Rule:
    """Return the rule that half the width of each interval is at most `share` of its ratio."""

    def rule(run: Run) -> NotYet | None:
        width = width_of(run)
        if width is None or width <= share:
            return None
        from reports.statistics.best import seeds_for

        seeds = seeds_for(len(run.sweep.seeds), width, share)
        return NotYet(f"intervals of ratios are ±{width:.0%}", seeds)

    return rule


def separated(run: Run) -> NotYet | None:
    """The rule that each scheduler is separated from the one with the highest capacity, or equal to
    it within 3%. The seeds are doubled, so that the results are looked at a few times only."""
    from reports.statistics.best import MAX_SEEDS, undecided

    left = undecided(_capacities(run))
    if not left:
        return None
    names = listed([each.variant for each in left], at_most=3)
    verb = "is" if len(left) == 1 else "are"
    reason = f"{names} {verb} not yet separated from {left[0].best}, nor shown to be equal"
    return NotYet(reason, min(MAX_SEEDS, 2 * len(run.sweep.seeds)))


def _minutes(run: Run) -> float:
    from reports.statistics.searched import simulated_minutes

    return simulated_minutes(run)


def within(
    minutes: int, minutes_of: Callable[[Run], float] = _minutes, rule: Rule = separated
) -> Rule:
    """Return the rule `separated` for as long as all cells take at most about this time to
    simulate. A round has at least half as many seeds again: the limits of the statistics are for
    five looks at the results."""

    def in_time(run: Run) -> NotYet | None:
        if (not_yet := rule(run)) is None:
            return None
        seeds = len(run.sweep.seeds)
        count = min(not_yet.seeds, int(seeds * minutes / minutes_of(run)))
        return not_yet._replace(seeds=count) if count >= 1.5 * seeds else None

    return in_time
