"""One turn inside the virtual-time engine: its policy view, its KV, and its time by phase.

Lengths are in tokens, times in picoseconds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple

from servers.basics.clock import seconds
from servers.basics.errors import InvalidInput
from servers.policies.base import Future, Request
from servers.policies.runner import EngineTurn
from servers.profiles import Profile
from servers.programs import PromptStart
from servers.sim.kv import BlockOwner, Path, shares_blocks


class Phase(IntEnum):
    """A part of a turn's latency; also the index into `Sequence.spent_ps`."""

    QUEUE = 0
    LOAD = 1
    PREFILL = 2
    DECODE = 3
    PREEMPTED = 4
    RECOMPUTE = 5


PHASES: Final = 6


@dataclass(slots=True, eq=False, init=False)
class Submission:
    """A turn as a client sends it."""

    program_id: str | None
    path: Path
    """Position of the prompt and the answer in the tree of contents."""
    prompt_tokens: int
    output_tokens: int
    is_last: bool | None
    tools: tuple[str, ...] = ()
    """Names of the tools that its answer calls."""
    future: Future | None = None
    """For policies that are an `Oracle` only."""
    path_on: Callable[[int], Path] | None = None
    """With several replicas: returns the path in the tree of contents of a replica, or in that of
    the router, whose number is the number of replicas."""
    job_id: str | None = None
    """For routers: the root program, if this is a turn of a sub-agent."""

    def __init__(
        self,
        program_id: str | None,
        path: Path,
        prompt_tokens: int,
        output_tokens: int,
        is_last: bool | None,
        tools: tuple[str, ...] = (),
        future: Future | None = None,
        path_on: Callable[[int], Path] | None = None,
        job_id: str | None = None,
    ) -> None:
        self.program_id = program_id
        self.path = path
        self.prompt_tokens = prompt_tokens
        self.output_tokens = output_tokens
        self.is_last = is_last
        self.tools = tools
        self.future = future
        self.path_on = path_on
        self.job_id = job_id


def refuse_unfit(submission: Submission, profile: Profile, step_tokens: int) -> None:
    """Raise InvalidInput if the turn could never run."""
    prompt, output = submission.prompt_tokens, submission.output_tokens
    if prompt < 1 or output < 1:
        raise InvalidInput(
            f"program {submission.program_id}: a turn of {prompt} prompt and {output} output "
            "tokens; both must be at least 1"
        )
    tokens = prompt + output
    needed = profile.turn_blocks(tokens, step_tokens)
    if tokens > profile.max_model_len or needed > profile.kv_blocks:
        room = min(profile.max_model_len, profile.longest_turn(step_tokens))
        raise InvalidInput(
            f"program {submission.program_id}: a turn of {tokens} tokens does not fit "
            f"the {room} tokens of {profile.model} on {profile.hardware}"
        )


class EngineUsage(NamedTuple):
    """Usage of one engine at one time: device blocks in use by turns and pins, those in use by pins
    only, numbers of turns, and blocks in the offload tiers. Of several replicas, the sums, and the
    device blocks in use on each."""

    t_s: float
    used_blocks: int
    pinned_blocks: int
    waiting: int
    running: int
    dram_blocks: int = 0
    ssd_blocks: int = 0
    replica_blocks: tuple[int, ...] = ()


class Sequence(EngineTurn):
    """A submitted turn and its progress."""

    __slots__ = (
        "admission",
        "arrived",
        "computed",
        "error",
        "fetch",
        "finish_tick",
        "finished_ps",
        "first_token_ps",
        "held_ps",
        "hits",
        "joined_computed",
        "joined_tick",
        "owner",
        "phase",
        "preemptions",
        "prefilled",
        "replica",
        "request_ps",
        "sends_kv",
        "since_ps",
        "spent_ps",
        "submission",
    )

    def __init__(self, submission: Submission, arrived_ps: int) -> None:
        arrival_s = seconds(arrived_ps)
        # The engine sets `id` on arrival, and `program_id` if the client sent none.
        view = Request(
            id=0,
            program_id=submission.program_id or "",
            index=0,
            arrival_s=arrival_s,
            program_arrival_s=arrival_s,
            prompt_tokens=submission.prompt_tokens,
            is_last=submission.is_last,
        )
        super().__init__(view, has_program=bool(submission.program_id), future=submission.future)
        self.submission = submission
        self.owner = BlockOwner(submission.path)
        self.computed = 0
        """Number of tokens with KV. While the turn decodes, `Decodes.refresh` updates this."""
        self.joined_tick: int | None = None
        """Set while the turn decodes."""
        self.joined_computed = 0
        self.finish_tick: int | None = None
        self.admission = -1
        """Serial number of the latest admission, which is the order in the batch."""
        self.hits: list[tuple[str, int]] | None = None
        """Cached tokens at the first admission, by tier; None before it."""
        self.preemptions = 0
        self.replica = 0
        """The replica that serves it."""
        self.held_ps = 0
        """How long the router held it back, which is part of its time in the queue."""
        self.request_ps = 0
        """Its time in the API server of its engine."""
        self.sends_kv = False
        """Whether the engine computes the prompt only, and keeps the KV until it was sent."""
        self.prefilled: Sequence | None = None
        """The same turn on the prefill engine that computed its prompt."""
        self.fetch: Callable[[int, int], int] | None = None
        """Fetches the prompt's last blocks from that engine: takes their number and the time in
        picoseconds, and returns when they have arrived. None: the engine computes the prompt."""
        self.phase: int = Phase.QUEUE
        self.since_ps = arrived_ps
        self.spent_ps = [0] * PHASES
        self.arrived = False
        self.first_token_ps: int | None = None
        self.finished_ps: int | None = None
        self.error: str | None = None

    @property
    def target(self) -> int:
        """Number of tokens whose KV is needed to sample the next token."""
        return self.view.prompt_tokens + self.view.output_tokens

    def processed(self, sent_ps: int, at_ps: int) -> None:
        """Record its time in the API server, before it arrives."""
        self.request_ps = at_ps - sent_ps
        self.since_ps += self.request_ps
        self.view.arrival_s = seconds(at_ps)

    def repeats(self, start: PromptStart) -> bool:
        return shares_blocks(self.owner.path, start.content, start.blocks)

    def start(self, now_ps: int) -> None:
        """Record that the turn starts or resumes running."""
        resumed = self.preemptions and self.first_token_ps is not None
        self.enter(Phase.RECOMPUTE if resumed else Phase.PREFILL, now_ps)

    def enter(self, phase: int, now_ps: int) -> None:
        self.spent_ps[self.phase] += now_ps - self.since_ps
        self.phase = phase
        self.since_ps = now_ps

    def close(self, now_ps: int, error: str | None = None) -> None:
        self.enter(self.phase, now_ps)
        self.finished_ps = now_ps
        self.error = error
