"""The memoryfulness factor: does a program's progress tell how much is left (v3, §4.1)?

In: turns as they finish, programs as they end. Out: eta = -Corr(k, N - k), with N the turns of a
finished program and k = 0 .. N-1 those served before each of them: one pair per turn. 1 when all
programs have the same length, 0 for a geometric number of turns, below 0 for a tail heavier still.

Each program contributes the same k's as (N - k)'s, shifted by one, so that both variances are
equal and eta is minus covariance over variance: whole sums, exact.
"""

from __future__ import annotations

from servers.policies.estimates.recent import Recent


class TurnCounts:
    def __init__(self) -> None:
        self._served: Recent[int] = Recent()
        self._pairs = self._k = self._left = self._k2 = self._k_left = 0
        self._programs = self._turns = 0
        self.eta = 1.0
        """Starts at the assumption behind T_default, all programs alike (v3, §4.2)."""

    @property
    def average(self) -> float:
        """Mean turns of a finished program; 0 before the first."""
        return self._turns / self._programs if self._programs else 0.0

    def served(self, program_id: str) -> None:
        self._served[program_id] = (self._served.get(program_id) or 0) + 1

    def uncount(self, program_id: str) -> None:
        """Leave the program's current turn out of the count."""
        self._served[program_id] = (self._served.get(program_id) or 0) - 1

    def ended(self, program_id: str) -> None:
        """Count the program as finished, with the turns served since it was last counted."""
        n = self._served.pop(program_id)
        if not n:
            return
        self._programs += 1
        self._turns += n
        self._pairs += n
        self._k += n * (n - 1) // 2
        self._left += n * (n + 1) // 2
        self._k2 += (n - 1) * n * (2 * n - 1) // 6
        self._k_left += (n - 1) * n * (n + 1) // 6
        spread = self._pairs * self._k2 - self._k**2
        together = self._pairs * self._k_left - self._k * self._left
        self.eta = -together / spread if spread else 1.0
