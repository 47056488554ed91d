"""Replay of programs in virtual time: their contents as paths, and the record of each turn.

In: programs, their arrivals, a policy, a profile. Out: one line per turn and per engine event, as
docs/reference/run-folder.md has them, and a summary. `harness.replay.schedule` says which turn is
due when; in virtual
time no send is ever late.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import Protocol

from harness.replay.schedule import ActiveProgram, Line, TurnSchedule
from servers.policies.base import Future
from servers.profiles import PS_PER_S, Profile
from servers.sim import Path, Phase, Segment, Submission, Usage
from servers.sim import Sequence as Served
from traces import Program, Turn

OnLine = Callable[[Line], None]
OnEnd = Callable[[Served], None]


class VirtualEngine(Protocol):
    """`servers.sim.Engine`, or what stands in its place."""

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
        """Until all turns have ended. Each item of `programs` is asked for, and so submits a first
        turn, when the one before has arrived, or earlier."""


MAX_USAGE_POINTS = 500


class Contents:
    """Where each turn's tokens lie in the tree of contents: shared prefixes once, the rest of a
    program in a line of its own, with a branch wherever it rewrote its history."""

    def __init__(self, block_tokens: int) -> None:
        self._block = block_tokens
        self._shared: dict[str, Segment] = {}

    def paths(self, program: Program) -> Iterator[Path]:
        """The path of each turn's prompt and answer, in order.

        What the next turn does not keep hangs off the line as a leaf, so that a path has few
        segments however long the program.
        """
        pieces: list[tuple[Segment, int]] = []
        """Segments of the line, each with the token at which it is left."""
        if program.prefix is not None:
            segment = self._shared.setdefault(program.prefix.id, Segment(0))
            pieces.append((segment, program.prefix.tokens))
        own = False
        for turn, following in zip_longest(program.turns, program.turns[1:]):
            keeps = turn.kept_tokens if own else turn.prompt_tokens
            while pieces and keeps < pieces[-1][1]:
                segment, _ = pieces.pop()
                own = False
                if keeps > (pieces[-1][1] if pieces else 0):
                    pieces.append((segment, keeps))
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


class MakesEngine(Protocol):
    """`functools.partial(servers.sim.Engine, policy, profile, limits)`, say."""

    def __call__(self, *, on_end: OnEnd) -> VirtualEngine: ...


class Replay:
    def __init__(
        self,
        programs: Sequence[Program],
        engine: MakesEngine,
        on_turn: OnLine,
        *,
        bound: bool,
    ) -> None:
        self.engine = engine(on_end=self._ended)
        self.course = TurnSchedule(programs, self._send)
        self._bound = bound
        self._on_turn = on_turn
        self._contents = Contents(self.engine.profile.block_tokens)
        self._sent: dict[Served, tuple[ActiveProgram, Line]] = {}
        self._ahead: dict[str, tuple[Iterator[Path], list[Future]]] = {}
        """Of each program under way: the paths of its next turns, and what a bound is told."""
        self.usage: list[Usage] = []
        self._usage_every = 1
        self._usage_seen = 0

    def starting(
        self, starts_s: Iterable[float] | None, in_flight: int | None
    ) -> Iterator[Program]:
        for program, at_ps in self.course.arrivals(starts_s, in_flight):
            self.course.start(program, at_ps)
            yield program

    def _send(self, run: ActiveProgram, at_ps: int, line: Line) -> None:
        program, turn = run.program, run.next_turn
        if not run.turn:
            futures = _futures(program.turns) if self._bound else []
            self._ahead[program.id] = self._contents.paths(program), futures
        paths, futures = self._ahead[program.id]
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
        self._sent[served] = (run, line)

    def _ended(self, served: Served) -> None:
        run, line = self._sent.pop(served)
        _refuse_a_changed_request(served)
        self._on_turn(line | _measurements(served, self.engine.profile.request_ps))
        self._sample_usage()
        if served.finished_ps is None:
            raise RuntimeError("a turn ended without a time")
        failed = served.error is not None
        if failed:
            self.engine.end_program(run.program.id)
        if failed or run.is_last:
            del self._ahead[run.program.id]
        self.course.ended(run, served.finished_ps, failed=failed)

    def _sample_usage(self) -> None:
        """Thin by halving, so that a run of any length leaves at most `MAX_USAGE_POINTS`."""
        self._usage_seen += 1
        if self._usage_seen % self._usage_every:
            return
        self.usage.append(self.engine.usage())
        if len(self.usage) > MAX_USAGE_POINTS:
            del self.usage[::2]
            self._usage_every *= 2


def _refuse_a_changed_request(served: Served) -> None:
    """A policy that writes what it is shown would change the physics, not decide."""
    view, sent = served.view, served.submission
    answered = served.error is None and view.output_tokens != sent.output_tokens
    if answered or (view.prompt_tokens, view.is_last) != (sent.prompt_tokens, sent.is_last):
        raise ValueError(
            f"the policy changed a request of {sent.program_id}: a policy reads requests and "
            "changes none"
        )


def _measurements(served: Served, request_ps: int) -> Line:
    """As a live client counts: what a request takes besides its steps is in its prefill."""

    def seconds(ps: int | None) -> float | None:
        return None if ps is None else ps / PS_PER_S

    spent = served.spent_ps
    hits = dict(served.hits or ())
    return {
        "first_token_at_s": seconds(served.first_token_ps),
        "finished_at_s": seconds(served.finished_ps),
        "prompt_tokens": served.view.prompt_tokens,
        "output_tokens": served.view.output_tokens,
        "device_hit_tokens": hits.get("device", 0),
        "dram_hit_tokens": hits.get("dram", 0),
        "ssd_hit_tokens": hits.get("ssd", 0),
        "queue_s": seconds(spent[Phase.QUEUE]),
        "load_s": seconds(spent[Phase.LOAD]),
        "prefill_s": seconds(spent[Phase.PREFILL] + request_ps),
        "decode_s": seconds(spent[Phase.DECODE]),
        "preempted_s": seconds(spent[Phase.PREEMPTED]),
        "recompute_s": seconds(spent[Phase.RECOMPUTE]),
        "preemptions": served.preemptions,
        "pinned_hit": served.pinned_hit,
        "error": served.error,
    }


def _futures(turns: Sequence[Turn]) -> list[Future]:
    """What a bound is told with each turn."""
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
    engine: MakesEngine,
    on_turn: OnLine,
    *,
    bound: bool = False,
) -> dict[str, object]:
    """Run all programs to their end.

    `starts_s` are the arrivals of the programs that are no sub-agents, in their order; without
    them, `in_flight` of those run at a time (closed loop). `bound`: the policy is told the future.
    Returns the contents of done.json.
    """
    run = Replay(programs, engine, on_turn, bound=bound)
    run.engine.run(run.starting(starts_s, in_flight))
    return {
        "finished_programs": run.course.finished_programs,
        "failed_turns": run.course.failed_turns,
        "virtual_s": run.engine.now_ps / PS_PER_S,
        "steps": run.engine.steps,
        "strides": run.engine.strides,
        "usage": [tuple(point) for point in run.usage],
    }
