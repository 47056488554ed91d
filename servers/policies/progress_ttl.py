"""Programs are admitted with room to grow, and keep their KV for a TTL (Progress-TTL).

Source: `vllm-project/router` (RFC #285, PR #286), `docs/program_scheduling.md` and
`src/program_scheduling/` (commits 02b9331 and a77107f). A program is active or paused. Turns of
active programs run, those of paused ones are held back. An active program is *acting* between its
turns, otherwise *reasoning*, and takes the tokens of its prompt, less the prefix that it shares
with others (what its first turn found in the cache), and 100 more. A program is admitted if

    used + its tokens + growth * (R + rounds left of all active programs) <= the KV of the device,

where growth is the mean growth of prompts and R = ceil(2 * mean rounds since the last TTL pause),
within 1 and 14; rounds are turns that found 0.9 of the previous prompt in the cache, and an active
program has R less its rounds since its admission left. Without the term of growth it is admitted
too if the larger batch gains more decode time than its own prefill and what others lose cost
(`Machine._gains`). After 100 turns (`window`) the means are used; before, growth is 0.

When its turn ends, a program keeps its place, and here its KV, for the d that maximises

    U(d) = C * F(d) - int_0^d t f(t) dt - d * (1 - F(d)),     C = prefill(tokens) * (2 - alpha),

with a log-normal fit F of the last 100 times between turns, alpha = 0.15, and d at most 10 s
(`longest_s`). Before 100 times d is 0. Then it is paused. Held turns are admitted in this order:
those that have waited for too long, which run anyway; the program whose last turn ended most
recently first, new ones last (`resume_order="arrival"`: in order of arrival). One that does not fit
is passed over. Too long is 3 * rounds ahead / turns per second, within 30 and 300 s
(`resume_after_s`). After 14 rounds a program is paused if another waits, and then goes last once.
If used + the mean output of each reasoning program exceeds the KV, programs are paused (reasoning
ones when their turn ends), the longest time since their segment began first, where small prompts
count more.

The router runs in front of vLLM and pins nothing; `pins=false` does the same. `agent-infer`, the
same authors' version inside vLLM, was not read.

Departures from the router's code:
- `used` is its own account of programs, which it falls back to; otherwise it corrects this by
  vLLM's use of KV, once a second;
- it admits nothing while vLLM has a waiting request at its last poll; here a turn that was let
  through and does not fit is the head of the queue, which has the same effect at once;
- programs are paused for lack of memory when a turn arrives or ends, there also every second;
- a program becomes active when its turn is scheduled, and the choice is made anew in each step;
  an idle engine runs the first turn even if it does not fit;
- prefill and decode times are the profile's instead of fits (over a tier: reload times), and the
  mean decode time of a turn is the step time of the batch times the mean output;
- the shared prefix is what the first turn found. The router observes it again from time to time;
- a pin gives way to a running turn that lacks blocks, in the order of pauses, and its program is
  paused; to a waiting turn it does not;
- hints of clients (priority, deadline, output length, retention) and sub-agents are left out, and
  several machines, which are the router `program-scheduling`'s.
The TTL, the order, the reserve and the gain are checked against a restatement of the router's
formulas on 2,000 random worlds each night (tests/policies/test_progress_ttl_worlds.py), not against
a run of the code, which is Rust.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict
from collections.abc import Collection, Iterable
from typing import ClassVar, Literal

from servers.basics.compiled_core import mypyc_attr
from servers.policies.base import (
    FREE,
    Admit,
    Costs,
    Need,
    Pin,
    Policy,
    Rank,
    Request,
    Retention,
    pin,
)
from servers.policies.progress_machine import ProgressMachine, ProgressProgram, patience_s
from servers.policies.ranked_queue import RankedQueue

WINDOW = 100
LONGEST_S = 10.0
MOST_ROUNDS = 14
MOST_ACTIVE = 64
RESUME_AFTER_S = 300.0
FORGET_AFTER_S = 1800.0
"""A paused program without turns is forgotten after this time."""


class HeldTurn:
    """A turn that arrived while its program was paused."""

    def __init__(self, program: ProgressProgram, deadline_s: float) -> None:
        self.program = program
        self.deadline_s = deadline_s
        """From when on it runs anyway."""
        self.yielded = program.yielded
        self.last_finished_s = program.last_finished_s
        self.is_overdue = False
        """Whether its deadline has passed."""


Recency = tuple[bool, float]
"""The position of a held turn among others; of equal ones the earlier arrival goes first."""


@mypyc_attr(allow_interpreted_subclasses=True)
class ProgressTtl(Policy):
    """Programs are admitted with room to grow; KV is kept for a TTL of a log-normal fit."""

    name = "progress-ttl"
    source = "vllm-project/router, RFC #285, PR #286"
    needs: ClassVar[tuple[Need, ...]] = ("ends of programs",)
    checked: ClassVar[str] = "yes: against its rules in other words, on random worlds each night"
    reviews_pins: ClassVar[bool] = True

    def __init__(
        self,
        costs: Costs,
        *,
        window: int = WINDOW,
        longest_s: float = LONGEST_S,
        resume_order: Literal["recent", "arrival"] = "recent",
        resume_after_s: float = RESUME_AFTER_S,
        most_rounds: int = MOST_ROUNDS,
        most_active: int = MOST_ACTIVE,
        batch_gain: bool = True,
        pins: bool = True,
    ) -> None:
        super().__init__(costs)
        if window < 1 or most_rounds < 1 or most_active < 1:
            raise ValueError("window, most_rounds and most_active must be at least 1")
        if longest_s < 0 or resume_after_s <= 0:
            raise ValueError("longest_s must be at least 0 s, and resume_after_s above 0 s")
        self.reclaim_when = "pressure"
        self._by_arrival = resume_order == "arrival"
        self._resume_after_s = resume_after_s
        self._most_rounds = most_rounds
        self._pins = pins
        self._machine = ProgressMachine(
            costs,
            costs.kv_tokens,
            window=window,
            longest_s=longest_s,
            most_rounds=most_rounds,
            most_active=most_active,
            batch_gain=batch_gain,
        )
        self._programs: dict[str, ProgressProgram] = {}
        self._running: set[int] = set()
        self._held: dict[int, HeldTurn] = {}
        self._smallest: RankedQueue[int] = RankedQueue()
        """Tokens of the programs of held turns, by request id and in order of size."""
        self._cheapest: RankedQueue[float] = RankedQueue()
        """The same of the costs of their rebuilds, in seconds."""
        self._deadlines: list[tuple[float, int]] = []
        self._overdue: list[int] = []
        """Held turns whose deadlines have passed since the engine last woke."""
        self._recencies: list[Recency] = []
        """Of the held turns that are not overdue, sorted."""
        self._expiries: list[tuple[float, str]] = []
        self._idle: OrderedDict[str, float] = OrderedDict()
        """When paused programs without turns were paused, in order of time."""

    # Events -------------------------------------------------------------------------------------

    def arrived(self, request: Request, now_s: float) -> None:
        self._pass_time(now_s)
        program = self._programs.get(request.program_id)
        if program is None:
            program = self._programs[request.program_id] = ProgressProgram()
        elif not program.open_turns and program.last_finished_s >= 0:
            self._machine.times.add(now_s - program.last_finished_s)
        self._machine.arrived(program, request.prompt_tokens)
        if program.active:
            self._pause_until_fit(now_s)
            return
        self._idle.pop(request.program_id, None)
        held = HeldTurn(program, 0.0)
        held.deadline_s = now_s + self._patience_s(held, now_s)
        self._held[request.id] = held
        program.held_turns += 1
        insort(self._recencies, self._recency(held))
        rebuild_s = program.rebuild_s = self._machine.rebuild_s(program)
        self._smallest.push(request.id, (program.tokens, request.id), program.tokens)
        self._cheapest.push(request.id, (rebuild_s, request.id), rebuild_s)
        heapq.heappush(self._deadlines, (held.deadline_s, request.id))

    def scheduled(self, request: Request, now_s: float, cached_tokens: int) -> None:
        self._change(now_s)
        self._let_through(request)
        self._running.add(request.id)
        program = self._programs.get(request.program_id)
        if program is None:
            return
        if not request.preempted:
            program.scheduled(cached_tokens, now_s)
        if not program.active:
            self._machine.add(request.program_id, program, now_s)

    def preempted(self, request: Request, now_s: float) -> None:
        self._change(now_s)
        self._running.discard(request.id)

    def finished(self, request: Request, now_s: float) -> Retention:
        self._change(now_s)
        self._running.discard(request.id)
        program_id = request.program_id
        program = self._programs.get(program_id)
        if program is None:
            return FREE
        prompt, output = request.prompt_tokens, request.output_tokens
        ttl_s = self._machine.finished(program, prompt, output, now_s)
        program.last_turn = request.id
        if not program.open_turns:
            if request.ends_program:
                self._forget(program_id, program)
            elif program.leaves:
                self._pause(program_id, program, now_s)
            elif program.rounds >= self._most_rounds and self._held:
                self._pause(program_id, program, now_s)
                program.yielded = True
            else:
                program.expires_s = now_s + ttl_s
                heapq.heappush(self._expiries, (program.expires_s, program_id))
                self._pass_time(now_s)
        self._pause_until_fit(now_s)
        if not program.active or program.open_turns or not self._pins:
            return FREE
        return pin(ttl_s, tool=request.tool, rebuild_s=program.last_impact_s)

    def aborted(self, request: Request, now_s: float) -> None:
        self._change(now_s)
        self._running.discard(request.id)
        self._let_through(request)
        program = self._programs.get(request.program_id)
        if program is None:
            return
        program.open_turns -= 1
        if not program.open_turns:
            self._pause(request.program_id, program, now_s)

    def unpinned(self, pin: Pin, now_s: float) -> None:
        self._change(now_s)
        program = self._programs.get(pin.program_id)
        if program is None or program.open_turns or pin.request.id != program.last_turn:
            return
        if program.active:
            self._pause(pin.program_id, program, now_s)

    def program_ended(self, program_id: str, now_s: float) -> None:
        self._change(now_s)
        program = self._programs.get(program_id)
        if program is not None:
            self._forget(program_id, program)

    def woke(self, now_s: float) -> Iterable[int]:
        self._pass_deadlines(now_s)
        overdue, self._overdue = self._overdue, []
        return overdue

    # Decisions ----------------------------------------------------------------------------------

    def rank(self, request: Request, now_s: float) -> Rank:
        held, after = self._held.get(request.id), not request.preempted
        if held is None:
            return (after, 0, False, False, 0.0, request.arrival_s, request.id)
        tier = 1 if held.deadline_s <= now_s else 2
        last_s = 0.0 if self._by_arrival else held.last_finished_s
        return (after, tier, held.yielded, last_s < 0, -last_s, request.arrival_s, request.id)

    def admit(self, request: Request, free_tokens: int, now_s: float) -> Admit:
        self._pass_time(now_s)
        held, machine = self._held.get(request.id), self._machine
        if held is None or held.program.active or held.deadline_s <= now_s:
            return "run"
        load, program = machine.load(), held.program
        if load.holds_all is None:
            load.holds_all = self._none_fits()
        if load.holds_all:
            return "stop"
        return "run" if machine.fits(program.tokens, program.context, program.rebuild_s) else "skip"

    def _none_fits(self) -> bool:
        """Return whether no held turn may run, whatever its rank."""
        machine, smallest = self._machine, self._smallest.peek()
        if machine.used + smallest > self.costs.kv_tokens:
            return True
        return machine.none_fits(smallest, self._cheapest.peek()) and not any(
            program.held_turns for program in machine.active.values()
        )

    def reclaim(self, pins: Collection[Pin], request: Request, now_s: float) -> Iterable[Pin]:
        if request.id not in self._running:
            return ()
        mean = self._machine.turns.mean_prompt
        known = [(self._programs[p.program_id], p) for p in pins if p.program_id in self._programs]
        known.sort(key=lambda item: (-item[0].served_s(now_s, mean), item[1].request.id))
        return [pin for _, pin in known]

    def review(self, pins: Collection[Pin], batch_tokens: int, now_s: float) -> Iterable[Pin]:
        self._pass_time(now_s)
        return [p for p in pins if p.program_id not in self._machine.active]

    def wake_s(self, now_s: float) -> float | None:
        self._pass_time(now_s)
        self._pass_deadlines(now_s)
        due_s = self._deadlines[0][0] if self._deadlines else math.inf
        if self._expiries:
            due_s = min(due_s, self._expiries[0][0])
        return None if due_s == math.inf else due_s

    def _pass_deadlines(self, now_s: float) -> None:
        while self._deadlines and (
            self._deadlines[0][0] <= now_s or self._deadlines[0][1] not in self._held
        ):
            request_id = heapq.heappop(self._deadlines)[1]
            held = self._held.get(request_id)
            if held is not None:
                self._drop_recency(held)
                held.is_overdue = True
                self._overdue.append(request_id)

    def _patience_s(self, held: HeldTurn, now_s: float) -> float:
        """Return how long a turn that is held back now waits at most."""
        machine = self._machine
        rounds, per_s = machine.target_rounds, machine.turns.per_second
        if rounds == 0 or per_s == 0:
            return self._resume_after_s
        self._pass_deadlines(now_s)
        overdue = len(self._held) - len(self._recencies)
        before = overdue + bisect_right(self._recencies, self._recency(held))
        ahead = machine.load().rounds_ahead + rounds * before
        return patience_s(ahead, per_s, self._resume_after_s)

    def _let_through(self, request: Request) -> None:
        held = self._held.pop(request.id, None)
        if held is not None:
            self._smallest.remove(request.id)
            self._cheapest.remove(request.id)
            held.program.held_turns -= 1
            if not held.is_overdue:
                self._drop_recency(held)

    def _drop_recency(self, held: HeldTurn) -> None:
        del self._recencies[bisect_left(self._recencies, self._recency(held))]

    def _recency(self, held: HeldTurn) -> Recency:
        return (held.yielded, 0.0 if self._by_arrival else -held.last_finished_s)

    # Pauses -------------------------------------------------------------------------------------

    def _change(self, now_s: float) -> None:
        """Pass the time before an event."""
        self._pass_time(now_s)
        self._machine.changed()

    def _pass_time(self, now_s: float) -> None:
        """Pause the programs whose TTL has ended. Decisions call it too; what it does follows from
        the time and the events before it."""
        while self._expiries and self._expiries[0][0] <= now_s:
            expires_s, program_id = heapq.heappop(self._expiries)
            program = self._programs.get(program_id)
            if program is not None and program.active and program.expires_s == expires_s:
                self._pause(program_id, program, expires_s)
                program.rounds_since_expiry = 0
        while self._idle:
            program_id, paused_s = next(iter(self._idle.items()))
            if now_s - paused_s < FORGET_AFTER_S:
                break
            self._forget(program_id, self._programs[program_id])

    def _pause(self, program_id: str, program: ProgressProgram, now_s: float) -> None:
        self._machine.remove(program_id, program)
        self._idle[program_id] = now_s
        self._idle.move_to_end(program_id)

    def _pause_until_fit(self, now_s: float) -> None:
        for program_id in self._machine.make_room(now_s):
            self._pause(program_id, self._programs[program_id], now_s)

    def _forget(self, program_id: str, program: ProgressProgram) -> None:
        self._pause(program_id, program, 0.0)
        del self._idle[program_id]
        del self._programs[program_id]
