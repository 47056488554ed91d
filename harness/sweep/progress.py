"""Show the progress of a sweep on stderr: a bar on a terminal, otherwise a line every few seconds.

The unit of progress is a turn. All cells of a sweep have the same number of turns. A search for
capacities has an unknown number of cells, so its unit is a capacity, and no time left is estimated.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from servers.basics.text import one_line

INTERVAL_S = 5.0


class SweepProgress:
    """A context manager whose `started`, `ticked` and `finished` are called for each cell."""

    def __init__(
        self,
        cells: int,
        turns_per_cell: int,
        workers: int,
        found: Callable[[], tuple[int, int]] | None = None,
    ) -> None:
        """`found` returns how many capacities a search has found, and how many there are."""
        self.cells = cells
        self.turns_per_cell = turns_per_cell
        self.workers = workers
        self.ended = 0
        self.failed = 0
        self._turns_of: dict[str, int] = {}
        self._found = found
        self._capacities = (0, 0) if found is None else found()
        self._stage = self._answer = ""
        self._next_answer_s = 0.0
        self._turns_ended = 0
        self._started_at_s = self._printed_at_s = time.monotonic()
        self._console = Console(stderr=True, highlight=False)
        self._bar = _bar(self._console) if self._console.is_terminal else None
        if self._bar is not None:
            total = cells * turns_per_cell or None
            self._task = self._bar.add_task(self._counts(), total=total, running="")

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        else:
            count = min(self.workers, self.cells)
            workers = f"{count} worker{'s' * (count != 1)}"
            cells = f"{self.cells} cell{'s' * (self.cells != 1)}"
            turns = f" of {self.turns_per_cell} turns" if self.turns_per_cell else ""
            search = "searching capacities, starting with" if self._found is not None else "running"
            self._print(f"{search} {cells}{turns} on {workers}")
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()
        elif self._found is not None:
            self._print(self._line())

    def planned(self, cells: int) -> None:
        """Add cells to those that will run."""
        self.cells += cells
        if self._bar is not None and self.turns_per_cell:
            self._bar.update(self._task, total=self.cells * self.turns_per_cell)

    def answer(self, so_far: Callable[[], str]) -> None:
        """Print an interim answer if there is a new one, at most every few seconds."""
        now_s = time.monotonic()
        if now_s >= self._next_answer_s and (line := so_far()) not in ("", self._answer):
            self._answer, self._next_answer_s = line, now_s + INTERVAL_S
            self._print(line)

    def started(self, cell: str) -> None:
        self._turns_of[cell] = 0
        self._show()

    def ticked(self, cell: str, turns: int, stage: str) -> None:
        """Update a running cell. `stage` describes its activity while it runs no turns."""
        self._turns_of[cell] = turns
        is_new = stage.partition(",")[0] != self._stage.partition(",")[0]
        self._stage = stage
        self._show(at_once=is_new and bool(stage))

    def finished(self, cell: str, error: str | None) -> None:
        ended = self._turns_of.pop(cell, 0)
        self._turns_ended += self.turns_per_cell or ended
        self.ended += 1
        if self._found is not None:
            self._capacities = self._found()
        if error is not None:
            self.failed += 1
            line, _, _ = error.partition("\n")
            self._print(f"failed: {cell}: {one_line(line)}")
        self._show()

    @property
    def turns(self) -> int:
        return self._turns_ended + sum(self._turns_of.values())

    def _show(self, *, at_once: bool = False) -> None:
        if self._bar is not None:
            running = " ".join([*sorted(self._turns_of), self._stage]).replace("[", r"\[")
            self._bar.update(
                self._task, completed=self.turns, description=self._counts(), running=running
            )
            return
        old = time.monotonic() - self._printed_at_s >= INTERVAL_S
        if at_once or old or (self.ended == self.cells and self._found is None):
            self._print(self._line())

    def _counts(self) -> str:
        if self._found is None:
            return f"{self.ended}/{self.cells} cells"
        found, capacities = self._capacities
        return f"{found}/{capacities} capacities found, {self.ended} cells done"

    def _line(self) -> str:
        elapsed_s = time.monotonic() - self._started_at_s
        stage = f"; {self._stage}" if self._stage else ""
        if not self.turns_per_cell:  # the number of turns is unknown
            running = f", {len(self._turns_of)} running" if self._found is not None else ""
            done = f"{self._counts()}{running}, {self.turns} turns"
            return f"{done}, {elapsed_s:.0f} s{stage}"
        share = self.turns / (self.cells * self.turns_per_cell)
        left = f", about {elapsed_s / share - elapsed_s:.0f} s left" if 0.02 < share < 1 else ""
        return f"{self._counts()}, {share:.0%}, {elapsed_s:.0f} s{left}{stage}"

    def _print(self, line: str) -> None:
        self._printed_at_s = time.monotonic()
        if self._bar is not None:
            self._console.print(line, markup=False, soft_wrap=True)
        else:
            print(line, file=sys.stderr, flush=True)


def _bar(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=30),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("[dim]{task.fields[running]}"),
        console=console,
    )
