"""Runs the search for capacities in a run folder: which cells run next, from those that are done.

In: a plan with an SLO, and a folder. Out: cells, as workers become free. `reports.capacity.search`
decides; nothing is kept but the finished cells, so the same command continues a search.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from statistics import geometric_mean

from harness.cells.folder import remove_lines
from harness.load.settings import Keep
from harness.sweep.cell import PlannedCell, Work, idle_times
from harness.sweep.finished import is_finished, unfinished
from harness.sweep.plan import Cell, SweepPlan
from reports.capacity.estimate import Kind, Outcome
from reports.capacity.search import Chain, Search, SearchPlace, idle_of, outcome_of
from reports.capacity.slo import Limit, Slo
from reports.loads import ladder_of
from reports.run_folder.read import read_cell, read_done
from servers.basics.errors import InvalidInput, InvalidRunFolder
from servers.basics.phrasing import listed, seconds, times
from servers.records.done import Times

COLUMNS = 80
SO_FAR = "so far in {}: {}"


class CapacitySearch:
    """The cells of one plan beyond the loads that the user gave."""

    def __init__(self, name: str, work: Work, slo: Slo, reuse: bool) -> None:
        """`name`: of the plan, whose `work` gets the times on an idle machine of all seeds."""
        self._name, self._work, self._slo, self._reuse = name, work, slo, reuse
        self._plan, self._folder = plan, folder = work.plan, work.folder
        given = tuple(amount for amount in plan.amounts if amount is not None)
        self._ladder = ladder_of(plan.arrivals_text)
        names = tuple(variant.name for variant in plan.variants)
        self._search = Search(
            names, plan.baseline, plan.seeds, given, self._ladder, plan.least_load
        )
        work.idle |= idle_machines(plan, folder, work.idle)
        self._idle = {seed: idle_of(work.idle[seed], slo) for seed in plan.seeds}
        self._known: dict[Chain, dict[float, Outcome]] = {}
        self._pending = {self._place(cell): cell for cell in plan.cells()}
        """Cells that were asked for and have not ended."""
        self._sought: set[SearchPlace] = set()
        """Cells that were looked for among finished ones."""
        self._ran: set[SearchPlace] = set()
        """Cells that this search ran and whose turns the report may draw."""
        self._failed: set[SearchPlace] = set()
        self.cells = self.found_done = 0
        """Cells beyond the loads that the user gave, and how many were finished before."""

    def next_cells(self, failed: Collection[str], most: int) -> list[PlannedCell]:
        """Return at most `most` cells that can run now, so that the searches of the first variants
        end first. `failed` has the names of failed cells (`PlannedCell.name`)."""
        self._settle(failed)
        given = {self._place(cell) for cell in self._plan.cells()}
        while not given & self._pending.keys():
            places = self._search.next_cells(self._known, self._idle, self._failed)
            cells = {place: self._cell(place) for place in places if place not in self._pending}
            unsought = [cell for place, cell in cells.items() if place not in self._sought]
            self._sought |= cells.keys()
            left, _ = unfinished(self._work, unsought, self._reuse)
            found = {self._place(cell): cell for cell in unsought if cell not in left}
            if not found:
                todo = dict(islice(cells.items(), most))
                self._add(todo)
                self._ran |= todo.keys()
                return [PlannedCell(self._name, cell) for cell in todo.values()]
            self._add(found)
            self.found_done += len(found)
            self._settle(failed)
        return []

    def _add(self, cells: Mapping[SearchPlace, Cell]) -> None:
        self._pending |= cells
        self.cells += len(cells)

    def _settle(self, failed: Collection[str] = ()) -> None:
        for place, cell in list(self._pending.items()):
            if PlannedCell(self._name, cell).name in failed:
                self._failed.add(place)
            elif is_finished(self._folder / cell.name, needs_turns=self._work.keep is Keep.TURNS):
                done = read_done(self._folder / cell.name)
                outcomes = self._known.setdefault(Chain(place.variant, place.seed), {})
                outcomes[place.load] = outcome_of(place.load, done, self._slo)
            else:
                continue
            del self._pending[place]
        if self._work.keep is Keep.SHOWN:
            self._remove_turns()

    def _remove_turns(self) -> None:
        """Remove the turns of finished cells that the report does not draw, once its rates are
        known, which depend on the baseline's capacity with all seeds."""
        baseline = (Chain(self._search.baseline, seed) for seed in self._search.seeds)
        if not all(self._has_ended(chain) for chain in baseline):
            return
        rates = self._search.common_rates(self._known, self._idle)
        shown = {*rates, *self._search.higher_rates(self._known, self._idle)}
        for place in [*self._ran] if rates else ():
            if place not in self._pending:
                self._ran.discard(place)
                if place.load not in shown and place not in self._failed:
                    remove_lines(self._folder / self._cell(place).name)

    def found(self) -> tuple[int, int]:
        """Return how many of the capacities have been found, and their number: one for each variant
        and seed."""
        self._settle()
        ends = map(self._has_ended, self._known)
        return sum(ends), len(self._plan.variants) * len(self._plan.seeds)

    def _has_ended(self, chain: Chain) -> bool:
        outcomes = list(self._known.get(chain, {}).values())
        return self._search.capacity_of(outcomes, self._idle[chain.seed]).kind is not Kind.OPEN

    def so_far(self) -> str:
        """Return the capacities that are found, highest first, in at most 80 columns; empty if
        there are none yet."""
        self._settle()
        found: dict[str, list[float]] = {}
        for chain, outcomes in self._known.items():
            idle = self._idle[chain.seed]
            capacity = self._search.capacity_of(list(outcomes.values()), idle)
            if capacity.kind is Kind.FOUND:
                found.setdefault(chain.variant, []).append(capacity.load)
        means = {name: geometric_mean(values) for name, values in found.items()}
        ordered = sorted(means, key=lambda name: (-means[name], name))
        shown, unit = "", self._ladder.unit
        for index, name in enumerate(ordered):
            more = f" and {len(ordered) - index - 1} more" if index + 1 < len(ordered) else ""
            longer = f"{shown}, {name} {means[name]:.3g}" if shown else f"{name} {means[name]:.3g}"
            if len(SO_FAR.format(unit, longer + more)) > COLUMNS:
                return SO_FAR.format(unit, f"{shown} and {len(ordered) - index} more")
            shown = longer
        return SO_FAR.format(unit, shown) if shown else ""

    def _cell(self, place: SearchPlace) -> Cell:
        return Cell(place.variant, place.load, place.seed, self._plan.arrivals_text)

    @staticmethod
    def _place(cell: Cell) -> SearchPlace:
        return SearchPlace(cell.variant, cell.amount or 0.0, cell.seed)


def refuse_unreachable(plan: SweepPlan, folder: Path) -> dict[int, Times]:
    """Raise InvalidInput if the SLO is not met with any seed even on an idle machine. Return the
    times that were measured there, by seed. Called before the folder is made. A limit that every
    idle machine meets needs no measurement."""
    slo, measured = plan.slo, dict[int, Times]()
    if slo is None or all(limit.idle_meets for limit in slo.limits):
        return measured
    for seed in plan.seeds:
        idle = measured[seed] = idle_times(plan, seed, folder)
        if idle_of(idle, slo).tightest <= 1:
            return measured
    missed = [limit for limit in slo.limits if limit.share_of(idle, idle) > 1]
    raise InvalidInput(
        f"--slo '{slo}': not met even on an idle machine, where "
        f"{listed([_on_idle(limit, idle) for limit in missed])}; use a looser limit"
    )


def _on_idle(limit: Limit, idle: Times) -> str:
    """Return what an idle machine reaches, and by how much it misses the limit."""
    value, share = limit.of(idle), limit.share_of(idle, idle)
    if limit.is_speed:
        return f"{limit.name} is {1 / value:.3g} tokens/s and the limit is {times(share)} that"
    return f"the {limit.title} is {seconds(value)}, {times(share)} the limit"


def idle_machines(plan: SweepPlan, folder: Path, measured: Mapping[int, Times]) -> dict[int, Times]:
    """Return the times on an idle machine by seed, from finished cells or measured before or
    here."""
    found: dict[int, Times] = {}
    for path in sorted(folder.glob("*/done.json")):
        if found.keys() >= set(plan.seeds):  # Reading a cell checks all of its files.
            break
        with suppress(InvalidRunFolder):  # A damaged cell runs again.
            cell = read_cell(path.parent)
            if cell.config.seed in plan.seeds and (idle := cell.done.idle_times_s):
                found.setdefault(cell.config.seed, idle)
    return {
        seed: found.get(seed) or measured.get(seed) or idle_times(plan, seed, folder)
        for seed in plan.seeds
    }
