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
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal, NamedTuple

from servers.admission import STEP_TOKENS
from servers.basics.compiled_core import mypyc_attr

# Compiled, a constructor that is written out is faster than one that `dataclass` generates.


@dataclass(slots=True, eq=False, init=False)
class Request:
    """One turn, as policies see it. Engines write it, policies only read it."""

    id: int
    """Unique within one engine, in order of arrival."""
    program_id: str
    """The job. If the client sends none, the engine makes a unique id for the turn."""
    index: int
    """Number of earlier turns of this program on this engine."""
    arrival_s: float
    """When this turn reached the server."""
    program_arrival_s: float
    """When the first turn of its program reached the server."""
    prompt_tokens: int
    is_last: bool | None = None
    """Whether this is the last turn of its program; None if the client does not mark last turns."""
    output_tokens: int = 0
    """Number of generated tokens; complete when `finished` is called."""
    tools: tuple[str, ...] = ()
    """Tools that the answer calls, in order (first words of a bash line); empty until the turn has
    finished. `unknown` stands for calls in a format that is not known."""
    pinned: bool = False
    """Whether a pin retains the KV of its program's previous turn."""
    preempted: bool = False
    """Whether it was preempted and waits to run again."""

    def __init__(
        self,
        id: int,
        program_id: str,
        index: int,
        arrival_s: float,
        program_arrival_s: float,
        prompt_tokens: int,
        is_last: bool | None = None,
        output_tokens: int = 0,
        tools: tuple[str, ...] = (),
        pinned: bool = False,
        preempted: bool = False,
    ) -> None:
        self.id = id
        self.program_id = program_id
        self.index = index
        self.arrival_s = arrival_s
        self.program_arrival_s = program_arrival_s
        self.prompt_tokens = prompt_tokens
        self.is_last = is_last
        self.output_tokens = output_tokens
        self.tools = tools
        self.pinned = pinned
        self.preempted = preempted

    @property
    def tool(self) -> str | None:
        """The tool to which the time until the next turn is attributed: `pytest` for
        `cd x && pytest -q` (Continuum v3, App. B)."""
        for name in self.tools:
            if name not in SHELL_PREAMBLE:
                return name
        return self.tools[-1] if self.tools else None

    @property
    def ends_program(self) -> bool:
        """Whether the client marked this turn as the last or, if it marks no turns, whether the
        turn calls no tool (v3, §5.2)."""
        return not self.tools if self.is_last is None else self.is_last


SHELL_PREAMBLE = frozenset({"cd", "export", "set", "source", ".", "pushd", "popd", "true", ":"})
"""Shell commands that only prepare the command that follows."""


@dataclass(slots=True, init=False)
class Retention:
    """Whether the KV of a finished turn stays on the device, and the inputs of that decision."""

    kind: Literal["free", "pin"]
    ttl_s: float
    """Time until the pin expires; `math.inf` if only `review` or memory pressure releases it."""
    whole_request: bool
    """Whether to retain the partly filled last block too, which no later turn can reuse. Only
    Continuum's public fork does."""
    why: Mapping[str, float | str | None]

    def __init__(
        self,
        kind: Literal["free", "pin"] = "free",
        ttl_s: float = 0.0,
        whole_request: bool = False,
        why: Mapping[str, float | str | None] | None = None,
    ) -> None:
        self.kind = kind
        self.ttl_s = ttl_s
        self.whole_request = whole_request
        self.why = why or {}


FREE = Retention()


def pin(ttl_s: float, *, whole_request: bool = False, **why: float | str | None) -> Retention:
    """Return the decision to retain the KV for `ttl_s` seconds, or to free it if that is zero or
    less. Engines write `why`, the inputs of the decision, to their event log. Raises ValueError if
    `ttl_s` is NaN."""
    if math.isnan(ttl_s):
        raise ValueError(f"ttl_s is NaN; the inputs were {why}")
    return Retention("pin" if ttl_s > 0 else "free", max(ttl_s, 0.0), whole_request, why)


@dataclass(slots=True, eq=False, init=False)
class Pin:
    """The retained KV of a finished turn."""

    request: Request
    """The finished turn."""
    program_id: str
    tokens: int
    """Length of the retained context."""
    pinned_at_s: float
    expires_at_s: float

    def __init__(
        self, request: Request, tokens: int, pinned_at_s: float, expires_at_s: float
    ) -> None:
        self.request = request
        self.program_id = request.program_id
        self.tokens = tokens
        self.pinned_at_s = pinned_at_s
        self.expires_at_s = expires_at_s


@dataclass(frozen=True, slots=True)
class Costs:
    """Cost of rebuilding a context on this engine, from its profile (Continuum v3, §5.2)."""

    prefill_s: Callable[[int], float]
    """Seconds to prefill a context of n tokens in an otherwise idle engine."""
    reload_s: Callable[[int], float] | None = None
    """Seconds to load n tokens from the offload tier; None without a tier."""
    step_tokens: int = STEP_TOKENS
    """Maximum number of tokens that one step prefills (chunk size)."""
    kv_tokens: float = math.inf
    """Tokens of KV that the device holds; infinite if unknown."""
    decode_step_s: Callable[[int, int], float] | None = None
    """Seconds of a step that generates one token for each of n turns, which have m tokens of
    context in total; None if unknown."""

    def rebuild_s(self, tokens: int) -> float:
        """Return PrefillReload(r): seconds to load with a tier, else to prefill (v3, §4.1)."""
        return self.prefill_s(tokens) if self.reload_s is None else self.reload_s(tokens)

    def decode_s(self, turns: int, context_tokens: int) -> float:
        """Return the seconds of a decode step. If the engine does not know its decode steps, they
        take as long as a prefill of one token for each turn."""
        if self.decode_step_s is None:
            return self.prefill_s(turns)
        return self.decode_step_s(turns, context_tokens)


class Future(NamedTuple):
    """Facts about a turn from the trace's future. Only an `Oracle` receives them."""

    tool_gap_s: float | None
    """Seconds until the program's next turn arrives; None after its last turn."""
    remaining_prompt_tokens: int
    """New prompt tokens of this and all later turns."""
    remaining_output_tokens: int
    """Output tokens of this and all later turns."""


UNLIMITED_KV: Final = "unlimited KV"
Need = Literal["tier", "tool names", "ends of programs", "the future", "unlimited KV"]
"""What a policy cannot work without, or uses if it is known: an offload tier, the tools that an
answer calls, which turn of a program is the last, the trace's future, and KV memory without a
limit."""
Rank = tuple[Any, ...]
"""Numbers that sort ascending. The last one is `request.id`, so that no two ranks are equal."""
Admit = Literal["run", "skip", "stop"]
"""An answer of `Policy.admit`."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Policy:
    """The contract of every policy, with the decisions of stock vLLM.

    Engines call the event methods in time order, each once per event. They may call the decision
    methods any number of times, so those must not change state. Keyword parameters of the
    constructor are the policy's arguments on the command line; give them types and defaults.
    """

    name: ClassVar[str]
    """Name on the command line and in reports."""
    source: ClassVar[str] = ""
    """The publication that describes it."""
    needs: ClassVar[tuple[Need, ...]] = ()
    """What it makes use of. A policy that needs a tier is refused without one."""
    checked: ClassVar[str] = ""
    """How it was compared with the code of its authors; empty if it was not."""
    reclaim_when: Literal["stuck", "pressure"] = "stuck"
    """When pins are reclaimed for a turn that lacks blocks: only if no other turn can free blocks
    ("stuck"), or always ("pressure"). `PolicyRunner.may_reclaim` is the exact rule."""
    reviews_pins: ClassVar[bool] = False
    """Whether engines call `review` at the start of each scheduling step."""
    reranks: ClassVar[bool] = False
    """Whether events may change the ranks of other waiting turns. Engines then call `woke` before
    each admission too."""

    def __init__(self, costs: Costs) -> None:
        self.costs = costs

    # Events -------------------------------------------------------------------------------------

    def arrived(self, request: Request, now_s: float) -> None:
        """The turn entered the waiting queue."""

    def scheduled(self, request: Request, now_s: float, cached_tokens: int) -> None:
        """The turn was admitted, with `cached_tokens` of its prompt cached; called again after each
        preemption. `request.preempted` and `request.pinned` keep their values until it returns."""

    def preempted(self, request: Request, now_s: float) -> None:
        """The turn lost its KV and waits again."""

    def finished(self, request: Request, now_s: float) -> Retention:
        """The turn's last token was generated. Return whether to retain its KV. Engines call this
        for last turns too, and ignore the result."""
        return FREE

    def aborted(self, request: Request, now_s: float) -> None:
        """The client cancelled the turn while it waited or ran; `finished` will not be called."""

    def pinned(self, pin: Pin, now_s: float) -> None:
        """The engine retained the KV of a finished turn, as `finished` decided."""

    def unpinned(self, pin: Pin, now_s: float) -> None:
        """The pin ended: a turn of its program was admitted, it expired, or it was released."""

    def program_ended(self, program_id: str, now_s: float) -> None:
        """The program sends no more turns. Engines cannot call this if no client reports it."""

    def woke(self, now_s: float) -> Iterable[int] | None:
        """The time that `wake_s` returned has passed. Return the ids of the waiting turns whose
        ranks may have changed since the last call, or None to rank all of them again. Ids of turns
        that have left the queue are ignored."""
        return None

    # Decisions ----------------------------------------------------------------------------------

    def rank(self, request: Request, now_s: float) -> Rank:
        """Return the position in the waiting queue. Engines call this again when `pinned` or
        `preempted` changes and when `woke` says so; at other times the rank must not change. A
        policy whose ranks depend on other turns sets `reranks`, and one whose ranks depend on the
        time returns from `wake_s` when they change; the contract check refuses one whose order
        changes in between."""
        return (not request.preempted, request.arrival_s, request.id)

    def admit(self, request: Request, free_tokens: int, now_s: float) -> Admit:
        """Return "run" to admit the waiting turn if it fits, "skip" to hold it back and consider
        the next turn in rank, or "stop" to admit no more turns in this step.

        Engines call this in order of rank, but not while no turn runs or loads: then the turn of
        smallest rank is admitted, so that no policy can stop the engine. If pins are released for a
        turn, it is admitted without being considered again. `free_tokens` is the KV that is neither
        pinned nor in use by a running turn. It falls while a batch runs: until the next event or
        `wake_s`, the answer for a turn that still waits may only change to "stop"."""
        return "run"

    def victim(self, running: Sequence[Request], now_s: float) -> Request:
        """Return the turn to preempt when a running turn needs a block and none is free. `running`
        is in order of admission and never empty."""
        return running[-1]

    def displaced(self, head: Request, running: Sequence[Request], now_s: float) -> Request | None:
        """Return the running turn to preempt for `head`, which does not fit; None for no turn.
        Engines may keep this answer until `wake_s`, another head, another value of its `pinned`, or
        other running turns."""
        return None

    def reclaim(self, pins: Collection[Pin], request: Request, now_s: float) -> Iterable[Pin]:
        """Return the pins that may be released for a running or waiting turn that lacks blocks, in
        that order. Engines release none of them if all together do not suffice. If no other turn
        can free blocks they release the pins that are left out too, oldest first."""
        return sorted(pins, key=lambda p: (p.pinned_at_s, p.request.id))

    def review(self, pins: Collection[Pin], batch_tokens: int, now_s: float) -> Iterable[Pin]:
        """Return the pins to release now; `batch_tokens` is the context of the running batch."""
        return ()

    def wake_s(self, now_s: float) -> float | None:
        """Return the earliest time at which `rank`, `admit`, `displaced` or `review` may decide
        differently, or `reclaim` may return other pins, although no event has happened and the
        batch's context has only grown; None for never."""
        return None


@mypyc_attr(allow_interpreted_subclasses=True)
class Oracle(Policy):
    """A reference: engines in virtual time call `foresee` before `arrived`."""

    def foresee(self, request: Request, future: Future) -> None:
        raise NotImplementedError
