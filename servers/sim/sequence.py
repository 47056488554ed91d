"""One turn inside the virtual-time engine: what the policy sees of it, its KV, and where its time
went. Lengths in tokens, times in picoseconds."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from servers.policies.base import Future, Request
from servers.sim.kv import Holder, Path


class Phase(IntEnum):
    """Where a turn's time goes; the order is that of `Sequence.spent_ps`."""

    QUEUE = 0
    LOAD = 1
    PREFILL = 2
    DECODE = 3
    PREEMPTED = 4
    RECOMPUTE = 5


@dataclass(frozen=True, slots=True)
class Submission:
    """A turn as a client sends it."""

    program_id: str | None
    path: Path
    """Where prompt and answer lie in the tree of contents."""
    prompt_tokens: int
    output_tokens: int
    is_last: bool | None
    tools: tuple[str, ...] = ()
    """What its answer will call."""
    future: Future | None = None
    """For bounds only."""


class Sequence:
    """A submitted turn and its progress."""

    __slots__ = (
        "admission",
        "arrived",
        "computed",
        "error",
        "finish_tick",
        "finished_ps",
        "first_token_ps",
        "hits",
        "holder",
        "joined_computed",
        "joined_tick",
        "phase",
        "pinned_hit",
        "preemptions",
        "since_ps",
        "spent_ps",
        "submission",
        "view",
        "wanted",
    )

    def __init__(self, submission: Submission, view: Request, arrived_ps: int) -> None:
        self.submission = submission
        self.view = view
        self.holder = Holder(submission.path)
        self.wanted = submission.output_tokens
        self.computed = 0
        """Tokens with KV; up to date whenever the sequence is not among the decodes."""
        self.joined_tick: int | None = None
        """Set while decoding; then `Decodes.refresh` brings `computed` up to date."""
        self.joined_computed = 0
        self.finish_tick: int | None = None
        self.admission = -1
        """Rises with each admission: order in the batch."""
        self.hits: list[tuple[str, int]] | None = None
        """Tokens found at first admission, by tier; None before it."""
        self.pinned_hit = False
        self.preemptions = 0
        self.phase = Phase.QUEUE
        self.since_ps = arrived_ps
        self.spent_ps = [0] * len(Phase)
        self.arrived = False
        self.first_token_ps: int | None = None
        self.finished_ps: int | None = None
        self.error: str | None = None

    @property
    def target(self) -> int:
        """Tokens whose KV is needed to sample the next one."""
        return self.view.prompt_tokens + self.view.output_tokens

    def enter(self, phase: Phase, now_ps: int) -> None:
        self.spent_ps[self.phase] += now_ps - self.since_ps
        self.phase = phase
        self.since_ps = now_ps

    def close(self, now_ps: int, error: str | None = None) -> None:
        self.enter(self.phase, now_ps)
        self.finished_ps = now_ps
        self.error = error
