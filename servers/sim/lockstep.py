"""Ranks of one server under one clock: attention data parallelism (vLLM's `--data-parallel-size N
--enable-expert-parallel`).

In: turns, as `Fleet`. Each rank schedules by itself, but all ranks begin a step together and end it
together, since their GPUs compute the experts of a layer for the tokens of all of them. A step
takes as long as the slowest rank needs for what is its own, and as the experts need for all tokens.
A rank without turns computes nothing, but waits for the others' step to end.
"""

from __future__ import annotations

from collections.abc import Sequence

from servers.profiles.layout import ExpertTimes
from servers.routers.runner import BuildRouter
from servers.sim.engine import OnEnd
from servers.sim.fleet import BuildEngine, Fleet
from servers.sim.strides import Pace


class LockstepFleet(Fleet):
    def __init__(
        self,
        build_router: BuildRouter,
        engines: Sequence[BuildEngine],
        experts: ExpertTimes,
        *,
        on_end: OnEnd,
    ) -> None:
        super().__init__(build_router, engines, on_end=on_end)
        self._experts = experts

    def _begin_batches(self) -> None:
        """Begin a step of all ranks that have turns. If one is being computed, end it as soon as
        possible for the ranks that wait."""
        busy = [index for index, engine in enumerate(self.engines) if engine.is_busy]
        if busy:
            if self._begin:
                for index in busy:
                    self._shorten(index, self.now_ps)
            return
        begun = []
        for index in sorted(self._begin):
            engine = self.engines[index]
            engine.now_ps = self.now_ps
            if engine.begin_batch():
                begun.append(index)
            else:
                self._set_due(index, engine.wake_ps())
            self._usage.changed(index)
        self._begin.clear()
        if begun:
            self._keep_pace(begun)

    def _keep_pace(self, begun: Sequence[int]) -> None:
        engines = [self.engines[index] for index in begun]
        pace = common_pace([engine.pace for engine in engines], self._experts)
        steps = min(engine.keep_pace(pace) for engine in engines)
        pace = pace._replace(steps=steps)
        for index, engine in zip(begun, engines, strict=True):
            engine.keep_pace(pace)
            self._set_due(index, engine.due_ps)

    def _wake(self, index: int, at_ps: int) -> None:
        if self.engines[index].is_busy:
            self._begin.add(index)
        else:
            super()._wake(index, at_ps)


def common_pace(paces: Sequence[Pace], experts: ExpertTimes) -> Pace:
    """Return the steps in which the same rank is the slowest, without its experts."""
    own = [(pace.first_ps - experts.ps(pace.tokens), pace.increment_ps) for pace in paces]
    slowest_ps, increment_ps = max(own)
    steps = min(pace.steps for pace in paces)
    for first_ps, more_ps in own:
        if more_ps > increment_ps:
            steps = min(steps, (slowest_ps - first_ps) // (more_ps - increment_ps) + 1)
    tokens = sum(pace.tokens for pace in paces)
    return Pace(steps, slowest_ps + experts.ps(tokens), increment_ps, tokens)
