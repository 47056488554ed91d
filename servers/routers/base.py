"""The contract of a router: the decisions that it makes and the values that it sees.

A router stands in front of the replicas of one model. Like a policy it is pure: it takes plain
values and `now_s`, reads no clock and does no I/O, and knows nothing of the future. The replicas'
own schedulers stay as they are. Times are seconds since the start, lengths are tokens.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import ClassVar

from servers.basics.compiled_core import mypyc_attr
from servers.policies.base import Costs

# Compiled, a constructor that is written out is faster than one that `dataclass` generates.

Runs = tuple[tuple[Hashable, int], ...]
"""A prompt as runs of tokens: what identifies the contents of each run, together with those before
it, and the token at which the prompt leaves the run."""


UNKNOWN_COSTS = Costs(float)
"""The costs of a live server, which are unknown: a router that `needs_costs` refuses them."""


class RoutedTurn:
    """One turn, as routers see it. They only read it."""

    __slots__ = (
        "arrival_s",
        "cached_tokens",
        "id",
        "index",
        "is_last",
        "job_id",
        "output_tokens",
        "program_id",
        "prompt_tokens",
        "replica",
        "runs",
    )

    def __init__(
        self,
        id: int,
        program_id: str,
        index: int,
        arrival_s: float,
        prompt_tokens: int,
        is_last: bool | None,
        runs: Runs = (),
        job_id: str | None = None,
    ) -> None:
        self.id = id
        """Unique, in order of arrival."""
        self.program_id = program_id
        self.job_id = program_id if job_id is None else job_id
        """The root program, if this one is a sub-agent; else the program itself."""
        self.index = index
        """Number of earlier turns of this program."""
        self.arrival_s = arrival_s
        self.prompt_tokens = prompt_tokens
        """Live behind the gateway an estimate until `finished` is called."""
        self.is_last = is_last
        """None if the client does not say."""
        self.runs = runs
        """Empty unless the router `needs_runs`."""
        self.replica = -1
        """The replica that serves it; -1 before it was sent, and at the end of a turn that the
        client gave up while it was held back."""
        self.output_tokens = 0
        """Complete when `finished` is called."""
        self.cached_tokens = 0
        """Tokens of the prompt that the replica had in its cache when it admitted the turn, as
        `usage.prompt_tokens_details` of an answer has them. Set when `finished` is called."""


class Replica:
    """What a router knows of one replica."""

    __slots__ = (
        "available",
        "costs",
        "index",
        "kv_tokens",
        "reported_s",
        "running",
        "turns",
        "used_tokens",
        "waiting",
    )

    def __init__(self, index: int, kv_tokens: int, costs: Costs = UNKNOWN_COSTS) -> None:
        self.index = index
        self.kv_tokens = kv_tokens
        """Tokens that fit into the KV memory of the device. 0 if a live server does not say, which
        is refused for a router that `needs_kv`."""
        self.costs = costs
        """Times of prefills and decode steps there, as an operator measures them once."""
        self.available = True
        """False for a while after a turn has failed on a live server. A router sends no new program
        there while another replica is available (`usable`)."""
        self.turns = 0
        """Turns that were sent to it and have not ended. The router knows this by itself."""
        self.running = self.waiting = 0
        """Turns, by its latest load report."""
        self.used_tokens = 0
        """Tokens of KV that turns and pins hold, by its latest load report."""
        self.reported_s = 0.0
        """When it made that report."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Router:
    """A router derives from this class and defines `route`."""

    name: ClassVar[str]
    source: ClassVar[str] = ""
    """Where the algorithm is published."""
    checked: ClassVar[str] = ""
    """How it was compared with the code of its authors; empty if it was not."""
    needs_runs: ClassVar[bool] = False
    """Whether it compares the contents of prompts."""
    needs_kv: ClassVar[bool] = False
    """Whether it uses `Replica.kv_tokens`."""
    needs_costs: ClassVar[bool] = False
    """Whether it uses `Replica.costs`."""
    report_s: float | None = None
    """Time between load reports of the replicas. 0: each decision finds a fresh one. None: the
    router uses no reports."""
    period_s: float | None = None
    """Time between calls of `tick`; None: it is not called."""

    def __init__(self, replicas: Sequence[Replica]) -> None:
        """Raise ValueError for arguments out of range."""
        self.replicas = replicas

    def route(self, turn: RoutedTurn, now_s: float) -> int | None:
        """Return the replica that serves a turn that has arrived, or None to hold the turn back
        until `resumed` or `tick` returns it."""
        raise NotImplementedError

    def resumed(self, now_s: float) -> Sequence[tuple[RoutedTurn, int]]:
        """Return turns that were held back and now go to a replica. Called after each arrival and
        each end of a turn or program, and at `wake_s`."""
        return ()

    def wake_s(self, now_s: float) -> float | None:
        """Return the next time, after `now_s`, at which `resumed` may return a turn although no
        turn has arrived or ended; None for never."""
        return None

    def tick(self, now_s: float) -> Sequence[tuple[RoutedTurn, int]]:
        """Return the same, every `period_s`."""
        return ()

    def finished(self, turn: RoutedTurn, now_s: float) -> None:
        """A turn has ended on `turn.replica`, or failed."""

    def program_ended(self, program_id: str, now_s: float) -> None:
        """The program's last turn has ended, and `finished` was called for it."""


def usable(replicas: Sequence[Replica]) -> Sequence[Replica]:
    """Return the replicas that are available, or all if none is."""
    for replica in replicas:
        if not replica.available:
            return [replica for replica in replicas if replica.available] or replicas
    return replicas


def least_busy(replicas: Sequence[Replica]) -> int:
    """Return the replica with the fewest turns; of several, the first."""
    best = replicas[0]
    for replica in replicas:
        if replica.turns < best.turns:
            best = replica
    return best.index
