"""PLAS by the text of Agentix (NSDI 2026; Autellix, arXiv:2502.13965, §4.2, Algorithm 1).

Calls (turns) stand in K levels, first in, first out by the time at which they entered the level:
- a call enters the level of its program's attained service, the summed execution time of the
  program's finished and cancelled calls, at the end;
- a running call that has used up the level's quantum is appended to the end of the next level;
- a waiting call with (W_p + W_c) / (T_p + T_c) >= beta is appended to the end of the top level,
  with a fresh quantum and W_c = T_c = 0. W and T are seconds waited and served, p by the program's
  earlier calls, c by this call since its last promotion.
The calls at the front run. A call that waits in front of a running one and does not fit displaces
the running call that is furthest behind; that one keeps its place. A preempted call's KV is swapped
to the CPU: with `agentix+` the offload tier holds the KV of a preempted turn, and the turn loads it
when it resumes; with `agentix` it is computed again.

The paper publishes no K, bounds, quanta or beta, and there is no official code. The constants are
those of a public re-implementation (`kungfu-team/autellix`): K = 7, levels from 2, 4 ... 64 units
of service on (`bounds`), quanta of 1, 2, 4 ... 32 units (`quanta`), beta = 8. Its unit is a decode
step; `step_s` is the unit in seconds, by default a decode step of one turn without context.

Departs from the paper:
- the last level's quantum is endless, since there is no next level;
- the paper decides every N decode steps, here each step does;
- service is the time from scheduled to finished without the time preempted, prefill included;
- calls of a program that overlap add up, as in PLAS, and not as in ATLAS; one engine needs no load
  balancer.
Departs from `autellix`, which is what Continuum's comparison describes: there the order within a
level is by arrival, and only a call at a better level displaces another.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from servers.basics.compiled_core import mypyc_attr
from servers.policies.autellix import Autellix
from servers.policies.base import Costs, Rank, Request

BOUNDS = (2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
QUANTA = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
"""Quanta of all levels but the last, which is endless."""
BETA = 8.0


@mypyc_attr(allow_interpreted_subclasses=True)
class Agentix(Autellix):
    """Programs that have been served least go first (PLAS), in order of entry into a level."""

    name = "agentix"
    source = "NSDI 2026 (Agentix); arXiv:2502.13965, §4.2"
    checked: ClassVar[str] = "no: no official code; the constants of a public re-implementation"

    def __init__(
        self,
        costs: Costs,
        *,
        bounds: Sequence[float] = BOUNDS,
        quanta: Sequence[float] = QUANTA,
        beta: float = BETA,
        step_s: float | None = None,
    ) -> None:
        unit_s = costs.decode_s(1, 0) if step_s is None else step_s
        _check(bounds, quanta, beta, unit_s)
        super().__init__(costs, quanta_s=[quantum * unit_s for quantum in quanta], beta=beta)
        self._bounds_s = [bound * unit_s for bound in bounds]

    def rank(self, request: Request, now_s: float) -> Rank:
        call = self._calls[request.id]
        passed = call.passed(now_s)
        if not passed:
            return (call.level, call.entered_s, request.id)
        return (call.level_at(now_s), call.changes_s[passed - 1], request.id)

    def victim(self, running: Sequence[Request], now_s: float) -> Request:
        return max(running, key=lambda r: self.rank(r, now_s))

    def displaced(self, head: Request, running: Sequence[Request], now_s: float) -> Request | None:
        if not running:
            return None
        last = self.victim(running, now_s)
        return last if self.rank(head, now_s) < self.rank(last, now_s) else None


def _check(bounds: Sequence[float], quanta: Sequence[float], beta: float, unit_s: float) -> None:
    if len(bounds) != len(quanta):
        raise ValueError(
            f"bounds has {len(bounds)} values and quanta {len(quanta)}; give one of "
            "each per level, except the last"
        )
    if any(low >= high for low, high in zip((0.0, *bounds), bounds, strict=False)):
        raise ValueError("bounds must be above 0 and ascend")
    if not (all(quantum > 0 for quantum in quanta) and beta > 0 and unit_s > 0):
        raise ValueError("quanta, beta and step_s must be above 0")
