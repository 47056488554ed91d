"""Executes a policy inside an engine: programs, the waiting queue, pins and wake-up times.

The virtual-time engine (`servers.sim`) and the vLLM plug-in both use `PolicyRunner`. In: events of
the engine (a turn arrives, is admitted, is preempted, finishes or is aborted; a step starts). Out:
the head of the waiting queue, pins to retain and release through two hooks, and event records.
`servers.policies.base` defines when each method of the policy is called.

The clock counts whole picoseconds; the policy and the events see seconds. Standard library only,
since vLLM loads this module.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar

from servers.basics.clock import PS_PER_S, seconds
from servers.policies.base import Future, Oracle, Pin, Policy, Request, Retention
from servers.policies.pin_table import ActivePin, PinTable
from servers.policies.ranked_queue import RankedQueue
from servers.programs import MAX_PROGRAMS, EnginePrograms, PromptStart


class EngineTurn:
    """A turn inside an engine; engines derive a class with what they add."""

    __slots__ = (
        "future",
        "has_program",
        "is_internal",
        "pinned_hit",
        "program_id",
        "prompt",
        "view",
    )

    def __init__(
        self,
        view: Request,
        *,
        has_program: bool,
        is_internal: bool = False,
        future: Future | None = None,
    ) -> None:
        self.view = view
        """The turn as the policy sees it. The runner sets its `program_id` to the conversation."""
        self.program_id = view.program_id
        """The program that the client named; set by the runner."""
        self.prompt: PromptStart | None = None
        """Set by the engine before the turn arrives, unless the client marks its turns."""
        self.pinned_hit = False
        """Whether the program's pin was active when the turn arrived; set by the runner."""
        self.has_program = has_program
        """Whether the client named a program. Only such turns can be pinned."""
        self.is_internal = is_internal
        """Whether the harness sent the turn for its own purposes (a warm-up). Internal turns are
        served like others, but the policy does not see them and no events are emitted."""
        self.future = future
        """The turn's future in the trace; only an `Oracle` receives it."""

    def repeats(self, start: PromptStart) -> bool:
        """Return whether the turn's prompt begins with the blocks of an earlier prompt."""
        return True


NEVER_PS: Final = 1 << 100
"""Later than any time of an engine's clock."""
Turn = TypeVar("Turn", bound=EngineTurn)
KV = TypeVar("KV")
"""An engine's handle for releasing the blocks of a pin."""
Emit = Callable[[float, str, Turn, dict[str, Any]], None]
"""Called with the time in seconds, the event's name, its turn and its other fields."""


class PolicyRunner(Generic[Turn, KV]):
    def __init__(
        self,
        policy: Policy,
        *,
        retain_blocks: Callable[[Turn, bool], tuple[KV, int]],
        release_blocks: Callable[[KV], None],
        emit: Emit[Turn] | None,
        max_programs: int = MAX_PROGRAMS,
        idle_s: float = math.inf,
        on_program_end: Callable[[float], None] | None = None,
    ) -> None:
        """`retain_blocks(turn, whole_request)` retains the blocks of a finished turn, including a
        partly filled last block if `whole_request` is set, and returns a handle for
        `release_blocks` and the number of blocks. `idle_s` and `on_program_end` are those of
        `EnginePrograms`."""
        self.policy = policy
        self._attributes: Any = policy
        """The policy, for attributes that derived classes redefine. Without a type, since compiled
        code finds those of a typed object where the base class has them."""
        self.displaces = type(policy).displaced is not Policy.displaced
        """Whether the policy overrides `displaced`."""
        self.admits = type(policy).admit is not Policy.admit
        """Whether the policy overrides `admit`, and so may hold turns back."""
        self.now_ps = 0
        """The clock, which the engine sets before each call."""
        self.waiting: RankedQueue[Turn] = RankedQueue()
        """Turns that the engine may admit next."""
        self.queued: dict[int, Turn] = {}
        """All waiting turns by request id, including those that the engine keeps elsewhere."""
        self.pins: PinTable[Turn, KV] = PinTable()
        self.has_pinned = False
        """Whether the policy has pinned a turn."""
        self.events = 0
        """Number of events, including those that are not emitted, and of ends of programs."""
        self.wake_ps: int | None = None
        """When the policy may next decide differently without an event; None: never."""
        self._retain_blocks = retain_blocks
        self._release_blocks = release_blocks
        self._emit = emit
        self._internal_policy = Policy(policy.costs)
        """The policy for internal turns."""
        self._oracle = policy if isinstance(policy, Oracle) else None
        self._wakes = type(policy).wake_s is not Policy.wake_s
        self.reranks: bool = self._attributes.reranks
        self._programs = EnginePrograms(max_programs, idle_s, on_program_end)
        self._unranked: list[Turn] = []
        """Waiting turns whose rank is out of date."""
        self._events_at_first = -1
        """Number of events when the policy was asked about the first waiting turn in this step."""
        self._all_held_back: tuple[int, int | None, int] | None = None
        """Number of events, wake-up time and free tokens when the policy held back all turns; None
        once another turn waits."""
        self._events_at_review = -1
        self._gave_pins = False
        """Whether the policy gave up pins when it was last asked for a turn that lacked blocks."""
        self.steady_until_ps = 0
        """Until then, `start_step` need not be called. 0 after an event or the end of a program, or
        if a turn was queued or must be ranked again."""

    @property
    def programs(self) -> int:
        """Number of programs that have not ended."""
        return len(self._programs)

    @property
    def now_s(self) -> float:
        """Not kept, since most steps of vLLM do not need it, and a division of large integers uses
        code that no longer is in the CPU's caches."""
        return seconds(self.now_ps)

    # Events of the engine -----------------------------------------------------------------------

    def arrived(self, turn: Turn) -> None:
        """Count the turn as waiting. The engine calls `push` once it may be admitted."""
        view = turn.view
        turn.program_id = view.program_id
        program, conversation = self._programs.turn_arrived(
            view.program_id, view.arrival_s, turn.prompt, turn.repeats
        )
        view.program_id, view.index = conversation.id, conversation.turns - 1
        view.program_arrival_s = program.arrival_s
        for ended in self._programs.end_oldest(program, self.now_s):
            self._end_conversation(ended)
        view.pinned = turn.pinned_hit = view.program_id in self.pins
        if self._oracle is not None and turn.future is not None:
            self._oracle.foresee(view, turn.future)
        self._policy_for(turn).arrived(view, self.now_s)
        self._start_waiting(turn)
        self.record("arrival", turn)

    def admitted(
        self, turn: Turn, length: int, cached_tokens: int, external_tokens: int = 0
    ) -> None:
        """Record that the turn's blocks are allocated. Its program's pin is released only now,
        since blocks of the pin beyond the turn's hit must not be used for the turn's admission.

        `length`: prompt tokens, and tokens generated before a preemption.
        `external_tokens`: the part of `cached_tokens` that an offload tier supplies."""
        view = turn.view
        self._stop_waiting(turn)
        self._policy_for(turn).scheduled(view, self.now_s, cached_tokens)
        event = "evicted_to_running" if view.preempted else "waiting_to_running"
        fields: dict[str, Any] = {"prompt_length": length, "hit_length": cached_tokens}
        if external_tokens:
            fields["external_length"] = external_tokens
        self.record(event, turn, **fields)
        self.unpin(view.program_id, "reused")
        view.pinned = view.preempted = False

    def preempted(self, turn: Turn) -> None:
        """Record that the turn lost its KV. The engine calls `push` once it may be readmitted."""
        view = turn.view
        view.preempted = True
        view.pinned = view.program_id in self.pins
        self._policy_for(turn).preempted(view, self.now_s)
        self._start_waiting(turn)
        self.record("preempted", turn)

    def finished(self, turn: Turn, tokens: int) -> bool:
        """Record that the turn's last token was sampled, with the KV of `tokens` tokens on the
        device. Return whether a pin retains its blocks; if not, the engine frees them."""
        view = turn.view
        self._stop_waiting(turn)
        policy = self._policy_for(turn)
        retention = policy.finished(view, self.now_s)
        if not isinstance(retention, Retention):
            raise TypeError(
                f"policy {policy.name}: finished() returned {retention!r}; "
                "it must return a Retention"
            )
        self.record("finished", turn)
        self.unpin(view.program_id, "replaced")
        goes_on = self._programs.turn_ended(turn.program_id, view.program_id, self.now_s)
        pins = retention.kind == "pin" and turn.has_program
        retained = pins and goes_on and not view.is_last
        if retained:
            self._pin(turn, tokens, retention)
        self._end_with_turn(turn)
        return retained

    def aborted(self, turn: Turn) -> None:
        """Record that the client cancelled the turn while it waited or ran."""
        self._stop_waiting(turn)
        self._policy_for(turn).aborted(turn.view, self.now_s)
        self._programs.turn_ended(turn.program_id, turn.view.program_id, self.now_s)
        self._end_with_turn(turn)
        self.record("aborted", turn)

    def end_program(self, program_id: str) -> None:
        """End the program, which sends no more turns, and release its pins."""
        for conversation_id in self._programs.end(program_id):
            self._end_conversation(conversation_id)

    def _end_conversation(self, conversation_id: str) -> None:
        self.steady_until_ps = 0
        self.events += 1
        self.unpin(conversation_id, "ended")
        self.policy.program_ended(conversation_id, self.now_s)

    def record(self, event: str, turn: Turn, **fields: Any) -> None:
        """Count an event and emit it."""
        self.steady_until_ps = 0
        if not turn.is_internal:
            self.events += 1
            if self._emit is not None:
                self._emit(self.now_s, event, turn, fields)

    def _end_with_turn(self, turn: Turn) -> None:
        """End the turn's program if this was its last turn, or if the client named no program."""
        if not turn.view.is_last and turn.has_program:
            return
        counts = turn.has_program and not turn.is_internal
        for conversation_id in self._programs.end(turn.program_id, counts=counts):
            if not turn.is_internal:
                self._end_conversation(conversation_id)

    def _policy_for(self, turn: Turn) -> Policy:
        return self._internal_policy if turn.is_internal else self.policy

    # Waiting queue ------------------------------------------------------------------------------

    def push(self, turn: Turn) -> None:
        """Queue a waiting turn for admission, at its current rank."""
        self._all_held_back = None
        self.steady_until_ps = 0
        policy = self._internal_policy if turn.is_internal else self.policy
        self.waiting.push(turn.view.id, policy.rank(turn.view, self.now_s), turn)

    def head(self) -> Turn:
        """Return the waiting turn of smallest rank; raise IndexError if there is none."""
        if self.reranks:
            self._find_unranked()
        while self._unranked:
            self._rerank()
        return self.waiting.peek()

    def candidate(self, other_turns: int, free_tokens: int) -> Turn | None:
        """Return the waiting turn that may be admitted next, or None if none waits or the policy
        holds back all that do. Engines need this only if `admits`, and call `requeue_skipped` after
        the last call in a step.

        `other_turns`: the number of running and loading turns. If it is 0, no turn is held back.
        The policy is not asked again while it would hold back all turns as before."""
        held = self._all_held_back
        if other_turns and held is not None:
            events, wake_ps, free = held
            if events == self.events and wake_ps == self.wake_ps and free_tokens <= free:
                return None
        if not self.waiting.skipped:
            self._events_at_first = self.events
        while len(self.waiting):
            head = self.head()
            if other_turns == 0 or head.is_internal:
                return head
            answer = self.policy.admit(head.view, free_tokens, self.now_s)
            if answer == "run":
                return head
            if answer == "stop":
                break
            self.waiting.skip(head.view.id)
        if self._events_at_first == self.events:
            self._all_held_back = (self.events, self.wake_ps, free_tokens)
        return None

    def requeue_skipped(self) -> None:
        """Let the policy consider the turns again that it skipped."""
        self.waiting.end_skips()

    def rerank_all(self) -> None:
        """Rank all waiting turns again before the next one is admitted."""
        self.steady_until_ps = 0
        self._unranked += [turn for turn in self.waiting.items() if not turn.is_internal]

    def needs_rerank(self, turn: Turn) -> bool:
        """Return whether the turn's rank is out of date, so that it may no longer be the head."""
        return turn in self._unranked

    def _rerank(self) -> None:
        turns, self._unranked = self._unranked, []
        for turn in turns:
            if turn.view.id in self.waiting:
                self.push(turn)

    def _start_waiting(self, turn: Turn) -> None:
        self.queued[turn.view.id] = turn
        self.pins.turn_queued(turn.view.program_id)

    def _stop_waiting(self, turn: Turn) -> None:
        if self.queued.pop(turn.view.id, None) is not None:
            self.pins.turn_dequeued(turn.view.program_id)

    # Start of a step ----------------------------------------------------------------------------

    def start_step(self, batch_tokens: Callable[[], int]) -> None:
        """Release pins that expired or that the policy's `review` returns, and update ranks that
        change with time. `batch_tokens` returns the context of the running turns, in tokens."""
        self.steady_until_ps = NEVER_PS
        if len(self.pins):
            for program_id in self.pins.expired(self.now_ps):
                self.unpin(program_id, "expired")
            if self._attributes.reviews_pins and self._may_decide_differently():
                self._events_at_review = self.events
                pins = self.pins.offered()
                for pin in list(self.policy.review(pins, batch_tokens(), self.now_s)):
                    self.unpin(pin.program_id, "review")
        if self._wakes:
            self._wake()
        if self._unranked:
            self._rerank()
        if self.steady_until_ps:
            change_ps = self.next_change_ps()
            self.steady_until_ps = NEVER_PS if change_ps is None else change_ps

    def next_change_ps(self) -> int | None:
        """Return the next time at which a pin expires or the policy may decide differently."""
        expiry_ps = self.pins.next_expiry_ps()
        if self.wake_ps is None or (expiry_ps is not None and expiry_ps < self.wake_ps):
            return expiry_ps
        return self.wake_ps

    def _may_decide_differently(self) -> bool:
        """Return whether `review` may return other pins than at its last call, because `wake_s` has
        passed or an event has happened. Without an event the batch's context only grows."""
        due = self.wake_ps is not None and self.wake_ps <= self.now_ps
        return due or self.events != self._events_at_review

    def _wake(self) -> None:
        if self.wake_ps is not None and self.wake_ps <= self.now_ps:
            self._find_unranked()
        wake_s = self.policy.wake_s(self.now_s)
        if wake_s is None or math.isinf(wake_s):
            self.wake_ps = None
        else:
            self.wake_ps = max(math.ceil(wake_s * PS_PER_S), self.now_ps + 1)

    def _find_unranked(self) -> None:
        changed = self.policy.woke(self.now_s)
        turns = self.waiting.items() if changed is None else self.waiting.of(changed)
        self._unranked += [turn for turn in turns if not turn.is_internal]

    # Pins ---------------------------------------------------------------------------------------

    def unpin(self, program_id: str, reason: str) -> bool:
        """Release the program's pin; return whether there was one."""
        active = self.pins.pop(program_id)
        if active is None:
            return False
        self._release_blocks(active.kv)
        self.policy.unpinned(active.pin, self.now_s)
        self.record("unpinned", active.turn, reason=reason)
        if self.pins.has_waiting_turn(program_id):
            for turn in self.queued.values():
                if turn.view.program_id == program_id:
                    turn.view.pinned = False
                    self._unranked.append(turn)
        return True

    def may_reclaim(self, other_turns: int) -> bool:
        """Return whether pins may be reclaimed for a turn that lacks blocks: always if the policy's
        `reclaim_when` is "pressure"; if it is "stuck", only if no other turn can free blocks.

        `other_turns`: for a waiting turn, the number of running and loading turns; for a running
        turn, the number of other running turns, so that pins are reclaimed if it runs alone."""
        reclaim_when: str = self._attributes.reclaim_when
        return reclaim_when == "pressure" or other_turns == 0

    def would_reclaim(self, head: Turn, other_turns: int) -> bool:
        """Return whether a pin may be released for a waiting turn that lacks blocks. The policy is
        asked if it gave up none the last time; if it did, its answer may take long."""
        if not other_turns:
            return True
        if not self.may_reclaim(other_turns):
            return False
        if self._gave_pins:
            return True
        offered = self.pins.offered(head.view.program_id)
        policy = self._policy_for(head)
        return len(offered) > 0 and any(policy.reclaim(offered, head.view, self.now_s))

    def _reclaim(
        self, turn: Turn, missing: Callable[[], int], *, alone: bool, spare: str | None = None
    ) -> bool:
        """Release pins in the policy's order until `missing()`, in blocks, is at most 0. Release
        none if they would not suffice. The pin of program `spare` is never released.

        `alone`: no other turn can free blocks, so that the policy cannot keep a pin."""
        offered = self.pins.offered(spare)
        spared = [] if spare is None or spare not in self.pins else [spare]
        if not offered:
            return False
        lacking = missing()
        if self.pins.blocks - self.pins.blocks_of(spared) < lacking:
            return False
        policy = self._policy_for(turn)
        chosen = [pin.program_id for pin in policy.reclaim(offered, turn.view, self.now_s)]
        self._gave_pins = len(chosen) > 0
        if alone:
            rest = [pin.program_id for pin in self.pins.offered(spare)]
            chosen += [program_id for program_id in rest if program_id not in chosen]
        elif self.pins.blocks_of(chosen) < lacking:
            return False
        for program_id in chosen:
            self.unpin(program_id, "pressure")
            if missing() <= 0:
                break
        return True

    def reclaim_for_running(
        self, turn: Turn, running_turns: int, missing: Callable[[], int]
    ) -> bool:
        """Release pins for a running turn; return whether the turn should try again."""
        others = running_turns - 1
        return self.may_reclaim(others) and self._reclaim(turn, missing, alone=not others)

    def reclaim_for_head(self, head: Turn, other_turns: int, missing: Callable[[], int]) -> bool:
        """Release pins for the head of the queue; return whether the queue should try again. Call
        this only if `may_reclaim(other_turns)`. The head's own pin is released only if no other
        turn and no other pin can free memory."""
        own = head.view.program_id
        if self._reclaim(head, missing, alone=not other_turns, spare=own):
            return True
        if other_turns:
            return False
        return self.unpin(own, "pressure") or self._reclaim(head, lambda: 0, alone=True)

    def _pin(self, turn: Turn, tokens: int, retention: Retention) -> None:
        self.has_pinned = True
        kv, blocks = self._retain_blocks(turn, retention.whole_request)
        ttl_s: float | None = float(retention.ttl_s)
        pin = Pin(turn.view, tokens, self.now_s, self.now_s + retention.ttl_s)
        expires_ps = None
        if math.isinf(retention.ttl_s):
            ttl_s = None
        else:
            expires_ps = self.now_ps + math.ceil(retention.ttl_s * PS_PER_S)
        self.pins.add(ActivePin(pin, turn, kv, blocks, expires_ps))
        self.policy.pinned(pin, self.now_s)
        self.record("pinned", turn, ttl_s=ttl_s, blocks=blocks, why=dict(retention.why))
