"""Writes which variants or machines are best or tie, with their numbers and their ratios to the
baseline, in at most about 36 words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from reports.statistics.bootstrap import Estimate, interval
from servers.basics.phrasing import listed, times

NEGLIGIBLE = 0.02
"""Smaller relative differences between mean JCTs do not matter in practice."""
MOST_NAMES = 5
"""The headline names at most this many tied variants; the table has all."""
MOST_NUMBERS = 4
"""The headline gives the numbers of at most this many tied variants."""
WORDS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


class Contender(NamedTuple):
    variant: str
    value: float
    text: str
    """The value with its unit."""
    ratio: Estimate | None
    """To the baseline."""


@dataclass(frozen=True, slots=True)
class Ranking:
    best: Sequence[Contender]
    """The variants that win or tie, the best first."""
    everyone: bool
    """Whether no other variant was compared."""
    baseline: str
    within: float
    """Values that differ by less appear once."""
    tie: str
    """How ties compare, such as `are not distinguished with 3 seeds`."""
    noun: str
    """The word for a contender."""
    place: str
    """Where the numbers were measured, such as `on b200`."""
    has: str = "sustains"
    """The verb of a number."""
    is_better: str = "sustains more"
    as_many: str = "as many"

    def sentence(self) -> str:
        names = [each.variant for each in self.best]
        if self.baseline in names and not self.everyone:
            own = self.best[names.index(self.baseline)]
            others = [each for each in self.best if each is not own]
            names = ["it", *(each.variant for each in others)]
            tied = f"; {listed(names, at_most=MOST_NAMES)} {self.tie}" if others else ""
            if others and (ratio := others[0].ratio) and abs(ratio.value - 1) > self.within:
                number = f"{others[0].variant}: {others[0].text}, {times(ratio.value)}"
                tied += f" ({', '.join(filter(None, [number, interval(ratio)]))})"
            return (
                f"No {self.noun} {self.is_better} than {own.variant}, which {self.has} {own.text}"
                f" {self.place}{tied}."
            )
        if len(names) > 1:
            return self._ties(listed(names, at_most=MOST_NAMES))
        (only,) = self.best
        return f"{only.variant} {self.has} {only.text} {self.place}{self._ratios(self.best)}."

    def _ties(self, names: str) -> str:
        """Give tied variants a number each, since a range would read as an interval."""
        best, high, low = self.best, self.best[0], self.best[-1]
        count = WORDS[len(best)].capitalize() if len(best) < len(WORDS) else str(len(best))
        tie = f"{f'The {len(best)}' if self.everyone else count} {self.noun}s {self.tie}"
        ends = sorted((high.value, low.value))
        if ends[0] >= (1 - self.within) * ends[1]:
            about = f"Each {self.has} about {high.text} {self.place}{self._ratios([high])}."
            return f"{tie}. {about}" if self.everyone else f"{tie}: {names}. {about}"
        if len(best) <= MOST_NUMBERS:
            first = f"{high.variant} {self.has} {high.text}"
            numbers = listed([first, *(f"{each.variant} {each.text}" for each in best[1:])])
            return f"{tie}: {self.place} {numbers}{self._ratios(best)}."
        above = self._ratios([high])
        below = f" ({times(low.ratio.value)})" if above and low.ratio is not None else ""
        most = f"{high.variant}, which {self.has} {high.text} {self.place}{above}"
        return f"{tie}, from {most}, to {low.variant} with {low.text}{below}."

    def _ratios(self, best: Sequence[Contender]) -> str:
        """Compare with the baseline; a single ratio has its interval."""
        ratios = [each.ratio for each in best if each.ratio is not None]
        if self.everyone or len(ratios) < len(best):
            return ""
        certain = f" ({interval(ratios[0])})" if len(best) == 1 else ""
        shown = listed([times(ratio.value) for ratio in ratios])
        return f", {shown} {self.as_many} as {self.baseline}{certain}"
