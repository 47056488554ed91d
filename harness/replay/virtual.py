"""Replays programs in virtual time.

In: programs with their arrivals, or an endless stream of jobs, and an engine. Out: a `TurnRecord`
per turn and a summary. Each turn is sent exactly when it is due (`harness.replay.schedule`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from heapq import merge
from itertools import islice
from operator import itemgetter
from typing import TYPE_CHECKING, Protocol

from harness.replay.contents import Contents, ProgramPaths
from harness.replay.scenario import ScenarioSchedule
from harness.replay.schedule import ActiveJob, ActiveProgram, TurnSchedule
from harness.replay.steady import SteadyWindow
from harness.replay.window import AgentsWindow, HorizonWindow, Window
from servers.basics.clock import seconds
from servers.policies.base import Future
from servers.profiles import Profile
from servers.records.done import BackgroundEnd, DoneRecord
from servers.records.turns import TurnRecord
from servers.sim import EngineUsage, Phase, Submission
from servers.sim import Sequence as Served
from traces import Program, Turn
from traces.reuse import SharedPrompts

if TYPE_CHECKING:
    from harness.load.scenario import ScenarioJobs
    from harness.load.stream import ArrivingJob

OnTurn = Callable[[TurnRecord], None]
OnEnd = Callable[[Served], None]
Arriving = SteadyWindow | HorizonWindow
"""The windows of jobs that arrive at a rate."""
Start = tuple[int, Callable[[], None]]
"""When a program starts, in ps, and a function that starts it."""
Requests = Iterable[tuple[Program, int]]
"""Requests of a background with their times in ps, in order of time and without end, or none."""


class VirtualEngine(Protocol):
    """`servers.sim.Engine`, several behind a router, or vLLM's own scheduler in virtual time."""

    @property
    def profile(self) -> Profile: ...
    @property
    def now_ps(self) -> int: ...
    @property
    def trees(self) -> int:
        """Number of trees of contents: one, or with replicas one of each and of the router."""

    @property
    def steps(self) -> int: ...
    @property
    def strides(self) -> int: ...
    def submit(self, submission: Submission, at_ps: int) -> Served: ...
    def take_back(self, served: Served) -> None: ...
    def end_program(self, program_id: str) -> None: ...
    def usage(self) -> EngineUsage: ...
    def run(self, programs: Iterable[object]) -> None:
        """Run until all turns have ended.

        Taking an item of `programs` submits a program's first turn. The engine takes the next item
        when the previous program has arrived.
        """

    def stop(self) -> None:
        """End `run` early; turns that have not ended are dropped."""


MAX_USAGE_POINTS = 500


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
        oracle: bool,
        background: Requests = (),
    ) -> None:
        self._background = background
        self.has_background = background != ()
        self._unfinished_jobs = sum(program.fork is None for program in programs)
        self.engine = engine(on_end=self._ended)
        self.schedule: TurnSchedule = TurnSchedule(programs, self._send, self._job_ended)
        self._window: Window | None = None
        self._agents: tuple[Iterator[ArrivingJob], AgentsWindow] | None = None
        """Further jobs of agents, and their window."""
        self._earlier = SharedPrompts()
        self.left_out = 0
        self._oracle = oracle
        self._on_turn = on_turn
        trees = self.engine.trees
        self._contents = [Contents(self.engine.profile.block_tokens) for _ in range(trees)]
        self._sent: dict[Served, tuple[ActiveProgram, TurnRecord]] = {}
        self._upcoming: dict[str, tuple[ProgramPaths, list[Future]]] = {}
        """By active program: the paths of its turns, and all its `Future`s for an oracle."""
        self.usage: list[EngineUsage] = []
        self._usage_every = 1
        self._usage_seen = 0

    def starting(self, starts_s: Iterable[float] | None, in_flight: int | None) -> Iterator[None]:
        """Start the programs, and the background until all jobs have ended."""
        return self._started(self._starts(starts_s, in_flight))

    def _starts(self, starts_s: Iterable[float] | None, in_flight: int | None) -> Iterator[Start]:
        for program, at_ps in self.schedule.arrivals(starts_s, in_flight):
            yield at_ps, partial(self.schedule.start, program, at_ps)

    def _requests(self) -> Iterator[Start]:
        for request, at_ps in self._background:
            yield at_ps, partial(self.schedule.start_background, request, at_ps)

    def streaming(self, jobs: Iterable[ArrivingJob], window: Arriving) -> Iterator[None]:
        """Start the jobs of a stream, and the background, until its window is over or no further
        job arrives."""
        self._window = window
        return self._started(self._until_over(jobs, window))

    def _until_over(self, jobs: Iterable[ArrivingJob], window: Arriving) -> Iterator[Start]:
        for job in jobs:
            if not window.next_arrival(job.at_ps, self._shared_tokens(job.members)):
                if window.over:
                    self.engine.stop()
                return
            self.left_out = job.left_out
            yield job.at_ps, partial(self.schedule.start_job, job.members, job.index, job.at_ps)

    def circulating(self, jobs: Iterable[ArrivingJob], window: AgentsWindow) -> Iterator[None]:
        """Start the first job of each agent, and the background. Each end of a job starts the next
        one, until the window is over."""
        further = iter(jobs)
        first = list(islice(further, window.agents))
        for job in first:
            window.job_chosen(job.at_ps, job.at_ps, self._shared_tokens(job.members))
        self._window, self._agents = window, (further, window)
        return self._started(self._first_jobs(first))

    def _first_jobs(self, jobs: Iterable[ArrivingJob]) -> Iterator[Start]:
        for job in jobs:
            self.left_out = job.left_out
            yield job.at_ps, partial(self.schedule.start_job, job.members, job.index, job.at_ps)

    def _next_job(self, jobs: Iterator[ArrivingJob], window: AgentsWindow, free_ps: int) -> None:
        """Let an agent that is free at `free_ps` start its next job after a think time."""
        job = next(jobs)
        start_ps = free_ps + job.at_ps
        window.job_chosen(free_ps, start_ps, self._shared_tokens(job.members))
        self.left_out = job.left_out
        if window.over:
            self.engine.stop()
        else:
            self.schedule.start_job(job.members, job.index, start_ps)

    def _started(self, jobs: Iterable[Start]) -> Iterator[None]:
        """Start jobs and background in order of time, each when the one before has arrived."""
        for _, start in merge(jobs, self._requests(), key=itemgetter(0)):
            start()
            yield

    def _shared_tokens(self, programs: Iterable[Program]) -> int:
        """Return how many tokens of first prompts begin like prompts of earlier programs."""
        return sum(self._earlier.add(program.first_prefixes) for program in programs)

    def _job_ended(self, job: ActiveJob, finished_ps: int) -> None:
        if job.is_background:
            return
        if self._window is None:
            self._unfinished_jobs -= 1
            if self.has_background and not self._unfinished_jobs:
                self.engine.stop()
            return
        if job.index is None or self._window.over:
            return
        self._window.job_ended(job.index, finished_ps)
        if self._window.over:
            self.engine.stop()
        elif self._agents is not None:
            self._next_job(*self._agents, finished_ps)

    def _send(self, run: ActiveProgram, at_ps: int, record: TurnRecord) -> None:
        program, turn = run.program, run.next_turn
        if not run.turn:
            futures = _futures(program.turns) if self._oracle else []
            self._upcoming[program.id] = ProgramPaths(self._contents, program), futures
        paths, futures = self._upcoming[program.id]
        one = len(self._contents) == 1
        submission = Submission(
            program.id,
            paths.of_turn(run.turn, 0) if one else (),
            turn.prompt_tokens,
            turn.output_tokens,
            is_last=run.is_last,
            tools=turn.tools,
            future=futures[run.turn] if self._oracle else None,
            path_on=None if one else partial(paths.of_turn, run.turn),
            job_id=run.job_id,
        )
        served = self.engine.submit(submission, at_ps + self.engine.profile.request_ps)
        self._sent[served] = (run, record)

    def take_back(self, run: ActiveProgram) -> None:
        """Take the turn that a program has sent back from the engine, before it is due."""
        served = next(served for served, (of, _) in self._sent.items() if of is run)
        del self._sent[served]
        self.engine.take_back(served)

    def _ended(self, served: Served) -> None:
        run, record = self._sent.pop(served)
        _refuse_changed_request(served)
        _measure(record, served, self.engine.profile.request_ps + served.request_ps)
        if len(self._contents) > 1:
            record.replica = served.replica
            held_ps = served.prefilled.held_ps if served.prefilled else 0
            record.held_s = seconds(served.held_ps + held_ps)
        if self._window is not None and run.job.index is not None:
            self._window.turn_ended(record, run.job.index)
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

    def background_end(self) -> BackgroundEnd:
        until_s = seconds(self.engine.now_ps)
        unfinished = [
            (record.scheduled_at_s, _seconds(served.first_token_ps))
            for served, (run, record) in self._sent.items()
            if run.job.is_background and record.scheduled_at_s <= until_s
        ]
        return BackgroundEnd(until_s=until_s, unfinished=unfinished)

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
    if answered or view.prompt_tokens != sent.prompt_tokens or view.is_last is not sent.is_last:
        raise ValueError(
            f"the policy changed a request of {sent.program_id}; a policy must not modify requests"
        )


def _measure(record: TurnRecord, served: Served, request_ps: int) -> None:
    """Complete the record. The time of a request before the engine's queue counts as prefill, as a
    live client would measure it."""
    spent, hits = served.spent_ps, served.hits
    if (prefilled := served.prefilled) is not None:
        request_ps += prefilled.request_ps
        _measure_transfer(record, served)
        hits = prefilled.hits
        spent = [a + b for a, b in zip(prefilled.spent_ps, served.spent_ps, strict=True)]
        spent[Phase.QUEUE] = prefilled.spent_ps[Phase.QUEUE]
        spent[Phase.LOAD] = prefilled.spent_ps[Phase.LOAD]
    queue_ps, load_ps, prefill_ps, decode_ps, preempted_ps, recompute_ps = spent
    record.first_token_at_s = _seconds(served.first_token_ps)
    record.finished_at_s = _seconds(served.finished_ps)
    record.prompt_tokens = served.view.prompt_tokens
    record.output_tokens = served.view.output_tokens
    record.device_hit_tokens = _hit_tokens(hits, "device")
    record.dram_hit_tokens = _hit_tokens(hits, "dram")
    record.ssd_hit_tokens = _hit_tokens(hits, "ssd")
    record.queue_s = seconds(queue_ps)
    record.load_s = seconds(load_ps)
    record.prefill_s = seconds(prefill_ps + request_ps)
    record.decode_s = seconds(decode_ps)
    record.preempted_s = seconds(preempted_ps)
    record.recompute_s = seconds(recompute_ps)
    record.preemptions = served.preemptions + (prefilled.preemptions if prefilled else 0)
    record.pinned_hit = served.pinned_hit
    record.error = served.error


def _measure_transfer(record: TurnRecord, served: Served) -> None:
    """Complete the record of a turn whose prompt a prefill engine computed."""
    if served.prefilled is None:
        return
    on_device = _hit_tokens(served.hits, "device")
    record.prefill_replica = served.prefilled.replica
    record.decode_queue_s = seconds(served.spent_ps[Phase.QUEUE])
    record.transfer_s = seconds(served.spent_ps[Phase.LOAD])
    record.transfer_tokens = served.view.prompt_tokens - on_device


def _hit_tokens(hits: list[tuple[str, int]] | None, tier: str) -> int:
    for name, tokens in hits or ():
        if name == tier:
            return tokens
    return 0


def _seconds(ps: int | None) -> float | None:
    return None if ps is None else seconds(ps)


def _futures(turns: Sequence[Turn]) -> list[Future]:
    """Return the future that an oracle gets with each turn."""
    futures = []
    prompt = output = 0
    for index in range(len(turns) - 1, -1, -1):
        turn = turns[index]
        prompt += turn.new_tokens
        output += turn.output_tokens
        last = index == len(turns) - 1
        futures.append(Future(None if last else float(turn.tool_gap_s), prompt, output))
    return futures[::-1]


def replay(
    programs: Sequence[Program],
    starts_s: Iterable[float] | None,
    in_flight: int | None,
    engine: EngineFactory,
    on_turn: OnTurn,
    *,
    oracle: bool = False,
    background: Requests = (),
) -> DoneRecord:
    """Run all programs to their end. Returns the contents of done.json.

    `starts_s` are the arrival times of the root programs, in their order; without them,
    `in_flight` root programs run at a time (closed loop). `oracle`: the policy gets each program's
    future.
    """
    run = Replay(programs, engine, on_turn, oracle=oracle, background=background)
    run.engine.run(run.starting(starts_s, in_flight))
    return _summary(run)


def replay_stream(
    jobs: Iterable[ArrivingJob],
    window: Arriving | AgentsWindow,
    engine: EngineFactory,
    on_turn: OnTurn,
    *,
    oracle: bool = False,
    background: Requests = (),
) -> DoneRecord:
    """Run jobs of an endless stream, or of agents, until their window is over. Returns the contents
    of done.json."""
    run = Replay((), engine, on_turn, oracle=oracle, background=background)
    if isinstance(window, AgentsWindow):
        run.engine.run(run.circulating(jobs, window))
    else:
        run.engine.run(run.streaming(jobs, window))
    done = _summary(run)
    done.left_out_programs = run.left_out
    window.record_in(done)
    return done


def replay_scenario(
    jobs: ScenarioJobs, engine: EngineFactory, on_turn: OnTurn, *, oracle: bool = False
) -> DoneRecord:
    """Run a scenario to the end of its window. Returns the contents of done.json."""
    run = Replay((), engine, on_turn, oracle=oracle)
    schedule = ScenarioSchedule(jobs, jobs.agents, jobs.scenario, run._send, run.take_back)
    run.schedule = schedule
    run.engine.run(schedule.beginning())
    done = _summary(run)
    schedule.record_in(done)
    return done


def _summary(run: Replay) -> DoneRecord:
    of_replicas = [point.replica_blocks for point in run.usage]
    return DoneRecord(
        finished_programs=run.schedule.finished_programs,
        failed_turns=run.schedule.failed_turns,
        virtual_s=seconds(run.engine.now_ps),
        steps=run.engine.steps,
        strides=run.engine.strides,
        usage=[point[:-1] for point in run.usage],
        replica_blocks=of_replicas if any(of_replicas) else None,
        background=run.background_end() if run.has_background else None,
    )
