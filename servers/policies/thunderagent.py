"""Programs are paused and resumed so that the contexts of the others fit (ThunderAgent).

Source: the authors' router, github.com/ThunderAgent-org/ThunderAgent (commit a7eef77), files
`scheduler/router.py` and `backend/state.py`. A program is *reasoning* while a turn of it waits or
runs, and *acting* during its tool calls. It is active, or paused: then its turns are held back. The
active programs of a machine use

    used = reasoning tokens + acting_weight * acting tokens + 100 per program,

where a program's tokens are those of its latest turn. A new program is active at once if none is
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
arrival. Programs with a waiting turn resume before acting ones, both oldest first, and nobody is
passed over; the latest are paused first. Then the oldest program that waits is the next to resume,
and only ends of active programs, which take a finite time, have to come before.

Dynamo's port (`ai-dynamo` 1.6.1, `thunderagent_router`) pauses above 0.95 of the memory, down to
0.80, and resumes up to 0.85 of it: `thunderagent(pause_above=0.95, pause_to=0.8, resume_to=0.85)`.
Its lower priority for all active programs from 0.80 on is left out.

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
Checked against the authors' code, run with a clock of ours, and against a restatement of it on
1,000 random worlds (tests/policies/test_thunderagent_worlds.py): equal except in these points.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import ClassVar, Literal

from servers.basics.compiled_core import mypyc_attr
from servers.policies.base import FREE, Admit, Costs, Need, Policy, Rank, Request, Retention

INTERVAL_S = 5.0
RESUME_AFTER_S = 1800.0
PROGRAM_TOKENS = 100
"""Tokens that are added for each program."""
MAX_PROGRAMS = 100_000
"""If the engine never reports ends, the oldest acting programs beyond this number are forgotten."""


class Program:
    def __init__(self, arrival_s: float) -> None:
        self.arrival_s = arrival_s
        self.tokens = 0
        """Prompt of its latest turn, and the turn's output once it has finished."""
        self.turns = 0
        """Number of turns that have arrived."""
        self.open_turns = 0
        """Number of turns that wait or run; 0 while it acts."""
        self.acting_since_s = 0.0
        self.paused = False
        self.paused_tokens = 0
        """`tokens` when it was paused."""
        self.resumed_s = 0.0
        self.marked = False
        """Whether it is paused at the end of its turn."""


@mypyc_attr(allow_interpreted_subclasses=True)
class ThunderAgent(Policy):
    """Whole programs are paused while contexts exceed the KV; every 5 s, smallest first."""

    name = "thunderagent"
    source = "ThunderAgent-org/ThunderAgent, scheduler/router.py"
    needs: ClassVar[tuple[Need, ...]] = ("ends of programs",)
    checked: ClassVar[str] = "yes: against their code, run on 1,000 random worlds"

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
    ) -> None:
        super().__init__(costs)
        if interval_s <= 0 or resume_after_s <= 0:
            raise ValueError("interval_s and resume_after_s are seconds, and must be above 0")
        if acting_weight < 0:
            raise ValueError(f"acting_weight must be at least 0, not {acting_weight}")
        if not (0 < pause_to <= pause_above and 0 < resume_to <= pause_above):
            raise ValueError(
                "pause_above, pause_to and resume_to are shares of the KV above 0, such as 0.9; "
                "pause_to and resume_to must not exceed pause_above"
            )
        self._by_arrival = order == "arrival"
        self._interval_s = interval_s
        self._acting_weight = acting_weight
        self._acting_decay = acting_decay
        self._resume_after_s = resume_after_s
        self._pause_above = pause_above * costs.kv_tokens
        self._pause_to = pause_to * costs.kv_tokens
        self._resume_to = resume_to * costs.kv_tokens
        self._programs: OrderedDict[str, Program] = OrderedDict()
        self._paused: OrderedDict[str, Program] = OrderedDict()
        self._time_outs_s: OrderedDict[str, float] = OrderedDict()
        """When the first held turn of a paused program has waited too long, in order of time."""
        self._active = self._reasoning_tokens = self._acting_tokens = 0
        """Number of active programs, and their tokens."""
        self._tick = 1
        """Number of the next tick, which is at `_tick * interval_s`."""
        self._settled = True
        """Whether further ticks change nothing until an event or a time-out."""

    # Events -------------------------------------------------------------------------------------

    def arrived(self, request: Request, now_s: float) -> None:
        self._change(now_s)
        program_id = request.program_id
        program = self._programs.get(program_id)
        if program is None:
            program = Program(request.program_arrival_s)
            program.tokens, program.open_turns = request.prompt_tokens, 1
            self._remember(program_id, program)
            free = self.costs.kv_tokens - self._used_tokens()
            if self._paused or program.tokens + PROGRAM_TOKENS > free:
                self._add_paused(program_id, program)
            else:
                self._count(program, 1)
        else:
            self._count(program, -1)
            program.tokens = request.prompt_tokens
            program.open_turns += 1
            self._count(program, 1)
        program.turns += 1
        if program.paused and program_id not in self._time_outs_s:
            self._time_outs_s[program_id] = now_s + self._resume_after_s

    def scheduled(self, request: Request, now_s: float, cached_tokens: int) -> None:
        self._change(now_s)
        program = self._programs.get(request.program_id)
        if program is not None and program.paused:
            self._resume(request.program_id, program, now_s)

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

    # Decisions ----------------------------------------------------------------------------------

    def rank(self, request: Request, now_s: float) -> Rank:
        self._pass_time(now_s)
        program = self._programs.get(request.program_id)
        let_through_s, held = request.arrival_s, False
        if program is not None:
            held = program.paused
            if not held and program.resumed_s > let_through_s:
                let_through_s = program.resumed_s
        return (not request.preempted, held, let_through_s, request.arrival_s, request.id)

    def rank_changed(self, request: Request, now_s: float) -> bool:
        """Return whether the turn's program may have been resumed while it waited."""
        program = self._programs.get(request.program_id)
        if program is None:
            return True
        return not program.paused and program.resumed_s >= request.arrival_s

    def admit(self, request: Request, free_tokens: int, now_s: float) -> Admit:
        self._pass_time(now_s)
        program = self._programs.get(request.program_id)
        return "stop" if program is not None and program.paused else "run"

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
        resumed = self._resume_fitting(now_s)
        paused = self._pause_until_fit()
        decays = self._acting_decay and len(self._paused) > 0
        self._settled = not (resumed or paused or decays)

    def _resume_fitting(self, now_s: float) -> bool:
        """Resume the programs that fit; return whether there were any."""
        free = self._resume_to - self._used_tokens_at(now_s)
        if not self._paused or free <= PROGRAM_TOKENS:
            return False
        any_resumed = False
        for program_id, program in sorted(self._paused.items(), key=self._resume_rank):
            tokens = program.tokens + PROGRAM_TOKENS
            if tokens <= free:
                free -= tokens
                self._resume(program_id, program, now_s)
                any_resumed = True
            elif self._by_arrival:
                break
        return any_resumed

    def _resume_rank(self, item: tuple[str, Program]) -> tuple[int, float]:
        program = item[1]
        if self._by_arrival:
            return (0 if program.open_turns else 1, program.arrival_s)
        if program.turns == 1:
            return (1, program.paused_tokens)
        return (0 if program.open_turns else 2, program.paused_tokens)

    def _pause_until_fit(self) -> bool:
        """Pause acting programs until the contexts fit, and mark reasoning ones if that is not
        enough; return whether any was paused or marked."""
        if self._used_tokens() <= self._pause_above:
            return False
        active = [item for item in self._programs.items() if not item[1].paused]
        acting = [item for item in active if not item[1].open_turns]
        for program_id, program in sorted(acting, key=self._pause_rank):
            self._pause(program_id, program)
            if self._used_tokens() <= self._pause_to:
                return True
        unmarked = [p for _, p in active if p.open_turns and not p.marked]
        for program in unmarked:
            program.marked = True
        return len(acting) + len(unmarked) > 0

    def _pause_rank(self, item: tuple[str, Program]) -> float:
        return -item[1].arrival_s if self._by_arrival else item[1].tokens

    # Accounts -----------------------------------------------------------------------------------

    def _used_tokens(self) -> float:
        weighted = self._reasoning_tokens + self._acting_weight * self._acting_tokens
        return int(weighted) + self._active * PROGRAM_TOKENS

    def _used_tokens_at(self, now_s: float) -> float:
        """Return the tokens in use as resumes count them."""
        if not self._acting_decay:
            return self._used_tokens()
        acting = 0.0
        for program in self._programs.values():
            if not program.paused and not program.open_turns:
                acting += program.tokens * 2.0 ** (program.acting_since_s - now_s)
        return int(self._reasoning_tokens + acting) + self._active * PROGRAM_TOKENS

    def _count(self, program: Program, sign: int) -> None:
        """Add an active program to the accounts with sign 1, and take it out of them with -1."""
        if program.paused:
            return
        self._active += sign
        if program.open_turns:
            self._reasoning_tokens += sign * program.tokens
        else:
            self._acting_tokens += sign * program.tokens

    def _close_turn(self, request: Request, tokens: int, now_s: float) -> None:
        self._change(now_s)
        program = self._programs.get(request.program_id)
        if program is None:
            return
        self._count(program, -1)
        program.open_turns -= 1
        program.tokens = tokens
        self._count(program, 1)
        if program.open_turns:
            return
        program.acting_since_s = now_s
        self._time_outs_s.pop(request.program_id, None)
        if program.marked and not program.paused:
            self._pause(request.program_id, program)

    def _pause(self, program_id: str, program: Program) -> None:
        self._count(program, -1)
        self._add_paused(program_id, program)

    def _add_paused(self, program_id: str, program: Program) -> None:
        program.paused, program.marked = True, False
        program.paused_tokens = program.tokens
        self._paused[program_id] = program

    def _resume(self, program_id: str, program: Program, now_s: float) -> None:
        del self._paused[program_id]
        self._time_outs_s.pop(program_id, None)
        program.paused, program.resumed_s = False, now_s
        self._count(program, 1)

    def _remember(self, program_id: str, program: Program) -> None:
        self._programs[program_id] = program
        if len(self._programs) > MAX_PROGRAMS:
            for oldest_id, oldest in self._programs.items():
                if not oldest.open_turns:
                    self._forget(oldest_id, oldest)
                    return

    def _forget(self, program_id: str, program: Program) -> None:
        self._count(program, -1)
        del self._programs[program_id]
        self._paused.pop(program_id, None)
        self._time_outs_s.pop(program_id, None)
