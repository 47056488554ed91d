"""What a scheduling policy is: the decisions it makes and the values it sees.

A policy is pure: plain values and `now_s` in, a decision out. It imports no engine, reads no clock,
does no I/O, and knows nothing of a trace's future (`Oracle` is the marked exception). The same
object runs in the virtual-time engine and inside vLLM, so this package needs the standard library
only. Times are seconds on the engine's clock, contexts are tokens.

`Policy` itself behaves like stock vLLM (first come first served, latest admitted is preempted, KV
freed at the end of a turn); a policy overrides what it decides differently.
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
    """How many turns of this program the engine saw before this one."""
    arrival_s: float
    """When this turn reached the server."""
    program_arrival_s: float
    """When the first turn of its program reached the server."""
    prompt_tokens: int
    is_last: bool | None = None
    """Last turn of its program; None where the client did not say."""
    output_tokens: int = 0
    """Generated so far; complete when `finished` is called."""
    tools: tuple[str, ...] = ()
    """Tools that the answer calls, in order (first words of a bash line); known once finished."""
    pinned: bool = False
    """The KV of its program's previous turn is held by a pin."""
    preempted: bool = False
    """It ran, was preempted, and waits to run again."""

    @property
    def tool(self) -> str | None:
        """Whose time the gap is: `cd x && pytest -q` is a pytest (Continuum v3, App. B)."""
        for name in self.tools:
            if name not in SHELL_PREAMBLE:
                return name
        return self.tools[-1] if self.tools else None

    @property
    def ends_program(self) -> bool:
        """Said to be the last turn, or, where nothing was said, calls no tool (v3, §5.2)."""
        return not self.tools if self.is_last is None else self.is_last


SHELL_PREAMBLE = frozenset({"cd", "export", "set", "source", ".", "pushd", "popd", "true", ":"})
"""First words that prepare a command line rather than do its work."""


@dataclass(frozen=True, slots=True)
class Retention:
    """What becomes of a finished turn's KV on the device, and the inputs that led to it."""

    kind: Literal["free", "pin"] = "free"
    ttl_s: float = 0.0
    """How long a pin holds; `math.inf` for one that only `review` or pressure ends."""
    whole_request: bool = False
    """Hold the partly filled last block too, which no later turn can reuse (public fork)."""
    why: Mapping[str, float | str | None] = field(default_factory=dict)


FREE = Retention()


def pin(ttl_s: float, *, whole_request: bool = False, **why: float | str | None) -> Retention:
    """Hold the KV for `ttl_s` seconds. A TTL of zero or less is a plain free."""
    if math.isnan(ttl_s):
        raise ValueError(f"ttl_s is not a number, inputs were {why}")
    return Retention("pin" if ttl_s > 0 else "free", max(ttl_s, 0.0), whole_request, why)


@dataclass(slots=True, eq=False)
class Pin:
    """KV held after a turn's end, as a policy sees it when memory is short."""

    request: Request
    """The finished turn that left it."""
    tokens: int
    """Context held, in tokens."""
    pinned_at_s: float
    expires_at_s: float

    @property
    def program_id(self) -> str:
        return self.request.program_id


@dataclass(frozen=True, slots=True)
class Costs:
    """What rebuilding a context costs on this engine, from its profile (Continuum v3, §5.2)."""

    prefill_s: Callable[[int], float]
    """Seconds to prefill a context of so many tokens in an otherwise idle engine."""
    reload_s: Callable[[int], float] | None = None
    """Seconds to load so many tokens from the offload tier; None without a tier."""
    step_tokens: int = 2048
    """Tokens that one step may prefill (chunk size)."""

    def rebuild_s(self, tokens: int) -> float:
        """PrefillReload(r): load if there is a tier, else prefill (v3, §4.1)."""
        return self.prefill_s(tokens) if self.reload_s is None else self.reload_s(tokens)


class Future(NamedTuple):
    """What only a trace knows of a turn. Given to bounds, never to a real policy."""

    tool_gap_s: float | None
    """Until the program's next turn arrives; None after the last."""
    remaining_prompt_tokens: int
    """New prompt tokens of this and all later turns."""
    remaining_output_tokens: int
    """Output tokens of this and all later turns."""


class Oracle:
    """Mix-in that marks a bound: engines in virtual time call `foresee` before `arrived`."""

    def foresee(self, request: Request, future: Future) -> None:
        raise NotImplementedError


Rank = tuple[Any, ...]
"""Sorts ascending; built of numbers only, the last being `request.id`, so that no two are equal."""


class Policy:
    """Stock vLLM's decisions; the contract of every policy.

    Engines call the event methods in time order, each once per event, and may call the decision
    methods as often as they like: those must not change state.
    """

    name: ClassVar[str]
    """As on the command line."""
    source: ClassVar[str] = ""
    """Where it is published."""
    reclaim_when: Literal["stuck", "pressure"] = "stuck"
    """When pins give way: only when nothing runs and the head of the queue does not fit ("stuck"),
    or whenever a turn does not fit ("pressure")."""
    reviews_pins: ClassVar[bool] = False
    """Whether `review` is to be called at the start of each scheduling step."""

    def __init__(self, costs: Costs) -> None:
        self.costs = costs

    # Events -------------------------------------------------------------------------------------

    def arrived(self, request: Request, now_s: float) -> None:
        """A turn entered the waiting queue."""

    def scheduled(self, request: Request, now_s: float, cached_tokens: int) -> None:
        """It is admitted, with so much of its prompt cached; again after each preemption.
        `request.preempted` and `request.pinned` still say how it waited."""

    def preempted(self, request: Request, now_s: float) -> None:
        """It lost its KV and waits again."""

    def finished(self, request: Request, now_s: float) -> Retention:
        """Its last token is out: keep its KV, or free it. Called for last turns too, whose
        retention engines ignore."""
        return FREE

    def aborted(self, request: Request, now_s: float) -> None:
        """The client gave it up, waiting or running; `finished` will not be called."""

    def program_ended(self, program_id: str, now_s: float) -> None:
        """No more turns will come. Not every engine learns of it."""

    # Decisions ----------------------------------------------------------------------------------

    def rank(self, request: Request, now_s: float) -> Rank:
        """Place in the waiting queue. Engines ask again when `pinned` or `preempted` changed and
        when `wake_s` has passed; in between the rank must not change."""
        return (not request.preempted, request.arrival_s, request.id)

    def victim(self, running: Sequence[Request], now_s: float) -> Request:
        """Who loses its KV when a running turn needs a block and none is free. `running` is in
        order of admission and never empty."""
        return running[-1]

    def displaced(self, head: Request, running: Sequence[Request], now_s: float) -> Request | None:
        """A running turn to preempt for `head`, which does not fit; None to let it wait."""
        return None

    def reclaim(self, pins: Collection[Pin], now_s: float) -> Iterable[Pin]:
        """In which order pins give way under memory pressure."""
        return sorted(pins, key=lambda p: (p.pinned_at_s, p.request.id))

    def review(self, pins: Collection[Pin], batch_tokens: int, now_s: float) -> Iterable[Pin]:
        """Pins to release now, with so many tokens of context in the running batch."""
        return ()

    def wake_s(self, now_s: float) -> float | None:
        """Lower bound of the time at which a rank, `displaced` or `review` may decide differently
        with no event in between and a batch whose context only grows. None: never."""
        return None
