"""Programs are paused and resumed so that the contexts of the others fit (ThunderAgent).

Source: the authors' router, github.com/ThunderAgent-org/ThunderAgent (commit a7eef77), files
`scheduler/router.py` and `backend/state.py`. A program is *reasoning* while a turn of it waits or
runs, and *acting* during its tool calls. It is active, or paused: then its turns are held back. The
active programs of a machine use

    used = reasoning tokens + acting_weight * acting tokens + 100 per program,

where a program's tokens are its latest turn's. A new program is active at once if none is
paused and it fits; otherwise it is paused. Every 5 s (`interval_s`)

1. paused programs resume that fit into what is left: those with a waiting turn first, then those of
   which only one turn has arrived, then acting ones; in each group the smallest first, as they were
   when paused, and one that does not fit is passed over;
2. if more is used than the machine has, acting programs are paused, the smallest first, until it
   fits. If they do not suffice, all reasoning ones are marked, to be paused when their turn ends.

A turn that has been held back for 30 min (`resume_after_s`) resumes its program. With
`acting_decay=true` step 1 counts the tokens of an acting program 2^-t times, t seconds after its
last turn. The router runs in front of stock vLLM. So turns wait in the order in which they were let
through, the last one admitted is preempted, and no KV is pinned: acting programs find in the prefix
cache what is left there.

The smallest first starves: large programs are passed over by all smaller ones, and a small one is
paused again and again (issue #46 there). `order="arrival"` replaces size by the program's first
arrival. Programs with a waiting turn resume before acting ones, both oldest first, and none is
passed over; the latest are paused first. Then the oldest program that waits is the next to resume,
and only ends of active programs, which take a finite time, have to come before.

Dynamo's port (`ai-dynamo` 1.6.1, `thunderagent_router`) pauses above 0.95 of the memory, down to
0.80, and resumes up to 0.85 of it: `thunderagent(pause_above=0.95, pause_to=0.8, resume_to=0.85)`.
Its lower priority for all active programs from 0.80 on is left out.

`shared_once=true` counts a prompt prefix that programs share once (dynamo #15105): what the first
turn of a program finds in the cache counts with the program that computed it, and no longer once
that one has been paused or has ended. Until its first turn is admitted, a program is taken to share
as much as the last one did that was. In the issue the sharing is known in advance, and a reserve is
added. It is refused over an offload tier, where what a turn finds includes the KV that it loads.

Departures from the authors' code:
- tokens are the engine's; the router estimates prompts from characters, and adds streamed output
  every 20 tokens, while here the output counts when a turn has finished, as for clients that do not
  stream;
- the engine never idles while a turn waits: then the held turn that waits longest runs and resumes
  its program. The router waits for its next 5 s;
- of turns that are let through at once the first to arrive goes first, not the largest;
- a program with several open turns acts when the last of them has ended. A cancelled turn ends,
  while the router leaves its program reasoning;
- a program ends with its last turn, which is marked, or calls no tool if the client marks none; the
  router waits for a call of `/programs/release`;
- there is one machine, so the choice between several is left out.
Checked against a restatement of the authors' code on 2,000 random worlds each night
(tests/policies/test_thunderagent_worlds.py), and once against that code, run with a clock of ours,
on 1,000: equal except in these points.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable
from typing import ClassVar, Literal

from servers.basics.compiled_core import mypyc_attr
from servers.policies.base import FREE, Admit, Costs, Need, Policy, Rank, Request, Retention
from servers.policies.ordered import Ordered
from servers.policies.thunderagent_machine import (
    INTERVAL_S,
    RESUME_AFTER_S,
    ThunderAgentMachine,
    ThunderAgentProgram,
    choose,
)

MAX_PROGRAMS = 100_000
"""If the engine never reports ends, the oldest acting programs beyond this number are forgotten."""


class Resumable(ThunderAgentProgram):
    def __init__(self, number: int, arrival_s: float) -> None:
        super().__init__(number, arrival_s)
        self.resumed_s = 0.0
        self.held: list[int] = []
        """Ids of the turns that have arrived since it was paused."""
        self.shared_tokens = 0
        """Leading tokens of its prompts that count with another program."""


@mypyc_attr(allow_interpreted_subclasses=True)
class ThunderAgent(Policy):
    """Whole programs are paused while contexts exceed the KV; every 5 s, smallest first."""

    name = "thunderagent"
    source = "ThunderAgent-org/ThunderAgent, scheduler/router.py"
    needs: ClassVar[tuple[Need, ...]] = ("ends of programs",)
    checked: ClassVar[str] = "yes: once against their code, on 1,000 random worlds"

    def __init__(
        self,
        costs: Costs,
        *,
        order: Literal["size", "arrival"] = "size",
        interval_s: float = INTERVAL_S,
        acting_weight: float = 1.0,
        acting_decay: bool = False,
        resume_after_s: float = RESUME_AFTER_S,
        pause_above: float = 1.0,
        pause_to: float = 1.0,
        resume_to: float = 1.0,
        shared_once: bool = False,
    ) -> None:
        super().__init__(costs)
        if interval_s <= 0 or resume_after_s <= 0:
            raise ValueError("interval_s and resume_after_s are seconds, and must be above 0")
        if not (0 < pause_to <= pause_above and 0 < resume_to <= pause_above):
            raise ValueError(
                "pause_above, pause_to and resume_to are shares of the KV above 0, such as 0.9; "
                "pause_to and resume_to must not exceed pause_above"
            )
        if shared_once and costs.reload_s is not None:
            raise ValueError(
                "shared_once counts what a first turn finds on the device, and over an offload "
                "tier the tokens that it loads count too; remove shared_once or the tier"
            )
        self._by_arrival = order == "arrival"
        self._interval_s = interval_s
        self._acting_decay = acting_decay
        self._resume_after_s = resume_after_s
        self._resume_to = resume_to * costs.kv_tokens
        self._shared_once = shared_once
        self._latest_shared_tokens = 0
        """Tokens that the first turn admitted last found in the cache."""
        self._machine = ThunderAgentMachine(
            costs.kv_tokens, self._by_arrival, acting_weight, acting_decay, pause_above, pause_to
        )
        self._programs: OrderedDict[str, Resumable] = OrderedDict()
        self._paused: Ordered[str, Resumable] = Ordered()
        self._time_outs_s: OrderedDict[str, float] = OrderedDict()
        """When the first held turn of a paused program has waited too long, in order of time."""
        self._released: list[int] = []
        """Turns that were held back, and have been let through since the engine last woke."""
        self._tick = 1
        """Number of the next tick, which is at `_tick * interval_s`."""
        self._settled = True
        """Whether further ticks change nothing until an event or a time-out."""

    # Events -------------------------------------------------------------------------------------

    def arrived(self, request: Request, now_s: float) -> None:
        self._change(now_s)
        program_id = request.program_id
        program = self._programs.get(program_id)
        if program is not None:
            program.arrived(max(request.prompt_tokens - program.shared_tokens, 0))
        else:
            program = Resumable(request.id, request.program_arrival_s)
            program.shared_tokens = min(self._latest_shared_tokens, request.prompt_tokens)
            program.arrived(request.prompt_tokens - program.shared_tokens)
            self._remember(program_id, program)
            if len(self._paused) or not self._machine.has_room(program):
                self._pause(program_id, program)
            else:
                self._machine.add(program_id, program)
        if program.machine is None:
            self._queue(program_id, program)
            program.held.append(request.id)
            if program_id not in self._time_outs_s:
                self._time_outs_s[program_id] = now_s + self._resume_after_s

    def scheduled(self, request: Request, now_s: float, cached_tokens: int) -> None:
        self._change(now_s)
        program = self._programs.get(request.program_id)
        if program is None:
            return
        if program.machine is None:
            self._resume(request.program_id, program, now_s)
        if self._shared_once and not request.index and not request.preempted:
            self._latest_shared_tokens = program.shared_tokens = cached_tokens
            program.recount(request.prompt_tokens - cached_tokens)

    def finished(self, request: Request, now_s: float) -> Retention:
        self._close_turn(request, request.prompt_tokens + request.output_tokens, now_s)
        program = self._programs.get(request.program_id)
        if request.ends_program and program is not None and not program.open_turns:
            self._forget(request.program_id, program)
        return FREE

    def aborted(self, request: Request, now_s: float) -> None:
        self._close_turn(request, request.prompt_tokens, now_s)

    def program_ended(self, program_id: str, now_s: float) -> None:
        self._change(now_s)
        program = self._programs.get(program_id)
        if program is not None:
            self._forget(program_id, program)

    def woke(self, now_s: float) -> Iterable[int]:
        released, self._released = self._released, []
        return released

    # Decisions ----------------------------------------------------------------------------------

    def rank(self, request: Request, now_s: float) -> Rank:
        self._pass_time(now_s)
        program = self._programs.get(request.program_id)
        let_through_s, held = request.arrival_s, False
        if program is not None:
            held = program.machine is None
            if not held:
                let_through_s = max(let_through_s, program.resumed_s)
        return (not request.preempted, held, let_through_s, request.arrival_s, request.id)

    def admit(self, request: Request, free_tokens: int, now_s: float) -> Admit:
        self._pass_time(now_s)
        program = self._programs.get(request.program_id)
        return "stop" if program is not None and program.machine is None else "run"

    def wake_s(self, now_s: float) -> float | None:
        self._pass_time(now_s)
        due_s = self._due_s()
        return None if due_s == math.inf else due_s

    # Time ---------------------------------------------------------------------------------------
    #
    # The state at a time follows from the events before it. `_pass_time` works out once what has
    # happened since the last call, so that the decisions, which call it too, depend on the events
    # and on `now_s` alone, however often they are asked. A tick comes before events of its time.

    def _pass_time(self, now_s: float) -> None:
        """Carry out the ticks and time-outs until now."""
        due_s = self._due_s()
        while due_s <= now_s:
            if not self._settled and due_s == self._tick * self._interval_s:
                self._run_tick(due_s)
            else:
                program_id = next(iter(self._time_outs_s))
                self._resume(program_id, self._programs[program_id], due_s)
                self._unsettle(due_s)
            due_s = self._due_s()

    def _due_s(self) -> float:
        due_s = math.inf if self._settled else self._tick * self._interval_s
        for time_out_s in self._time_outs_s.values():
            return min(due_s, time_out_s)
        return due_s

    def _change(self, now_s: float) -> None:
        """Pass the time before an event."""
        self._pass_time(now_s)
        self._unsettle(now_s)

    def _unsettle(self, now_s: float) -> None:
        """Let ticks happen from now on; those until now have changed nothing."""
        if self._settled:
            self._settled = False
            self._tick = int(now_s // self._interval_s) + 1
            while self._tick * self._interval_s <= now_s:
                self._tick += 1

    def _run_tick(self, now_s: float) -> None:
        self._tick += 1
        rooms = [(self._resume_to - self._machine.used_at(now_s), 0)]
        resumed = choose(self._paused, rooms, self._by_arrival)
        for program_id, program, _ in resumed:
            self._resume(program_id, program, now_s)
        paused, marked = self._machine.pause_until_fit()
        for program_id in paused:
            self._queue(program_id, self._programs[program_id])
        decays = self._acting_decay and len(self._paused) > 0
        self._settled = not (resumed or paused or marked or decays)

    # Programs -----------------------------------------------------------------------------------

    def _close_turn(self, request: Request, tokens: int, now_s: float) -> None:
        self._change(now_s)
        program = self._programs.get(request.program_id)
        if program is None:
            return
        is_due = program.finished(max(tokens - program.shared_tokens, 0), now_s)
        if not program.open_turns:
            self._time_outs_s.pop(request.program_id, None)
        if is_due:
            self._pause(request.program_id, program)
        elif program.machine is None:
            self._queue(request.program_id, program)

    def _pause(self, program_id: str, program: Resumable) -> None:
        program.pause(program_id)
        self._queue(program_id, program)

    def _queue(self, program_id: str, program: Resumable) -> None:
        """Put a paused program in its place, again after each event."""
        place = program.place(self._by_arrival)
        self._paused.put(program_id, program, place, program.needed)

    def _resume(self, program_id: str, program: Resumable, now_s: float) -> None:
        self._paused.pop(program_id)
        self._time_outs_s.pop(program_id, None)
        program.resumed_s = now_s
        self._release(program)
        self._machine.add(program_id, program)

    def _release(self, program: Resumable) -> None:
        self._released += program.held
        program.held = []

    def _remember(self, program_id: str, program: Resumable) -> None:
        self._programs[program_id] = program
        if len(self._programs) > MAX_PROGRAMS:
            for oldest_id, oldest in self._programs.items():
                if not oldest.open_turns:
                    self._forget(oldest_id, oldest)
                    return

    def _forget(self, program_id: str, program: Resumable) -> None:
        program.pause(program_id)
        self._release(program)
        del self._programs[program_id]
        self._paused.pop(program_id)
        self._time_outs_s.pop(program_id, None)
