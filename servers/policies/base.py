"""The contract of a scheduling policy: the decisions that it makes and the values that it sees.

A policy is pure: it takes plain values and `now_s`, and returns a decision. It imports no engine,
reads no clock, does no I/O, and does not know a trace's future; `Oracle` marks the exception. The
same object runs in the virtual-time engine and inside vLLM, so this package needs the standard
library only. Times are seconds on the engine's clock, and contexts are tokens.

`Policy` itself behaves like stock vLLM (first come first served, latest admitted is preempted, KV
freed at the end of a turn). A policy overrides the methods that decide differently.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple


@dataclass(slots=True, eq=False)
class Request:
    """One turn, as an engine and a policy see it. Engines write it, policies read it."""

    id: int
    """Unique within one engine, in order of arrival."""
    program_id: str
    """The job. An engine gives a turn without program id an id of its own, shared with no other."""
    index: int
    """Number of turns of this program that the engine saw before this one."""
    arrival_s: float
    """When this turn reached the server."""
    program_arrival_s: float
    """When the first turn of its program reached the server."""
    prompt_tokens: int
    is_last: bool | None = None
    """Whether this is the last turn of its program; None if the client did not tell."""
    output_tokens: int = 0
    """Tokens generated so far; complete when `finished` is called."""
    tools: tuple[str, ...] = ()
    """Tools that the answer calls, in order (first words of a bash line); empty until the turn has
    finished."""
    pinned: bool = False
    """Whether a pin holds the KV of its program's previous turn."""
    preempted: bool = False
    """Whether it ran, was preempted, and waits to run again."""

    @property
    def tool(self) -> str | None:
        """The tool that the time until the next turn is counted for: `pytest` for
        `cd x && pytest -q` (Continuum v3, App. B)."""
        for name in self.tools:
            if name not in SHELL_PREAMBLE:
                return name
        return self.tools[-1] if self.tools else None

    @property
    def ends_program(self) -> bool:
        """Whether the client marked this turn as the last or, if the client marks none, whether the
        turn calls no tool (v3, §5.2)."""
        return not self.tools if self.is_last is None else self.is_last


SHELL_PREAMBLE = frozenset({"cd", "export", "set", "source", ".", "pushd", "popd", "true", ":"})
"""First words that prepare a command line rather than do its work."""


@dataclass(frozen=True, slots=True)
class Retention:
    """What happens to the KV of a finished turn on the device, and the inputs of that decision."""

    kind: Literal["free", "pin"] = "free"
    ttl_s: float = 0.0
    """How long a pin holds; `math.inf` for a pin that only `review` or memory pressure ends."""
    whole_request: bool = False
    """Whether to hold the partly filled last block too, which no later turn can reuse. Only the
    authors' public fork does."""
    why: Mapping[str, float | str | None] = field(default_factory=dict)


FREE = Retention()


def pin(ttl_s: float, *, whole_request: bool = False, **why: float | str | None) -> Retention:
    """Holds the KV for `ttl_s` seconds; a TTL of zero or less frees it. `why` are the inputs of the
    decision, which engines write to their event log. Raises ValueError if `ttl_s` is NaN."""
    if math.isnan(ttl_s):
        raise ValueError(f"ttl_s is NaN; the inputs were {why}")
    return Retention("pin" if ttl_s > 0 else "free", max(ttl_s, 0.0), whole_request, why)


@dataclass(slots=True, eq=False)
class Pin:
    """KV that is held after the end of a turn, as a policy sees it when memory is short."""

    request: Request
    """The finished turn whose KV it is."""
    tokens: int
    """Length of the context that it holds."""
    pinned_at_s: float
    expires_at_s: float

    @property
    def program_id(self) -> str:
        return self.request.program_id


@dataclass(frozen=True, slots=True)
class Costs:
    """Cost of rebuilding a context on this engine, from its profile (Continuum v3, §5.2)."""

    prefill_s: Callable[[int], float]
    """Seconds to prefill a context of this many tokens in an otherwise idle engine."""
    reload_s: Callable[[int], float] | None = None
    """Seconds to load this many tokens from the offload tier; None without a tier."""
    step_tokens: int = 2048
    """Tokens that one step may prefill (chunk size)."""

    def rebuild_s(self, tokens: int) -> float:
        """PrefillReload(r): seconds to load with a tier, else to prefill (v3, §4.1)."""
        return self.prefill_s(tokens) if self.reload_s is None else self.reload_s(tokens)


class Future(NamedTuple):
    """Facts about a turn that only the trace has. Bounds get them, real policies never do."""

    tool_gap_s: float | None
    """Seconds until the program's next turn arrives; None after its last turn."""
    remaining_prompt_tokens: int
    """New prompt tokens of this and all later turns."""
    remaining_output_tokens: int
    """Output tokens of this and all later turns."""


class Oracle:
    """Marks a policy as a bound: engines in virtual time call `foresee` before `arrived`."""

    def foresee(self, request: Request, future: Future) -> None:
        raise NotImplementedError


Rank = tuple[Any, ...]
"""Numbers that sort ascending. The last one is `request.id`, so that no two ranks are equal."""


class Policy:
    """The contract of every policy, with the decisions of stock vLLM.

    Engines call the event methods in time order, each once per event. They may call the decision
    methods any number of times, so those must not change state. Keyword parameters of the
    constructor are the policy's arguments on the command line; give them types and defaults.
    """

    name: ClassVar[str]
    """Name on the command line and in reports."""
    source: ClassVar[str] = ""
    """Publication that describes it."""
    reclaim_when: Literal["stuck", "pressure"] = "stuck"
    """When pins give way to a turn that lacks blocks: only if no other turn can free blocks by
    finishing ("stuck"), or always ("pressure"). `PolicyRunner.may_reclaim` is the exact rule."""
    reviews_pins: ClassVar[bool] = False
    """Whether engines call `review` at the start of each scheduling step."""

    def __init__(self, costs: Costs) -> None:
        self.costs = costs

    # Events -------------------------------------------------------------------------------------

    def arrived(self, request: Request, now_s: float) -> None:
        """The turn entered the waiting queue."""

    def scheduled(self, request: Request, now_s: float, cached_tokens: int) -> None:
        """The turn is admitted, with `cached_tokens` of its prompt cached; called again after each
        preemption. `request.preempted` and `request.pinned` still have their values from the
        queue."""

    def preempted(self, request: Request, now_s: float) -> None:
        """The turn lost its KV and waits again."""

    def finished(self, request: Request, now_s: float) -> Retention:
        """The turn's last token is generated: returns whether to keep its KV. Engines call it for
        last turns too, and ignore what it returns for them."""
        return FREE

    def aborted(self, request: Request, now_s: float) -> None:
        """The client cancelled the turn while it waited or ran; `finished` will not be called."""

    def program_ended(self, program_id: str, now_s: float) -> None:
        """The program sends no more turns. Not every engine is told."""

    # Decisions ----------------------------------------------------------------------------------

    def rank(self, request: Request, now_s: float) -> Rank:
        """Position in the waiting queue. Engines call it again when `pinned` or `preempted` has
        changed and when `wake_s` has passed; between these the rank must not change."""
        return (not request.preempted, request.arrival_s, request.id)

    def victim(self, running: Sequence[Request], now_s: float) -> Request:
        """The turn to preempt when a running turn needs a block and none is free. `running` is in
        order of admission and never empty."""
        return running[-1]

    def displaced(self, head: Request, running: Sequence[Request], now_s: float) -> Request | None:
        """The running turn to preempt for `head`, which does not fit; None to let `head` wait."""
        return None

    def reclaim(self, pins: Collection[Pin], now_s: float) -> Iterable[Pin]:
        """The order in which pins give way under memory pressure."""
        return sorted(pins, key=lambda p: (p.pinned_at_s, p.request.id))

    def review(self, pins: Collection[Pin], batch_tokens: int, now_s: float) -> Iterable[Pin]:
        """Pins to release now, with `batch_tokens` of context in the running batch."""
        return ()

    def wake_s(self, now_s: float) -> float | None:
        """Earliest time at which a rank, `displaced` or `review` may decide differently although no
        event has happened and the batch's context has only grown; None for never."""
        return None
