"""Programs ranked by idleness over HBM and DRAM (MORI, arXiv:2606.00866), from a summary.

The paper's text was not at hand and its code is not public; this follows the abstract and a
detailed third-party summary of §4. Every program is in one of three queues: GPU, whose KV stays in
HBM; CPU, whose KV is in DRAM and is loaded before it runs; waiting, whose KV is dropped.

    idleness = T_acting / (T_reasoning + T_acting), over the latest five of each,

reasoning: a turn runs; acting: a tool runs, up to now. The time that a turn waits for the scheduler
counts as neither. Every 5 s:
- while the GPU queue holds more tokens than HBM, its most idle acting program moves out; if that is
  not enough, the most idle reasoning ones do at the end of their turn;
- else programs with a turn at hand move in while they fit: those of the CPU queue, least idle
  first, then returning ones of the waiting queue, then new ones, smallest context first.
A program that moves out joins the CPU queue if that has room, else the waiting queue. Nothing moves
otherwise. If blocks are short, pins give way, most idle program first.

Left open by the summary, or departs:
- a program that begins while no other is held back and there is room joins the GPU queue at once;
- a program's size is its latest context, without room to grow;
- a policy does not know the size of the tier: the CPU queue holds `dram_ratio` times the tokens of
  HBM, twice as in one of the paper's settings;
- the tier evicts by recency. The paper evicts idle programs last from DRAM;
- a turn that would run alone is never held back; its program then joins the GPU queue;
- one engine needs no placement on replicas.
"""

from __future__ import annotations

import math
from collections import deque
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
from servers.policies.ordered import Ordered, Place

CYCLES = 5
TICK_S = 5.0
DRAM_RATIO = 2.0
GPU, CPU, WAITING = 0, 1, 2


class MoriProgram:
    def __init__(self, number: int, arrival_s: float) -> None:
        self.number = number
        """In order of arrival."""
        self.arrival_s = arrival_s
        self.queue = WAITING
        self.tokens = 0
        """Its latest context."""
        self.is_new = True
        """No turn of it has run."""
        self.leaves = False
        """It moves out of the GPU queue at the end of its turn."""
        self.turns = 0
        """Number of turns that wait or run."""
        self.running: dict[int, float] = {}
        """When each running turn was admitted, by id."""
        self.held: list[int] = []
        """Ids of the turns that have arrived outside the GPU queue."""
        self.acting_since_s = math.inf
        self.reasoning: deque[float] = deque(maxlen=CYCLES)
        self.acting: deque[float] = deque(maxlen=CYCLES)
        """Latest durations in seconds."""

    def idleness(self, now_s: float) -> float:
        reasoning, acting = list(self.reasoning), list(self.acting)
        if self.acting_since_s <= now_s:
            acting = [*acting, now_s - self.acting_since_s][-CYCLES:]
        elif self.running:
            reasoning = [*reasoning, now_s - min(self.running.values())][-CYCLES:]
        acting_s = math.fsum(acting)  # sum() returns an int of nothing, which compiled code refuses
        total_s = acting_s + math.fsum(reasoning)
        return acting_s / total_s if total_s else 0.0


@mypyc_attr(allow_interpreted_subclasses=True)
class Mori(Policy):
    """Busy programs stay in HBM, idle ones in DRAM, and the rest waits."""

    name = "mori"
    source = "arXiv:2606.00866, from a summary"
    needs: ClassVar[tuple[Need, ...]] = ("tier", "ends of programs")
    checked: ClassVar[str] = "no: no code is public"
    reclaim_when: Literal["stuck", "pressure"] = "pressure"
    reviews_pins: ClassVar[bool] = True

    def __init__(
        self, costs: Costs, *, tick_s: float = TICK_S, dram_ratio: float = DRAM_RATIO
    ) -> None:
        super().__init__(costs)
        if not tick_s > 0:
            raise ValueError("tick_s must be above 0")
        if not dram_ratio >= 0:
            raise ValueError(
                "dram_ratio must be at least 0; it is the size of DRAM divided by HBM's"
            )
        self._tick_s = tick_s
        self._room = (costs.kv_tokens, costs.kv_tokens * dram_ratio, math.inf)
        """Tokens that each queue holds."""
        self._used = [0, 0, 0]
        self._programs: dict[str, MoriProgram] = {}
        self._in_hbm: dict[int, MoriProgram] = {}
        """Those of the GPU queue by number."""
        self._held: Ordered[str, MoriProgram] = Ordered()
        """Programs with a turn that waits outside the GPU queue, as they move in."""
        self._released: list[int] = []
        """Turns that were held back, and have been let through since the engine last woke."""
        self._next_tick_s = 0.0

    # Events -------------------------------------------------------------------------------------

    def arrived(self, request: Request, now_s: float) -> None:
        self._catch_up(now_s)
        program = self._programs.get(request.program_id)
        if program is None:
            program = MoriProgram(request.id, now_s)
            self._programs[request.program_id] = program
        if program.acting_since_s <= now_s:
            program.acting.append(now_s - program.acting_since_s)
        program.acting_since_s = math.inf
        program.turns += 1
        self._resize(program, request.prompt_tokens)
        if (
            program.queue != GPU
            and program.is_new
            and not len(self._held)
            and self._fits(program, GPU)
        ):
            self._move(program, GPU)
        if program.queue != GPU:
            self._hold(request.program_id, program, now_s)
            program.held.append(request.id)

    def scheduled(self, request: Request, now_s: float, cached_tokens: int) -> None:
        self._catch_up(now_s)
        program = self._programs[request.program_id]
        program.is_new = False
        program.running[request.id] = now_s
        if program.queue != GPU:
            self._move(program, GPU)
            self._let_through(request.program_id)

    def preempted(self, request: Request, now_s: float) -> None:
        self._catch_up(now_s)
        self._stop(request, now_s)

    def finished(self, request: Request, now_s: float) -> Retention:
        program = self._leave(request, now_s)
        self._resize(program, request.prompt_tokens + request.output_tokens)
        if not program.turns:
            program.acting_since_s = now_s
            if program.leaves:
                self._demote(program)
        if request.ends_program or program.queue != GPU:
            return FREE
        return pin(math.inf, idleness=program.idleness(now_s))

    def aborted(self, request: Request, now_s: float) -> None:
        program = self._leave(request, now_s)
        if not program.turns:
            program.acting_since_s = now_s
            self._let_through(request.program_id)

    def program_ended(self, program_id: str, now_s: float) -> None:
        self._catch_up(now_s)
        program = self._programs.pop(program_id, None)
        if program is not None:
            self._used[program.queue] -= program.tokens
            self._in_hbm.pop(program.number, None)
        self._let_through(program_id)

    def woke(self, now_s: float) -> Iterable[int]:
        self._catch_up(now_s)
        changed, self._released = self._released, []
        return changed

    # Decisions ----------------------------------------------------------------------------------

    def rank(self, request: Request, now_s: float) -> Rank:
        self._catch_up(now_s)
        held = request.program_id in self._held
        return (held, not request.preempted, request.arrival_s, request.id)

    def admit(self, request: Request, free_tokens: int, now_s: float) -> Admit:
        self._catch_up(now_s)
        return "stop" if request.program_id in self._held else "run"

    def reclaim(self, pins: Collection[Pin], request: Request, now_s: float) -> Iterable[Pin]:
        self._catch_up(now_s)
        return sorted(pins, key=lambda p: (-self._idleness(p, now_s), p.pinned_at_s, p.request.id))

    def review(self, pins: Collection[Pin], batch_tokens: int, now_s: float) -> Iterable[Pin]:
        self._catch_up(now_s)
        return [held for held in pins if not self._is_in_hbm(held)]

    def wake_s(self, now_s: float) -> float | None:
        self._catch_up(now_s)
        return self._next_tick_s if len(self._held) or self._used[GPU] > self._room[GPU] else None

    # Queues -------------------------------------------------------------------------------------

    def _catch_up(self, now_s: float) -> None:
        """Do what the latest tick until now has changed. Between events only the time matters, so
        it is the same whenever it is done."""
        if now_s < self._next_tick_s:
            return
        tick_s = math.floor(now_s / self._tick_s) * self._tick_s
        self._next_tick_s = tick_s + self._tick_s
        if self._used[GPU] > self._room[GPU]:
            self._move_out(tick_s)
        elif len(self._held):
            self._move_in()

    def _move_out(self, now_s: float) -> None:
        inside = [p for p in self._in_hbm.values() if not p.leaves]
        inside.sort(key=lambda p: (p.turns > 0, -p.idleness(now_s), -p.arrival_s, p.number))
        leaving = sum([p.tokens for p in self._in_hbm.values() if p.leaves])
        for program in inside:
            if self._used[GPU] - leaving <= self._room[GPU]:
                return
            if program.turns:
                program.leaves = True
                leaving += program.tokens
            else:
                self._demote(program)

    def _move_in(self) -> None:
        room = self._room[GPU]
        entry = self._held.next_within(room - self._used[GPU])
        while entry is not None:
            self._move(entry.item, GPU)
            self._let_through(entry.key)
            entry = self._held.next_within(room - self._used[GPU], entry)

    def _hold(self, program_id: str, program: MoriProgram, now_s: float) -> None:
        """Queue a program with a turn at hand. Until it is let through, its queue and its idleness
        stay as they are."""
        place: Place = (1.0, float(program.is_new), float(program.tokens), program.arrival_s)
        if program.queue == CPU:
            place = (0.0, program.idleness(now_s), program.arrival_s)
        self._held.put(program_id, program, place, program.tokens)

    def _let_through(self, program_id: str) -> None:
        entry = self._held.pop(program_id)
        if entry is not None:
            self._released += entry.item.held
            entry.item.held = []

    def _demote(self, program: MoriProgram) -> None:
        program.leaves = False
        self._move(program, CPU if self._fits(program, CPU) else WAITING)

    def _fits(self, program: MoriProgram, queue: int) -> bool:
        return self._used[queue] + program.tokens <= self._room[queue]

    def _move(self, program: MoriProgram, queue: int) -> None:
        self._used[program.queue] -= program.tokens
        self._used[queue] += program.tokens
        program.queue = queue
        if queue == GPU:
            self._in_hbm[program.number] = program
        else:
            self._in_hbm.pop(program.number, None)

    def _resize(self, program: MoriProgram, tokens: int) -> None:
        self._used[program.queue] += tokens - program.tokens
        program.tokens = tokens

    # Programs -----------------------------------------------------------------------------------

    def _leave(self, request: Request, now_s: float) -> MoriProgram:
        self._catch_up(now_s)
        self._stop(request, now_s)
        program = self._programs[request.program_id]
        program.turns -= 1
        return program

    def _stop(self, request: Request, now_s: float) -> None:
        program = self._programs[request.program_id]
        admitted_s = program.running.pop(request.id, None)
        if admitted_s is not None:
            program.reasoning.append(now_s - admitted_s)

    def _idleness(self, held: Pin, now_s: float) -> float:
        program = self._programs.get(held.program_id)
        return 1.0 if program is None else program.idleness(now_s)

    def _is_in_hbm(self, held: Pin) -> bool:
        program = self._programs.get(held.program_id)
        return program is not None and program.queue == GPU
