"""The memoryfulness factor: how well a program's progress predicts its remaining turns (v3, §4.1).

In: turns as they finish, programs as they end. Out: eta = -Corr(k, N - k) over all turns of
finished programs, where N is the program's number of turns and k = 0 .. N-1 the number served
before the turn. It is 1 if all programs have the same length, 0 for a geometric number of turns,
and negative for a heavier tail.

In each program, N - k takes the same values as k + 1, so that both variances are equal and eta is
minus covariance over variance. All sums are integers, hence exact.
"""

from __future__ import annotations

from servers.basics.clock import quotient
from servers.policies.estimates.recent import Recent


class TurnCounts:
    def __init__(self) -> None:
        self._served: Recent[int] = Recent()
        self._pairs = self._k = self._left = self._k2 = self._k_left = 0
        self._programs = 0
        self.eta = 1.0
        """1 at first, the assumption behind T_default that all programs are equal (v3, §4.2)."""

    @property
    def average(self) -> float:
        """Mean number of turns of the finished programs; 0 if there are none."""
        return quotient(self._pairs, self._programs) if self._programs else 0.0

    def served(self, program_id: str) -> None:
        self._served[program_id] = (self._served.get(program_id) or 0) + 1

    def uncount(self, program_id: str) -> None:
        """Exclude the program's current turn from the count."""
        self._served[program_id] = (self._served.get(program_id) or 0) - 1

    def ended(self, program_id: str) -> None:
        """Count the program as finished, with the turns served since its last end."""
        n = self._served.pop(program_id)
        if not n:
            return
        self._programs += 1
        self._pairs += n
        self._k += n * (n - 1) // 2
        self._left += n * (n + 1) // 2
        self._k2 += (n - 1) * n * (2 * n - 1) // 6
        self._k_left += (n - 1) * n * (n + 1) // 6
        variance = self._pairs * self._k2 - self._k**2
        covariance = self._pairs * self._k_left - self._k * self._left
        self.eta = quotient(-covariance, variance) if variance else 1.0
