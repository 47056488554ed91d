"""Programs as Progress-TTL counts them, the active ones of a machine, and what fits beside them.

The policy `progress-ttl` has one machine, and the router `program-scheduling` has one for each
replica. `servers.policies.progress_ttl` has the formulas and their source.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from servers.policies.base import Costs
from servers.policies.estimates.lognormal import LogNormalTimes
from servers.policies.estimates.turn_window import TurnWindow

ALPHA = 0.15
"""Share of the decode throughput that is left while a prompt is computed."""
SOONEST_S = 30.0
PROGRAM_TOKENS = 100
"""Tokens that are added for each program, for its next output."""
CONTINUOUS = 0.9
"""Share of the previous prompt that must be cached for a turn to count as a round."""


class ProgressProgram:
    def __init__(self) -> None:
        self.active = False
        self.open_turns = 0
        """Number of turns that wait or run; 0 while it acts."""
        self.held_turns = 0
        """Number of them that arrived while it was paused, and still wait."""
        self.context = 0
        """Prompt tokens; they shrink only after two turns with fewer."""
        self.shrinks = 0
        self.shared = 0
        self.last_prompt = 0
        """Prompt tokens of the last turn that finished; 0 before the first."""
        self.last_finished_s = -1.0
        self.rebuild_s = 0.0
        """Seconds that a rebuild of its context costs, since its latest turn was held back."""
        self.last_impact_s = 0.0
        """Seconds that a rebuild of the last turn's prompt costs."""
        self.rounds = 0
        """Rounds since its admission."""
        self.rounds_since_expiry = 0
        self.segment_since_s = -1.0
        self.expires_s = math.inf
        """When it is paused, while it acts."""
        self.leaves = False
        """Whether it is paused at the end of its turn."""
        self.yielded = False
        """Whether it was paused after the most rounds."""
        self.last_turn = -1
        """Id of the turn that finished last."""
        self.cached = 0
        self.starts = False
        """Whether the running turn is the first since its admission."""
        self.scheduled_s = 0.0

    @property
    def tokens(self) -> int:
        return max(self.context - self.shared, 0) + PROGRAM_TOKENS

    def arrived(self, prompt_tokens: int) -> None:
        if prompt_tokens >= self.context:
            self.context, self.shrinks = prompt_tokens, 0
        self.open_turns += 1
        self.expires_s = math.inf

    def scheduled(self, cached_tokens: int, now_s: float) -> None:
        """Record the start of a turn, before the program becomes active."""
        self.cached, self.starts, self.scheduled_s = cached_tokens, not self.active, now_s

    def finished(self, prompt: int, impact_s: float, now_s: float) -> int:
        """Record the end of a turn. Return how many tokens its prompt has grown since the last one;
        0 if there was none, or if it shrank or more than doubled."""
        last = self.last_prompt
        continuous = not last or self.cached >= CONTINUOUS * last
        if self.starts and (not last or not continuous):
            self.segment_since_s = self.scheduled_s
        if not last:
            self.shared = self.cached
        self.open_turns -= 1
        self.shrinks += 1
        if prompt >= self.context or self.shrinks == 2:
            self.context, self.shrinks = prompt, 0
        self.starts, self.last_prompt = False, prompt
        self.last_impact_s, self.last_finished_s = impact_s, now_s
        self.rounds += continuous
        self.rounds_since_expiry += continuous
        return prompt - last if last < prompt < 2 * last else 0

    def served_s(self, now_s: float, mean_prompt: float) -> float:
        """Return the seconds since its segment began, more for a small prompt, and half for a large
        one."""
        prompt = self.context if self.open_turns else self.last_prompt
        relative = max(prompt / max(mean_prompt, 1.0), 1e-6)
        since_s = self.segment_since_s if self.segment_since_s >= 0 else now_s
        return (now_s - since_s) * max(1 / math.sqrt(relative), 0.5)


class ActiveLoad:
    """What the active programs of a machine need in all."""

    def __init__(
        self, active: Sequence[ProgressProgram], window: TurnWindow, rounds: int, costs: Costs
    ) -> None:
        self.growth = window.mean_growth if rounds else 0.0
        """Tokens per round; 0 until the window is full."""
        self.rounds = rounds
        """Rounds for which a program is to stay."""
        self.rounds_left = float(sum([max(rounds - p.rounds, 0) for p in active]))
        reasoning = [p for p in active if p.open_turns]
        last_rounds = len([p for p in reasoning if p.rounds >= rounds])
        self.rounds_ahead = self.rounds_left + last_rounds
        """Rounds until all active programs have left, at least one for each that reasons."""
        self.turns = len(reasoning)
        self.context = sum([p.context for p in reasoning])
        self.step_s = costs.decode_s(self.turns, self.context) if reasoning else 0.0
        impacts = [p.last_impact_s for p in active if p.rounds < rounds]
        self.impacts = len(impacts)
        """Number of programs that have rounds left."""
        self.impacts_s = float(sum(impacts))
        """What rebuilds of their contexts cost."""
        self.ask_again()

    def ask_again(self) -> None:
        """Forget which programs do not fit."""
        self.refused = (math.inf, math.inf, math.inf)
        """The smallest program that did not fit: its tokens, its context, and the cost of its
        rebuild. None that has as much of each fits."""
        self.holds_all: bool | None = None
        """Whether no program that waits fits; None before the owner has found out."""


class ProgressMachine:
    def __init__(
        self,
        costs: Costs,
        kv_tokens: float,
        *,
        window: int,
        longest_s: float,
        most_rounds: int,
        most_active: int,
        batch_gain: bool,
        low: float = 1.0,
        high: float = 1.0,
    ) -> None:
        self.times = LogNormalTimes(window)
        """Times between the turns of its programs."""
        self.turns = TurnWindow(window)
        self.active: dict[str, ProgressProgram] = {}
        self.counted = 0.0
        """Tokens of the active programs."""
        self.limit = low * kv_tokens
        """Tokens up to which programs are admitted, and down to which they are paused."""
        self._pause_above = high * kv_tokens
        self._costs = costs
        self._longest_s = longest_s
        self._most_rounds = most_rounds
        self._most_active = most_active
        self._batch_gain = batch_gain
        self._known_load: ActiveLoad | None = None
        """None if it has to be summed again."""
        self._has_room = False
        """Whether there is room for all active programs, and nothing has changed since."""

    @property
    def used(self) -> float:
        return max(self.counted, 0.0)

    @property
    def target_rounds(self) -> int:
        """Rounds for which a program is to stay; 0 until the window is full."""
        return self.turns.target_rounds(self._most_rounds)

    # Programs -----------------------------------------------------------------------------------

    def changed(self) -> None:
        """The load has to be summed again, after any event of an active program."""
        self._known_load, self._has_room = None, False

    def add(self, program_id: str, program: ProgressProgram, now_s: float) -> None:
        program.active, program.yielded, program.rounds = True, False, 0
        if program.segment_since_s < 0:
            program.segment_since_s = now_s
        self.active[program_id] = program
        self.counted += program.tokens
        self.changed()

    def remove(self, program_id: str, program: ProgressProgram) -> None:
        """Take out a program that is paused, or was."""
        if program.active:
            program.active = False
            self.counted -= program.tokens
            del self.active[program_id]
            self.changed()
        program.rounds, program.leaves, program.expires_s = 0, False, math.inf

    def arrived(self, program: ProgressProgram, prompt_tokens: int) -> None:
        before = program.tokens
        program.arrived(prompt_tokens)
        if program.active:
            self.counted += program.tokens - before
            self.changed()
        elif self._known_load is not None:
            self._known_load.ask_again()

    def finished(self, program: ProgressProgram, prompt: int, output: int, now_s: float) -> float:
        """Count a turn that has ended. Return the seconds for which its program keeps its place, by
        the turns before it."""
        impact_s = self._impact_s(prompt - program.shared)
        ttl_s = self.times.best_ttl_s(impact_s, self._longest_s)
        before = program.tokens
        growth = program.finished(prompt, impact_s, now_s)
        self.turns.add(prompt, output, growth, program.rounds_since_expiry, now_s)
        if program.active:
            self.counted += program.tokens - before
        self.changed()
        return ttl_s

    # Choices ------------------------------------------------------------------------------------

    def fits(self, tokens: int, context: int, rebuild_s: float) -> bool:
        """Return whether a paused program fits, with room for the growth of all."""
        load = self.load()
        least, least_context, least_s = load.refused
        if tokens >= least and context >= least_context and rebuild_s >= least_s:
            return False
        if (
            len(self.active) < self._most_active
            and self.used + tokens <= self.limit
            and (
                self.used + tokens + self.reserve() <= self.limit
                or self._gains(tokens, context, rebuild_s)
            )
        ):
            return True
        if tokens <= least:
            load.refused = float(tokens), float(context), rebuild_s
        return False

    def none_fits(self, smallest: int, cheapest_s: float) -> bool:
        """Return whether no program of at least `smallest` tokens fits whose rebuild costs at
        least `cheapest_s`."""
        return not self.fits(smallest, smallest - PROGRAM_TOKENS, cheapest_s)

    def reserve(self) -> float:
        """Return the tokens by which active programs and one more are expected to grow."""
        load = self.load()
        return load.growth * (load.rounds + load.rounds_left)

    def make_room(self, now_s: float, arriving: ProgressProgram | None = None) -> list[str]:
        """Return the acting programs to pause, and mark reasoning ones to leave, if contexts and
        outputs to come exceed the KV. A program whose turn arrives now is not marked."""
        paused: list[str] = []
        if self._has_room:
            return paused
        output = math.ceil(self.turns.mean_output)
        reasoning = [p for p in self.active.values() if p.open_turns]
        projected = self.used + output * len(reasoning)
        projected -= sum(p.tokens + output for p in reasoning if p.leaves)
        self._has_room = projected <= self._pause_above
        if self._has_room:
            return paused
        victims = [i for i in self.active.items() if not i[1].leaves and i[1] is not arriving]
        mean = self.turns.mean_prompt
        victims.sort(key=lambda i: (-i[1].served_s(now_s, mean), -i[1].tokens, i[0]))
        for program_id, program in victims:
            if projected <= self.limit:
                break
            projected -= program.tokens
            if program.open_turns:
                projected -= output
                program.leaves = True
            else:
                paused.append(program_id)
        return paused

    def rebuild_s(self, program: ProgressProgram) -> float:
        """Return what a rebuild of a program's context costs."""
        return self._impact_s(program.context - program.shared)

    def _impact_s(self, tokens: int) -> float:
        """Return what a rebuild of a context costs, with the decodes that it slows down."""
        return self._costs.rebuild_s(tokens) * (2 - ALPHA) if tokens > 0 else 0.0

    def load(self) -> ActiveLoad:
        """Return the load, which is the same object until something changes."""
        load = self._known_load
        if load is None:
            load = ActiveLoad(
                list(self.active.values()), self.turns, self.target_rounds, self._costs
            )
            self._known_load = load
        return load

    def _gains(self, tokens: int, context: int, rebuild_s: float) -> bool:
        """Return whether a larger batch gains more decode time than the prefill of a program that
        joins it and the shorter stay of the others cost."""
        if not self._batch_gain:
            return False
        load, lost_s = self.load(), self._lost_s(tokens)
        if lost_s == math.inf:
            return False
        larger_s = self._costs.decode_s(load.turns + 1, load.context + context)
        gain = max((load.turns + 1) / larger_s * load.step_s / load.turns - 1, 0.0)
        gain_s = self.turns.mean_output * load.step_s * gain
        return gain_s >= rebuild_s + lost_s

    def _lost_s(self, tokens: int) -> float:
        """Return what a shorter stay costs the active programs if one of `tokens` joins them;
        infinite if it leaves them no round, or if no program reasons."""
        load = self.load()
        if not load.turns:
            return math.inf
        left = max(self.limit - self.used, 0.0)
        before = min(load.rounds_left, left / load.growth)
        after = max(left - tokens - load.growth * load.rounds, 0.0) / load.growth
        after = min(load.rounds_left, after)
        if after <= 2**-52:
            return math.inf if before > 0 else 0.0
        return (before - after) / after * load.impacts_s / load.impacts


def patience_s(rounds_ahead: float, turns_per_s: float, longest_s: float) -> float:
    """Return how long a turn is held back at most."""
    return min(max(3 * rounds_ahead / turns_per_s, SOONEST_S), longest_s)
