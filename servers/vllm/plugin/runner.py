"""Runs a policy inside an engine: asks it at the moments that `servers.policies.base` names, and
keeps what goes with it: queue, pins, programs.

In: what the engine does (a turn arrives, is admitted, preempted, finished, given up). Out: the
head of the queue, KV released through `release`, events through `emit`. It knows nothing of vLLM,
and does what `servers.sim.scheduler` does at the same moments. Times are seconds to the policy and
whole picoseconds inside, so that both engines compare them alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

from servers.policies.base import Pin, Policy
from servers.ranked_queue import Held, Pins, RankedQueue
from servers.vllm.plugin.request_tags import Turn

PS_PER_S = 10**12

KV = TypeVar("KV")
"""What the engine needs to release a pin."""


class Kept(NamedTuple, Generic[KV]):
    turn: Turn
    kv: KV


class PolicyRunner(Generic[KV]):
    def __init__(
        self,
        policy: Policy,
        release: Callable[[KV], None],
        emit: Callable[[float, str, Turn, dict[str, object]], None],
    ) -> None:
        self.policy = policy
        self._stock = Policy(policy.costs)
        """Decides for turns that warm an engine up: the policy never hears of them."""
        self.now_s = 0.0
        self.waiting: RankedQueue[Turn] = RankedQueue()
        """Turns that the engine may admit next."""
        self.queued: dict[int, Turn] = {}
        """All turns that wait, whichever queue the engine has them in."""
        self.pins: Pins[Kept[KV]] = Pins()
        self.events = 0
        """Rises with each event that the policy is told of, and each pin's end."""
        self._reviewed = -1
        """`events` at the last review."""
        self._release = release
        self._emit = emit
        self._programs: dict[str, tuple[float, int]] = {}
        """Arrival and turns so far of each program that has not ended."""
        self._moved: list[Turn] = []
        """Turns whose rank has to be asked for again."""
        self._wakes = type(policy).wake_s is not Policy.wake_s
        self.wake_ps: int | None = None

    def set_clock(self, now_s: float) -> None:
        self.now_s = now_s

    @property
    def now_ps(self) -> int:
        return round(self.now_s * PS_PER_S)

    # Events -------------------------------------------------------------------------------------

    def arrived(self, turn: Turn) -> None:
        """The engine queues the turn next, and `push`es it where it may be admitted."""
        view = turn.view
        if turn.said.ended is not None:
            self.end_program(turn.said.ended)
        view.program_arrival_s, view.index = self._programs.get(
            view.program_id, (view.arrival_s, 0)
        )
        self._programs[view.program_id] = (view.program_arrival_s, view.index + 1)
        view.pinned = turn.pinned_hit = view.program_id in self.pins
        self._for(turn).arrived(view, self.now_s)
        self._wait(turn)
        self._tell("arrival", turn)

    def admitted(self, turn: Turn, length: int, cached_tokens: int, external_tokens: int) -> None:
        """It has its blocks; `length` is its prompt and what it generated before a preemption.
        Of the cached tokens, the external ones come from an offload tier."""
        view = turn.view
        self._stop_waiting(turn)
        self._for(turn).scheduled(view, self.now_s, cached_tokens)
        event = "evicted_to_running" if view.preempted else "waiting_to_running"
        hits = {"hit_length": cached_tokens}
        if external_tokens:
            hits["external_length"] = external_tokens
        self._tell(event, turn, prompt_length=length, **hits)
        if turn.admitted_s is None:
            turn.admitted_s, turn.hit_tokens = self.now_s, cached_tokens
        self.unpin(view.program_id, "reused")
        view.pinned = view.preempted = False

    def loading(self, turn: Turn, tokens: int) -> None:
        """A tier brings them while the engine goes on; the turn runs once it is `loaded`."""
        self._tell("loading", turn, tokens=tokens)

    def loaded(self, turn: Turn) -> None:
        self._tell("loaded", turn)

    def preempted(self, turn: Turn) -> None:
        view = turn.view
        view.preempted = True
        view.pinned = view.program_id in self.pins
        self._for(turn).preempted(view, self.now_s)
        self._wait(turn)
        self._tell("preempted", turn)

    def finished(self, turn: Turn, tokens: int, hold: Callable[[bool], tuple[KV, int]]) -> None:
        """`hold` keeps the KV of the turn's `tokens` (its partly filled last block too if asked)
        and returns it with its blocks."""
        view = turn.view
        self._stop_waiting(turn)
        retention = self._for(turn).finished(view, self.now_s)
        self._tell("finished", turn)
        self.unpin(view.program_id, "replaced")
        named = turn.said.program_id is not None
        if retention.kind == "pin" and not view.is_last and named:
            held, ttl_s = hold(retention.whole_request), retention.ttl_s
            self._pin(turn, tokens, held, ttl_s)
            said_s = None if math.isinf(ttl_s) else ttl_s
            self._tell("pinned", turn, ttl_s=said_s, blocks=held[1], why=dict(retention.why))
        if view.is_last or not named:
            self._end(turn)

    def aborted(self, turn: Turn) -> None:
        view = turn.view
        self._stop_waiting(turn)
        self._for(turn).aborted(view, self.now_s)
        if view.is_last or turn.said.program_id is None:
            self._end(turn)
        self._tell("aborted", turn)

    def _end(self, turn: Turn) -> None:
        if turn.said.nobodys:
            self._programs.pop(turn.view.program_id, None)
        else:
            self.end_program(turn.view.program_id)

    def _for(self, turn: Turn) -> Policy:
        return self._stock if turn.said.nobodys else self.policy

    def end_program(self, program_id: str) -> None:
        if self._programs.pop(program_id, None) is not None:
            self.policy.program_ended(program_id, self.now_s)
        self.unpin(program_id, "ended")

    # Queue --------------------------------------------------------------------------------------

    def push(self, turn: Turn) -> None:
        self.waiting.push(turn.view.id, self._for(turn).rank(turn.view, self.now_s), turn)

    def rerank_moved(self) -> None:
        """Not while the engine admits the head: it must find the same head afterwards."""
        moved, self._moved = self._moved, []
        for turn in moved:
            if turn.view.id in self.waiting:
                self.push(turn)

    def _wait(self, turn: Turn) -> None:
        self.queued[turn.view.id] = turn
        self.pins.returned(turn.view.program_id)

    def _stop_waiting(self, turn: Turn) -> None:
        if self.queued.pop(turn.view.id, None) is not None:
            self.pins.left(turn.view.program_id)

    # Pins ---------------------------------------------------------------------------------------

    def start_step(self, batch_tokens: Callable[[], int]) -> None:
        """Pins that are over go, and ranks that change with time are asked for again."""
        if len(self.pins):
            for program_id in self.pins.expired(self.now_ps):
                self.unpin(program_id, "expired")
            if self.policy.reviews_pins and self._may_decide_differently():
                self._reviewed = self.events
                pins = [held.pin for held in self.pins.held()]
                for pin in list(self.policy.review(pins, batch_tokens(), self.now_s)):
                    self.unpin(pin.program_id, "review")
        if self._moved:
            self.rerank_moved()
        if self._wakes:
            self._wake()

    def _may_decide_differently(self) -> bool:
        """Than at the last review: `wake_s` says when, and between events batches only grow."""
        due = self.wake_ps is not None and self.wake_ps <= self.now_ps
        return due or self.events != self._reviewed

    def unpin(self, program_id: str, reason: str) -> bool:
        held = self.pins.pop(program_id)
        if held is None:
            return False
        self._release(held.holder.kv)
        self._tell("unpinned", held.holder.turn, reason=reason)
        if self.pins.is_waiting(program_id):
            for turn in self.queued.values():
                if turn.view.program_id == program_id:
                    turn.view.pinned = False
                    self._moved.append(turn)
        return True

    def reclaim(self, missing: Callable[[], int], spare: str | None = None) -> bool:
        """Unpin in the policy's order until no block is missing, sparing one program; nothing if
        even all of them would not do."""
        held = [h for h in self.pins.held() if h.pin.program_id != spare]
        if not held or sum(h.blocks for h in held) < missing():
            return False
        for pin in list(self.policy.reclaim([h.pin for h in held], self.now_s)):
            self.unpin(pin.program_id, "pressure")
            if missing() <= 0:
                break
        return True

    def _pin(self, turn: Turn, tokens: int, held: tuple[KV, int], ttl_s: float) -> None:
        pin = Pin(turn.view, tokens, self.now_s, self.now_s + ttl_s)
        expires = None if math.isinf(ttl_s) else self.now_ps + math.ceil(ttl_s * PS_PER_S)
        self.pins.add(Held(pin, Kept(turn, held[0]), held[1], expires))

    def _wake(self) -> None:
        if self.wake_ps is not None and self.wake_ps <= self.now_ps:
            for turn in self.waiting:
                self._moved.append(turn)
            self.rerank_moved()
        wake_s = self.policy.wake_s(self.now_s)
        if wake_s is None or math.isinf(wake_s):
            self.wake_ps = None
        else:
            self.wake_ps = max(math.ceil(wake_s * PS_PER_S), self.now_ps + 1)

    def _tell(self, event: str, turn: Turn, **fields: object) -> None:
        if not turn.said.nobodys:
            self.events += 1
            self._emit(self.now_s, event, turn, fields)
