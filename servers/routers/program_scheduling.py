"""Programs are admitted to replicas with room to grow, and move where there is more (Progress-TTL).

Source: vllm-project/router (RFC #285, PR #286), `docs/program_scheduling.md` and
`src/program_scheduling/` (commits 02b9331 and a77107f, `scheduler_global.rs` at 3881953,
Apache-2.0). `servers.policies.progress_ttl` has the rules of one machine: a program is active or
paused, is admitted with a reserve for growth or for the gain of a larger batch, keeps its place
between turns for a TTL, and is paused if contexts exceed the KV. Here each replica has these
statistics and accounts of its own. In front of several replicas

1. a new program is bound to a replica (`binding_strategy`): by a consistent hash of its id, that
   with the fewest programs, the next one, or that with the most tokens left (programs and tokens of
   active programs and of those that wait);
2. every second (`metrics_interval_s`) the tokens in use are corrected by the KV that the replica
   reports, times reasoning programs / running turns if that is more than 1. A replica with a
   waiting turn at its latest report admits no program (`admission_waiting_request_threshold`);
3. paused programs with a turn resume on their replica. Those that have waited for too long go
   first, even if they do not fit; then the one whose last turn ended most recently, new ones last
   (`resume_order="mru"`), or in order of arrival ("fcfs"). Of these, programs that were paused
   because of their 14 rounds (`max_segment_rounds`) go last once;
4. with `global_queue=true`, which the source recommends, programs that do not resume there move, in
   order of arrival: to a replica for which no program waits, with at least the free tokens of
   theirs and 1.2 times their context (`cross_rank_headroom_ratio`) more. Both replicas must have
   finished 100 turns, the program must have waited for a second, and on its replica a turn or an
   earlier program must wait. Of several, the one with the fewest waiting turns, and then the
   smallest share of KV, is chosen;
5. a turn waits at most 3 * rounds ahead / turns per second, within 30 and 300 s
   (`force_resume_timeout_s`), of its replica, or of all with a global queue;
6. programs are paused on a replica that uses more than `high_watermark_ratio`, down to
   `low_watermark_ratio`, which is also the limit of admission. A program that was paused for 30 min
   (`paused_retention_ttl_s`) is forgotten, with its replica.

All this is decided when a turn arrives or ends, every second, and when a turn has waited too long.
Defaults are the published ones. The token capacity, which the source leaves to the operator, is the
KV of each replica, and prefill and decode times are those of the replica's profile, where the
source has the coefficients of one machine to be replaced by measured ones.

Departures from the source's code:
- the consistent hash has other hashes (`servers.routers.hash_ring`), and its key is the program's
  id; theirs can be that of a session, which then is on one replica with its sub-agents;
- the mean decode time of a turn is the step time of the batch times the mean output, as there if
  servers report no decode times;
- the shared prefix is what the first turn found. The source observes it again from time to time;
- reports are always in time, so that its fall-back to its own accounts is left out;
- turns never time out in the queue (there after 600 s), and no replica fails;
- of a program with several open turns, the one that ends first begins the segment;
- hints of clients (priority, deadline, output length, retention), `binding_only`, the binding
  `cache_aware` and the programs' forest are left out.
Checked once against a restatement of the source's code, which is Rust, on 3,000 random worlds, of
which tests/servers/test_program_scheduling_worlds.py plays 100, not against a run of it.
"""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import ClassVar, Literal

from servers.basics.compiled_core import mypyc_attr
from servers.policies.progress_machine import patience_s
from servers.routers.base import Replica, RoutedTurn, Router
from servers.routers.program_backend import (
    Backend,
    RoutedProgram,
    Settings,
    refuse_below,
    resume_key,
)
from servers.routers.program_placement import Binding, Moves, Strategy


@mypyc_attr(allow_interpreted_subclasses=True)
class ProgramScheduling(Router):
    """Programs are admitted with room to grow, keep their place for a TTL, and may move."""

    name = "program-scheduling"
    source = "vllm-project/router, RFC #285, PR #286"
    needs_kv = True
    needs_costs = True
    checked: ClassVar[str] = "yes: once against its rules in other words, on 3,000 random worlds"

    def __init__(
        self,
        replicas: Sequence[Replica],
        *,
        binding_strategy: Strategy = "consistent_hash",
        global_queue: bool = False,
        resume_order: Literal["mru", "fcfs"] = "mru",
        cross_rank_headroom_ratio: float = 1.2,
        max_active_programs: int = 64,
        metrics_interval_s: float = 1.0,
        admission_waiting_request_threshold: int = 1,
        force_resume_timeout_s: float = 300.0,
        paused_retention_ttl_s: float = 1800.0,
        max_acting_ttl_s: float = 10.0,
        high_watermark_ratio: float = 1.0,
        low_watermark_ratio: float = 1.0,
        max_segment_rounds: int = 14,
        stats_window_size: int = 100,
        enable_batch_gain_admission: bool = True,
    ) -> None:
        super().__init__(replicas)
        refuse_below(0, "cross_rank_headroom_ratio", cross_rank_headroom_ratio)
        if min(metrics_interval_s, force_resume_timeout_s, paused_retention_ttl_s) <= 0:
            raise ValueError(
                "metrics_interval_s, force_resume_timeout_s and paused_retention_ttl_s are "
                "seconds, and must be above 0"
            )
        settings = Settings(
            max_active_programs,
            admission_waiting_request_threshold,
            max_acting_ttl_s,
            high_watermark_ratio,
            low_watermark_ratio,
            max_segment_rounds,
            stats_window_size,
            enable_batch_gain_admission,
        )
        self.report_s = self.period_s = metrics_interval_s
        self._global_queue = global_queue
        self._by_arrival = resume_order == "fcfs"
        self._resume_after_s = force_resume_timeout_s
        self._forget_after_s = paused_retention_ttl_s
        self._most_rounds = max_segment_rounds
        self._backends = [Backend(replica, settings) for replica in replicas]
        self._binding = Binding(binding_strategy, self._backends)
        self._moves = Moves(
            self._backends, self._by_arrival, metrics_interval_s, cross_rank_headroom_ratio
        )
        self._programs: dict[str, RoutedProgram] = {}
        self._arriving: RoutedProgram | None = None
        """The program whose turn has arrived and awaits the first decision."""
        self._deadlines: list[tuple[float, str]] = []
        """A heap, as are `_expiries`; some have passed or changed."""
        self._expiries: list[tuple[float, str]] = []
        self._idle: OrderedDict[str, float] = OrderedDict()
        """When paused programs without turns were paused, in order of time."""

    # Turns --------------------------------------------------------------------------------------

    def route(self, turn: RoutedTurn, now_s: float) -> int | None:
        program = self._programs.get(turn.program_id)
        if program is None:
            program = RoutedProgram(self._binding.bind(turn.program_id))
            self._programs[turn.program_id] = program
        backend = self._backends[program.home]
        if not program.open_turns and program.last_finished_s >= 0:
            backend.times.add(now_s - program.last_finished_s)
        backend.arrived(program, turn.prompt_tokens)
        self._arriving = program
        if program.active:
            return program.home
        if not program.held:
            program.queued_s = now_s
        program.held.append(turn)
        self._idle.pop(turn.program_id, None)
        program.deadline_s = now_s + self._patience_s(turn.program_id, program, now_s)
        backend.hold(turn.program_id, program)
        heapq.heappush(self._deadlines, (program.deadline_s, turn.program_id))
        return None

    def finished(self, turn: RoutedTurn, now_s: float) -> None:
        program = self._programs.get(turn.program_id)
        if program is None:
            return
        backend = self._backends[program.home]
        program.cached = turn.cached_tokens
        ttl_s = backend.finished(program, turn.prompt_tokens, turn.output_tokens, now_s)
        if turn.program_id in backend.waiting:
            backend.hold(turn.program_id, program)
        if program.open_turns or turn.is_last:
            return
        if program.leaves:
            self._pause(turn.program_id, program, now_s)
        elif program.rounds >= self._most_rounds and backend.waiting:
            self._pause(turn.program_id, program, now_s)
            program.yielded = True
        else:
            program.expires_s = now_s + ttl_s
            heapq.heappush(self._expiries, (program.expires_s, turn.program_id))

    def program_ended(self, program_id: str, now_s: float) -> None:
        program = self._programs.get(program_id)
        if program is not None and not program.held:
            self._forget(program_id)

    def resumed(self, now_s: float) -> Sequence[tuple[RoutedTurn, int]]:
        self._pass_time(now_s)
        for backend in self._backends:
            for program_id in backend.make_room(now_s, self._arriving):
                self._pause(program_id, self._programs[program_id], now_s)
        self._arriving = None
        sent: list[tuple[RoutedTurn, int]] = []
        for backend in self._backends:
            while (resumes := self._next(backend, now_s)) is not None:
                sent += self._resume(resumes, backend, now_s)
        while self._global_queue and (move := self._moves.next(now_s)) is not None:
            sent += self._resume(move[0], move[1], now_s)
        return sent

    def tick(self, now_s: float) -> Sequence[tuple[RoutedTurn, int]]:
        for backend in self._backends:
            backend.observe()
        return self.resumed(now_s)

    def wake_s(self, now_s: float) -> float | None:
        """Return the next time at which a turn has waited for too long."""
        while self._deadlines:
            deadline_s, program_id = self._deadlines[0]
            program = self._programs.get(program_id)
            if program is not None and program.deadline_s == deadline_s > now_s:
                return deadline_s
            heapq.heappop(self._deadlines)
        return None

    # Choices ------------------------------------------------------------------------------------

    def _patience_s(self, program_id: str, program: RoutedProgram, now_s: float) -> float:
        """Return how long a turn that is held back now waits at most."""
        backends = self._backends if self._global_queue else [self._backends[program.home]]
        mine = resume_key((program_id, program), self._by_arrival, now_s)
        ahead = per_s = 0.0
        for backend in backends:
            rounds, turns_per_s = backend.target_rounds, backend.turns.per_second
            if rounds == 0 or turns_per_s == 0:
                return self._resume_after_s
            per_s += turns_per_s
            ahead += backend.load().rounds_ahead
            for item in backend.waiting.items():
                if resume_key(item, self._by_arrival, now_s) < mine:
                    ahead += rounds
        return patience_s(ahead, per_s, self._resume_after_s)

    def _next(self, backend: Backend, now_s: float) -> str | None:
        """Return the program that resumes next on its replica."""
        if not backend.waiting or backend.is_full or now_s < backend.none_fits_until_s:
            return None
        if backend.holds_all(now_s):
            return None
        by_arrival = self._by_arrival
        items = list(backend.waiting.items())
        items.sort(key=lambda item: resume_key(item, by_arrival, now_s))
        for program_id, program in items:
            if backend.admits(program, now_s):
                return program_id
        backend.none_fits_until_s = min(program.deadline_s for _, program in items)
        return None

    # States -------------------------------------------------------------------------------------

    def _pass_time(self, now_s: float) -> None:
        """Pause the programs whose TTL has ended, and forget those that were paused for long."""
        while self._expiries and self._expiries[0][0] <= now_s:
            expires_s, program_id = heapq.heappop(self._expiries)
            program = self._programs.get(program_id)
            if program is not None and program.active and program.expires_s == expires_s:
                self._pause(program_id, program, now_s)
                program.rounds_since_expiry = 0
        while self._idle:
            program_id, paused_s = next(iter(self._idle.items()))
            if now_s - paused_s < self._forget_after_s:
                break
            self._forget(program_id)

    def _resume(
        self, program_id: str, backend: Backend, now_s: float
    ) -> Iterable[tuple[RoutedTurn, int]]:
        """Activate a program on a replica. Return its turns, to be sent there."""
        program = self._programs[program_id]
        del self._backends[program.home].waiting[program_id]
        program.home = backend.replica.index
        backend.add(program_id, program, now_s)
        program.starts, program.scheduled_s, program.deadline_s = True, now_s, math.inf
        sent, program.held = [(turn, program.home) for turn in program.held], []
        return sent

    def _pause(self, program_id: str, program: RoutedProgram, now_s: float) -> None:
        self._backends[program.home].remove(program_id, program)
        self._idle[program_id] = now_s
        self._idle.move_to_end(program_id)

    def _forget(self, program_id: str) -> None:
        program = self._programs.pop(program_id)
        backend = self._backends[program.home]
        backend.remove(program_id, program)
        backend.waiting.pop(program_id, None)
        self._idle.pop(program_id, None)
