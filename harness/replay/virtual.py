"""Replays programs in virtual time.

In: programs, their arrivals, an engine. Out: a `TurnRecord` per turn and a summary. Each turn is
sent exactly when it is due (`harness.replay.schedule`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import Protocol

from harness.replay.schedule import ActiveProgram, TurnSchedule
from servers.clock import PS_PER_S
from servers.policies.base import Future
from servers.profiles import Profile
from servers.records import TurnRecord
from servers.sim import Path, Phase, Segment, Submission, Usage
from servers.sim import Sequence as Served
from traces import Program, SharedPrefix, Turn
from traces.block_hashes import truncated

OnTurn = Callable[[TurnRecord], None]
OnEnd = Callable[[Served], None]


class VirtualEngine(Protocol):
    """`servers.sim.Engine`, or vLLM's own scheduler in virtual time."""

    @property
    def profile(self) -> Profile: ...
    @property
    def now_ps(self) -> int: ...
    @property
    def steps(self) -> int: ...
    @property
    def strides(self) -> int: ...
    def submit(self, submission: Submission, at_ps: int) -> Served: ...
    def end_program(self, program_id: str) -> None: ...
    def usage(self) -> Usage: ...
    def run(self, programs: Iterable[object]) -> None:
        """Run until all turns have ended.

        Taking an item of `programs` submits a program's first turn. The engine takes the next item
        at the latest when the previous program has arrived.
        """


MAX_USAGE_POINTS = 500


class Contents:
    """Places the tokens of turns in a tree, in which equal beginnings of contexts share segments.

    Programs share the segments of their common prefixes. The rest of a program is a separate
    branch, and a further one from each point at which it rewrote its history.
    """

    def __init__(self, block_tokens: int) -> None:
        self._block = block_tokens
        self._prefixes: dict[str, Segment] = {}

    def paths(self, program: Program) -> Iterator[Path]:
        """Yield the path of each turn's prompt and answer, in order.

        Tokens that the next turn does not keep become a leaf beside the branch, so that a path has
        few segments even in a long program.
        """
        pieces: list[tuple[Segment, int]] = []
        """Segments of the branch, each with the token at which the path leaves it."""
        own = False
        """Whether the last segment belongs only to this program and still grows."""
        prefixes: tuple[SharedPrefix, ...] = () if program.prefix is None else (program.prefix,)
        for turn, following in zip_longest(program.turns, program.turns[1:]):
            keeps = turn.kept_tokens
            while pieces and keeps < pieces[-1][1]:
                segment, _ = pieces.pop()
                own = False
                if keeps > (pieces[-1][1] if pieces else 0):
                    pieces.append((segment, keeps))
            if prefixes := prefixes or turn.prefixes:
                shared, end = self._shared(prefixes, turn, following)
                beyond = [piece for piece in pieces if piece[1] > end]
                if beyond and beyond[0][0] is shared[-1][0]:
                    shared.pop()
                pieces = shared + beyond
                own = own and bool(beyond)
                prefixes = ()
            if not own:
                begins = pieces[-1][1] if pieces else 0
                pieces.append((Segment(begins // self._block), begins))
                own = True
            context = turn.context_tokens
            kept = context if following is None else min(following.kept_tokens, context)
            kept = max(kept, pieces[-1][1])
            pieces[-1] = (pieces[-1][0], kept)
            leaf = [(Segment(kept // self._block), context)] if kept < context else []
            yield tuple((segment, leave // self._block) for segment, leave in pieces + leaf)

    def _shared(
        self, prefixes: Sequence[SharedPrefix], turn: Turn, following: Turn | None
    ) -> tuple[list[tuple[Segment, int]], int]:
        """Return the segments of a context that are prefixes, and the token at which they end.

        The prefixes of the next prompt may include this turn's answer, which it repeats.
        """
        end = turn.prompt_tokens
        if following is not None and following.prefixes and prefixes[-1].tokens >= end:
            answered = min(following.kept_tokens, turn.context_tokens)
            if min(answered, following.prefixes[-1].tokens) > end:
                prefixes, end = following.prefixes, answered
        shared: list[tuple[Segment, int]] = []
        begins = 0
        for prefix in truncated(prefixes, end):
            start = begins // self._block
            segment = self._prefixes.setdefault(prefix.id, Segment(start))
            shared.append((segment, prefix.tokens))
            begins = prefix.tokens
        return shared, begins


class EngineFactory(Protocol):
    """For example `functools.partial(servers.sim.Engine, policy, profile, limits)`."""

    def __call__(self, *, on_end: OnEnd) -> VirtualEngine: ...


class Replay:
    def __init__(
        self,
        programs: Sequence[Program],
        engine: EngineFactory,
        on_turn: OnTurn,
        *,
        bound: bool,
    ) -> None:
        self.engine = engine(on_end=self._ended)
        self.schedule = TurnSchedule(programs, self._send)
        self._bound = bound
        self._on_turn = on_turn
        self._contents = Contents(self.engine.profile.block_tokens)
        self._sent: dict[Served, tuple[ActiveProgram, TurnRecord]] = {}
        self._upcoming: dict[str, tuple[Iterator[Path], list[Future]]] = {}
        """By active program: the paths of its next turns, and all its `Future`s for a bound."""
        self.usage: list[Usage] = []
        self._usage_every = 1
        self._usage_seen = 0

    def starting(
        self, starts_s: Iterable[float] | None, in_flight: int | None
    ) -> Iterator[Program]:
        for program, at_ps in self.schedule.arrivals(starts_s, in_flight):
            self.schedule.start(program, at_ps)
            yield program

    def _send(self, run: ActiveProgram, at_ps: int, record: TurnRecord) -> None:
        program, turn = run.program, run.next_turn
        if not run.turn:
            futures = _futures(program.turns) if self._bound else []
            self._upcoming[program.id] = self._contents.paths(program), futures
        paths, futures = self._upcoming[program.id]
        submission = Submission(
            program.id,
            next(paths),
            turn.prompt_tokens,
            turn.output_tokens,
            is_last=run.is_last,
            tools=turn.tools,
            future=futures[run.turn] if self._bound else None,
        )
        served = self.engine.submit(submission, at_ps + self.engine.profile.request_ps)
        self._sent[served] = (run, record)

    def _ended(self, served: Served) -> None:
        run, record = self._sent.pop(served)
        _refuse_changed_request(served)
        _measure(record, served, self.engine.profile.request_ps)
        self._on_turn(record)
        self._sample_usage()
        if served.finished_ps is None:
            raise RuntimeError("a turn has no end time")
        failed = served.error is not None
        if failed:
            self.engine.end_program(run.program.id)
        if failed or run.is_last:
            del self._upcoming[run.program.id]
        self.schedule.ended(run, served.finished_ps, failed=failed)

    def _sample_usage(self) -> None:
        """Sample the engine's usage, less often in a long run, to keep at most MAX_USAGE_POINTS."""
        self._usage_seen += 1
        if self._usage_seen % self._usage_every:
            return
        self.usage.append(self.engine.usage())
        if len(self.usage) > MAX_USAGE_POINTS:
            del self.usage[::2]
            self._usage_every *= 2


def _refuse_changed_request(served: Served) -> None:
    """Raise ValueError if the policy modified a request: it may only read requests."""
    view, sent = served.view, served.submission
    answered = served.error is None and view.output_tokens != sent.output_tokens
    if answered or (view.prompt_tokens, view.is_last) != (sent.prompt_tokens, sent.is_last):
        raise ValueError(
            f"the policy changed a request of {sent.program_id}; a policy must not modify requests"
        )


def _measure(record: TurnRecord, served: Served, request_ps: int) -> None:
    """Complete the record. The fixed time of a request counts as prefill, as a live client would
    measure it."""
    spent = served.spent_ps
    hits = dict(served.hits or ())
    record.first_token_at_s = _seconds(served.first_token_ps)
    record.finished_at_s = _seconds(served.finished_ps)
    record.prompt_tokens = served.view.prompt_tokens
    record.output_tokens = served.view.output_tokens
    record.device_hit_tokens = hits.get("device", 0)
    record.dram_hit_tokens = hits.get("dram", 0)
    record.ssd_hit_tokens = hits.get("ssd", 0)
    record.queue_s = spent[Phase.QUEUE] / PS_PER_S
    record.load_s = spent[Phase.LOAD] / PS_PER_S
    record.prefill_s = (spent[Phase.PREFILL] + request_ps) / PS_PER_S
    record.decode_s = spent[Phase.DECODE] / PS_PER_S
    record.preempted_s = spent[Phase.PREEMPTED] / PS_PER_S
    record.recompute_s = spent[Phase.RECOMPUTE] / PS_PER_S
    record.preemptions = served.preemptions
    record.pinned_hit = served.pinned_hit
    record.error = served.error


def _seconds(ps: int | None) -> float | None:
    return None if ps is None else ps / PS_PER_S


def _futures(turns: Sequence[Turn]) -> list[Future]:
    """Return the future that a bound gets with each turn."""
    futures = []
    prompt = output = 0
    for index in range(len(turns) - 1, -1, -1):
        turn = turns[index]
        prompt += turn.new_tokens
        output += turn.output_tokens
        last = index == len(turns) - 1
        futures.append(Future(None if last else turn.tool_gap_s, prompt, output))
    return futures[::-1]


def replay(
    programs: Sequence[Program],
    starts_s: Iterable[float] | None,
    in_flight: int | None,
    engine: EngineFactory,
    on_turn: OnTurn,
    *,
    bound: bool = False,
) -> dict[str, object]:
    """Run all programs to their end. Returns the contents of done.json.

    `starts_s` are the arrival times of the root programs, in their order; without them,
    `in_flight` root programs run at a time (closed loop). `bound`: the policy gets each program's
    future.
    """
    run = Replay(programs, engine, on_turn, bound=bound)
    run.engine.run(run.starting(starts_s, in_flight))
    return {
        "finished_programs": run.schedule.finished_programs,
        "failed_turns": run.schedule.failed_turns,
        "virtual_s": run.engine.now_ps / PS_PER_S,
        "steps": run.engine.steps,
        "strides": run.engine.strides,
        "usage": [tuple(point) for point in run.usage],
    }
