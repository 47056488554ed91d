"""Replay of programs in virtual time: who sends which turn when, and the record of each.

In: programs, their arrivals, a policy, a profile. Out: one line per turn and per engine event, as
docs/run-folder.md has them, and a summary. Open loop: a program starts at its time whatever the
server does; a turn is sent when the previous one's last token is out, plus the recorded tool gap,
plus the wait for sub-agents that join there. In virtual time no send is ever late.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

from servers.policies.base import Future, Policy
from servers.profiles import PS_PER_S, Profile
from servers.sim import Engine, Limits, Offload, Path, Phase, Segment, Submission
from servers.sim import Sequence as Served
from traces import Program, Turn

OnLine = Callable[[dict[str, object]], None]

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
            keeps = turn.kept_tokens if own else turn.prompt_tokens - 1
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


@dataclass(slots=True)
class Run:
    """A program under way."""

    program: Program
    job_id: str
    paths: Iterator[Path]
    futures: list[Future] = field(default_factory=list)
    turn: int = 0
    waits_for: int = 0
    """Sub-agents that its next turn still waits for."""
    ready_ps: int = 0
    """End of its last turn, or of the last sub-agent that it waited for."""
    finished_ps: int = 0


class _Replay:
    def __init__(
        self,
        programs: Sequence[Program],
        bound: bool,
        engine: Callable[[Callable[[Served], None]], Engine],
        on_turn: OnLine,
    ) -> None:
        self.engine = engine(self._ended)
        self._programs = {p.id: p for p in programs}
        self._children: dict[str, list[Program]] = {}
        for program in programs:
            if program.fork is not None:
                self._children.setdefault(program.fork.program_id, []).append(program)
        self._bound = bound
        self._on_turn = on_turn
        self._contents = Contents(self.engine.profile.block_tokens)
        self._sent: dict[int, tuple[Run, dict[str, object]]] = {}
        self._runs: dict[str, Run] = {}
        self.backlog: list[Program] = []
        """Roots that start when another ends (closed loop)."""
        self.finished_programs = self.failed_turns = 0
        self.usage: list[tuple[float, int, int, int, int]] = []
        self._usage_every = 1
        self._usage_seen = 0

    def start(self, program: Program, at_ps: int, job_id: str | None = None) -> None:
        run = Run(program, job_id or program.id, self._contents.paths(program))
        run.ready_ps = run.finished_ps = at_ps
        if self._bound:
            run.futures = _futures(program.turns)
        self._runs[program.id] = run
        self._send(run, gap_s=0.0)

    def _send(self, run: Run, gap_s: float) -> None:
        program, turn = run.program, run.program.turns[run.turn]
        at_ps = run.ready_ps + round(gap_s * PS_PER_S)
        previous = program.turns[run.turn - 1] if run.turn else None
        submission = Submission(
            program.id,
            next(run.paths),
            turn.prompt_tokens,
            turn.output_tokens,
            is_last=run.turn == len(program.turns) - 1,
            tools=turn.tools,
            future=run.futures[run.turn] if self._bound else None,
        )
        record: dict[str, object] = {
            "program_id": program.id,
            "turn": run.turn,
            "job_id": run.job_id,
            "scheduled_at_s": at_ps / PS_PER_S,
            "sent_at_s": at_ps / PS_PER_S,
            "kept_tokens": turn.kept_tokens,
            "tools": list(turn.tools),
            "gap_s": gap_s,
            "gap_provenance": str(previous.gap_provenance) if previous else None,
            "wait_s": (run.ready_ps - run.finished_ps) / PS_PER_S,
        }
        served = self.engine.submit(submission, at_ps)
        self._sent[served.view.id] = (run, record)

    def _ended(self, served: Served) -> None:
        run, record = self._sent.pop(served.view.id)
        record |= _measurements(served)
        self._on_turn(record)
        self._sample_usage()
        if served.finished_ps is None:
            raise RuntimeError("a turn ended without a time")
        run.ready_ps = run.finished_ps = served.finished_ps
        if served.error is not None:
            self.failed_turns += 1
            self.engine.end_program(run.program.id)
            self._program_ended(run)
            return
        self._fork(run)
        run.turn += 1
        if run.turn == len(run.program.turns):
            self.finished_programs += 1
            self._program_ended(run)
        elif not run.waits_for:
            self._send(run, run.program.turns[run.turn - 1].tool_gap_s)

    def _fork(self, run: Run) -> None:
        for child in self._children.get(run.program.id, ()):
            fork = child.fork
            if fork is None or fork.after_turn != run.turn:
                continue
            self.start(child, run.finished_ps + round(fork.delay_s * PS_PER_S), run.job_id)
        run.waits_for = sum(
            child.fork is not None
            and child.fork.joined_before_turn == run.turn + 1
            and child.id in self._runs
            for child in self._children.get(run.program.id, ())
        )

    def _program_ended(self, run: Run) -> None:
        del self._runs[run.program.id]
        fork = run.program.fork
        if fork is None:
            if self.backlog:
                self.start(self.backlog.pop(0), run.finished_ps)
            return
        parent = self._runs.get(fork.program_id)
        if parent is not None and parent.waits_for and fork.joined_before_turn == parent.turn:
            parent.waits_for -= 1
            parent.ready_ps = max(parent.ready_ps, run.finished_ps)
            if not parent.waits_for:
                self._send(parent, parent.program.turns[parent.turn - 1].tool_gap_s)

    def _sample_usage(self) -> None:
        """Thin by halving, so that a run of any length leaves at most `MAX_USAGE_POINTS`."""
        self._usage_seen += 1
        if self._usage_seen % self._usage_every:
            return
        scheduler = self.engine.scheduler
        self.usage.append(
            (
                scheduler.now_s,
                scheduler.kv.used,
                scheduler.pins.blocks,
                len(scheduler.waiting),
                len(scheduler.running),
            )
        )
        if len(self.usage) > MAX_USAGE_POINTS:
            del self.usage[::2]
            self._usage_every *= 2


def _measurements(served: Served) -> dict[str, object]:
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
        "prefill_s": seconds(spent[Phase.PREFILL]),
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
    *,
    policy: Policy,
    bound: bool,
    profile: Profile,
    limits: Limits,
    offload: Offload | None,
    on_turn: OnLine,
    on_event: OnLine | None,
    strides: bool = True,
) -> dict[str, object]:
    """Run all programs to their end.

    `starts_s` are the arrivals of the programs that are no sub-agents, in their order; without
    them, `in_flight` of those run at a time (closed loop). Returns the contents of done.json.
    """

    def engine(on_end: Callable[[Served], None]) -> Engine:
        return Engine(
            policy, profile, limits, offload, on_end=on_end, on_event=on_event, strides=strides
        )

    run = _Replay(programs, bound, engine, on_turn)
    roots = [p for p in programs if p.fork is None]
    if starts_s is not None:
        for program, start_s in zip(roots, starts_s, strict=True):
            run.start(program, round(start_s * PS_PER_S))
    elif in_flight is not None:
        run.backlog = roots[in_flight:]
        for program in roots[:in_flight]:
            run.start(program, 0)
    else:
        raise ValueError("replay needs arrival times or a number of programs in flight")
    run.engine.run()
    return {
        "finished_programs": run.finished_programs,
        "failed_turns": run.failed_turns,
        "virtual_s": run.engine.now_ps / PS_PER_S,
        "steps": run.engine.steps,
        "strides": run.engine.strides,
        "usage": run.usage,
    }
