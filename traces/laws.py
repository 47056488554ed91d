"""Conservation laws: what must hold between the numbers of a file and what was read from it.

Readers check them on every file. A law that fails is reported with its numbers.
`docs/reference/trace-formats.md` has the table of laws and formats.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum


class Law(StrEnum):
    TOTALS = "totals"
    CALLS = "calls"
    CACHED = "cached"
    GROWTH = "growth"
    SPAN = "span"
    TEXT = "text"


FAILURES = {
    Law.TOTALS: "prompts sum to {:,.0f} tokens, the file says {:,.0f}",
    Law.CALLS: "{:,.0f} calls were read, the file says {:,.0f}",
    Law.CACHED: "{:,.0f} cached tokens in a prompt of {:,.0f}",
    Law.GROWTH: "a prompt grew by {:,.0f} tokens after an answer of {:,.0f}, not all of which it "
    "repeats",
    Law.SPAN: "a tool gap and a call of {:,.1f} s in {:,.1f} s: such gaps are inferred",
    Law.TEXT: "an answer of {:,.0f} characters has {:,.0f} tokens",
}
"""What is reported of the first failure: the two numbers that should agree."""


@dataclass(slots=True)
class Laws:
    """How often each law was checked on a file, and how often it failed."""

    checked: Counter[Law] = field(default_factory=Counter)
    failed: Counter[Law] = field(default_factory=Counter)
    _first: dict[Law, str] = field(default_factory=dict)

    def check(self, law: Law, holds: bool, *numbers: float) -> bool:
        """Record whether a law holds for these numbers, and return it."""
        self.checked[law] += 1
        if not holds:
            self.failed[law] += 1
            self._first.setdefault(law, FAILURES[law].format(*numbers))
        return holds

    def total(self, law: Law, read: int, stated: int | None) -> None:
        """Compare a sum with the one that the file states, if it does."""
        if stated:
            self.check(law, read == stated, read, stated)

    @property
    def failed_counts(self) -> int:
        """How often those laws failed without which token counts are not measured."""
        return sum(self.failed[law] for law in (Law.TOTALS, Law.CACHED, Law.TEXT))

    def add(self, other: Laws) -> None:
        self.checked += other.checked
        self.failed += other.failed

    def as_json(self) -> dict[str, dict[str, int]]:
        checked = [law for law in Law if self.checked[law]]
        return {
            law.value: {"checked": self.checked[law], "failed": self.failed[law]} for law in checked
        }

    def reasons(self) -> list[str]:
        return [
            f"{first} ({self.failed[law]:,} of {self.checked[law]:,})"
            if self.checked[law] > 1
            else first
            for law, first in self._first.items()
        ]
