"""Replays programs against live OpenAI-compatible servers.

In: programs, their arrivals, and a `Service`. Out: a `TurnRecord` per turn and a summary; fields
that only an engine can measure are null (docs/howto/vllm.md). Each turn is sent when it is
due (`harness.replay.schedule`), at an absolute time on the monotonic clock, so that lateness does
not accumulate. A turn that fails for any reason gets a record with its `error`.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING

import aiohttp
from msgspec import UNSET

from harness.replay.completion import PartialAnswer, QueueFull, measure
from harness.replay.engine_events import EngineLogs
from harness.replay.http import (
    FAILURES,
    allow_many_connections,
    authorization,
    client_session,
    failure_reason,
    known_keys,
    stream_completion,
)
from harness.replay.identity import identity_headers
from harness.replay.live_server import DYNAMO, Service
from harness.replay.liveness import Liveness
from harness.replay.program_routing import ProgramRouting
from harness.replay.prompts import (
    RecordedConversation,
    TextPrompts,
    TokenConversation,
    TokenPrompts,
)
from harness.replay.recorded_answers import Answers, recorded_answers
from harness.replay.scenario import ScenarioSchedule
from harness.replay.schedule import ActiveProgram, TurnSchedule
from servers.basics.clock import PS_PER_S
from servers.basics.errors import InvalidRouter
from servers.records.done import BackgroundEnd, DoneRecord
from servers.records.turns import EventRecord, TurnRecord
from servers.routers.base import RoutedTurn
from servers.routers.runner import BuildRouter
from servers.routers.sticky import Sticky
from traces import Message, Program, Turn

if TYPE_CHECKING:
    from harness.load.scenario import ScenarioJobs

START_S = 0.2
"""Time from the call to the cell's time 0. Programs are also prepared this long before they
start."""
PREPARE_S = 0.02
"""The body of a turn is built this long before the turn is due, because encoding a long prompt
takes milliseconds."""


@dataclass
class _Live:
    programs: Sequence[Program]
    service: Service
    session: aiohttp.ClientSession
    api_key: str | None
    on_turn: Callable[[TurnRecord], None]
    on_event: Callable[[EventRecord], None] | None
    liveness: Sequence[Liveness]
    lost_reason: Callable[[], str | None]
    build_router: BuildRouter
    background: Iterable[tuple[Program, int]]
    answers: Answers
    """Tokens with which answers begin, by program and turn."""
    scenario_jobs: ScenarioJobs | None

    def __post_init__(self) -> None:
        service = self.service
        jobs = self.scenario_jobs
        self.schedule = (
            TurnSchedule(self.programs, self._send)
            if jobs is None
            else ScenarioSchedule(jobs, jobs.agents, jobs.scenario, self._send, self._take_back)
        )
        self._tasks: dict[str, asyncio.Task[None]] = {}
        """The turns that have not ended, by program."""
        self._prompts = (
            TextPrompts(self.programs)
            if service.text
            else TokenPrompts(service.vocabulary, service.seed)
        )
        self._first, *_ = self._servers = service.servers
        self._dynamo = self._first.dynamo
        apis = self._first.apis if self._dynamo is None else DYNAMO
        self._api = apis.text if service.text else apis.tokens
        self._secrets = known_keys(self.api_key)
        servers = (*self._servers, *self._first.behind)
        self._id_fields = {end.field for each in servers for end in each.session_ends}
        self._conversations: dict[str, TokenConversation | RecordedConversation] = {}
        self.refusals = 0
        """Requests that a full queue refused."""
        self._jobs_ended_s: float | None = None
        self._unfinished: list[tuple[float, float | None]] = []

    async def run(self, starts_s: Iterable[float] | None, in_flight: int | None) -> float:
        """Run all programs. Returns the time at the end, on the cell's clock."""
        self._clock = asyncio.get_running_loop().time
        self.origin_s = self._clock() + START_S
        """The cell's time 0 on this machine's monotonic clock, which engines' events use."""
        events = [server.events for server in self._first.behind or self._servers]
        self._logs = EngineLogs(events, self.origin_s, self.on_event)
        self._routing = ProgramRouting(
            self.build_router, self.service, self.session, self.api_key, self._now_s
        )
        try:
            async with asyncio.TaskGroup() as duties:
                routing = duties.create_task(self._routing.router.run())
                background = duties.create_task(self._offer_background())
                async with asyncio.TaskGroup() as self._turns:
                    for program, at_ps in self.schedule.arrivals(starts_s, in_flight):
                        await self._until(at_ps / PS_PER_S - START_S)
                        self.schedule.start(program, at_ps)
                self._jobs_ended_s = self._now_s()
                if isinstance(self.schedule, ScenarioSchedule):
                    async with asyncio.TaskGroup() as reports:
                        for program_id in self._conversations:  # those that the window cuts
                            self._routing.cut(program_id, reports)
                background.cancel()
                await asyncio.wait({background})
                routing.cancel()
        finally:
            self._logs.close()
        return self._now_s()

    async def _offer_background(self) -> None:
        """Start the requests of the background, until this is cancelled, which ends those under
        way."""
        async with asyncio.TaskGroup() as self._background_turns:
            for request, at_ps in self.background:
                await self._until(at_ps / PS_PER_S - START_S)
                self.schedule.start_background(request, at_ps)

    def background_end(self) -> BackgroundEnd:
        """Return the end of the background, which ends with the last job."""
        unfinished = sorted(self._unfinished, key=itemgetter(0))
        return BackgroundEnd(until_s=self._jobs_ended_s or 0.0, unfinished=unfinished)

    def _group(self, run: ActiveProgram) -> asyncio.TaskGroup:
        return self._background_turns if run.job.is_background else self._turns

    def _now_s(self) -> float:
        return self._clock() - self.origin_s

    def _send(self, run: ActiveProgram, at_ps: int, record: TurnRecord) -> None:
        turn = self._group(run).create_task(self._turn(run, at_ps / PS_PER_S, record))
        self._tasks[run.program.id] = turn

    def _take_back(self, run: ActiveProgram) -> None:
        self._tasks[run.program.id].cancel()

    async def _turn(self, run: ActiveProgram, due_s: float, record: TurnRecord) -> None:
        await self._until(due_s - PREPARE_S)
        service, program, turn = self.service, run.program, run.next_turn
        recorded = self.answers.get((program.id, run.turn), ())
        if len(recorded) > turn.output_tokens:  # by the tokenizer of this model
            turn = replace(turn, output_tokens=len(recorded))
        if not run.turn:
            self._conversations[program.id] = self._prompts.conversation(program)
        conversation = self._conversations[program.id]
        make = partial(self._api.body, id_fields=self._id_fields)
        if service.text:
            make = partial(make, cache_salt=service.cache_salt)
        if recorded:
            make = partial(make, answer=recorded)
        prompt = conversation.prompt(turn)
        body = io.BytesIO(make(service.model, prompt, turn, program.id, run.turn, run.is_last))
        await self._until(due_s)
        answer, error = self._answer(), None
        routed = await self._route(run, record, answer)
        serving, liveness = self._servers[routed.replica], self.liveness[routed.replica]
        url = f"{serving.root}{self._api.path}"
        headers = identity_headers(program.id, run.job_id)
        liveness.turn_started()
        try:
            async with asyncio.timeout(service.turn_timeout_s):
                received_s = partial(self._received_s, liveness)
                await self._complete(url, body, answer, received_s, headers)
            if answer.counter is None:
                answer.check(turn)
            else:
                texts = [message.content for message in prompt if isinstance(message, Message)]
                await asyncio.to_thread(answer.check, turn, texts)
            answer.check_recorded(recorded)
        except asyncio.CancelledError:
            self._cancelled(run, record, answer, self.lost_reason())
            raise
        except FAILURES as failure:
            error = failure_reason(failure, url, answer, service.turn_timeout_s)
        liveness.turn_ended()
        finished_s = answer.last_byte_at_s if error is None else self._now_s()
        self._finish(record, turn, answer, finished_s, error)
        ends = error is not None or run.is_last
        routed.prompt_tokens = answer.prompt_tokens(turn)
        routed.output_tokens = answer.output_tokens
        routed.cached_tokens = answer.cached_tokens or 0
        served_by = None if record.replica is UNSET else record.replica
        self._routing.ended(
            routed, served_by, succeeded=error is None, ends_program=ends, tasks=self._group(run)
        )
        if ends:
            del self._conversations[program.id], self._tasks[program.id]
        else:
            conversation.answered(answer.ids)
        self.schedule.ended(run, round(finished_s * PS_PER_S), failed=error is not None)

    def _answer(self) -> PartialAnswer:
        text = self.service.text
        counter = self.service.counter if text else None
        return self._api.answer(self._now_s(), text, secrets=self._secrets, counter=counter)

    async def _complete(
        self,
        url: str,
        body: io.BytesIO,
        answer: PartialAnswer,
        received_s: Callable[[], float],
        headers: dict[str, str],
    ) -> None:
        """Send the turn, and send it again while the server's queue is full, as clients do."""
        first_s = self._now_s()
        while True:
            try:
                await stream_completion(self.session, url, body, answer, received_s, headers)
                return
            except QueueFull as full:
                received_s()
                self.refusals += 1
                answer.begin_again()
                body.seek(0)
                await asyncio.sleep(full.retry_after_s)
                answer.refused_s = self._now_s() - first_s

    async def _route(
        self, run: ActiveProgram, record: TurnRecord, answer: PartialAnswer
    ) -> RoutedTurn:
        """Wait until the router sends the turn. If it does not, record the turn with the reason."""
        routed = self._routing.arrived(run)
        try:
            held_s = await self._routing.router.route(routed)
        except (asyncio.CancelledError, InvalidRouter) as ended:
            reason = str(ended) if isinstance(ended, InvalidRouter) else self.lost_reason()
            record.held_s = self._now_s() - answer.sent_at_s
            self._cancelled(run, record, answer, reason)
            raise
        if self._first.behind or self._dynamo is not None:
            return routed
        record.replica = routed.replica
        if len(self._servers) > 1:
            record.held_s = held_s
        return routed

    def _received_s(self, liveness: Liveness) -> float:
        """Return the current time, when bytes have just arrived."""
        liveness.byte_received()
        return self._now_s()

    async def _until(self, at_s: float) -> None:
        delay_s = at_s - self._now_s()
        if delay_s > 0:
            await asyncio.sleep(delay_s)

    def _cancelled(
        self, run: ActiveProgram, record: TurnRecord, answer: PartialAnswer, reason: str | None
    ) -> None:
        """Record a turn that did not end, with the reason. A request of the background that is
        under way when the last job ends has not failed."""
        if run.job.is_background and self._jobs_ended_s is not None:
            self._unfinished.append((record.scheduled_at_s, answer.first_token_at_s))
        else:
            self._finish(record, run.next_turn, answer, self._now_s(), reason or "cancelled")

    def _finish(
        self,
        record: TurnRecord,
        turn: Turn,
        answer: PartialAnswer,
        finished_s: float,
        error: str | None,
    ) -> None:
        measure(record, answer, answer.prompt_tokens(turn), answer.sent_at_s, finished_s)
        record.error = error
        if self._dynamo is not None:
            self._dynamo.complete(record, answer.nvext)
        elif self._first.behind:
            self._logs.find(record)
        if record.replica is not UNSET and self._dynamo is None:
            self._logs.complete(record)
        self.on_turn(record)


async def replay_live(
    programs: Sequence[Program],
    starts_s: Iterable[float] | None,
    in_flight: int | None,
    service: Service,
    *,
    on_turn: Callable[[TurnRecord], None],
    api_key: str | None = None,
    on_event: Callable[[EventRecord], None] | None = None,
    liveness: Sequence[Liveness] | None = None,
    lost_reason: Callable[[], str | None] = lambda: None,
    router: BuildRouter = Sticky,
    background: Iterable[tuple[Program, int]] = (),
    scenario_jobs: ScenarioJobs | None = None,
) -> DoneRecord:
    """Run all programs to their end. Returns the contents of done.json.

    `starts_s` and `in_flight` are as for `harness.replay.virtual.replay`. Events of the servers
    go to `on_event` on the cell's clock and complete the turns' records. `replica` of a record is
    an index of the servers, or of those behind the only one. On cancellation (Ctrl-C under
    `asyncio.run`) each active turn gets a record with `lost_reason()` or "cancelled" as its error.
    `liveness`: one per server, updated with its turns and bytes. `router` distributes the turns
    over the servers; raises InvalidRouter if it breaks its contract. `background` has further
    requests, with their times in ps, until the programs have ended. `scenario_jobs`: the jobs of a
    scenario, instead of the programs. Raises CellFailed if the server cannot tokenize recorded
    answers.
    """
    allow_many_connections()
    headers = {"Content-Type": "application/json", **authorization(api_key)}
    async with client_session(headers=headers) as session:
        answers: Answers = {}
        if service.replays_answers:
            root = service.servers[0].root
            answers = await recorded_answers(root, service.model, programs)
        live = _Live(
            programs,
            service,
            session,
            api_key,
            on_turn,
            on_event,
            liveness or [Liveness() for _ in service.servers],
            lost_reason,
            router,
            background,
            answers,
            scenario_jobs,
        )
        try:
            live_s = await live.run(starts_s, in_flight)
        except BaseExceptionGroup as group:
            raise _first(group) from None
    done = DoneRecord(
        finished_programs=live.schedule.finished_programs,
        failed_turns=live.schedule.failed_turns,
        live_s=live_s,
        started_monotonic_s=live.origin_s,
        refusals=live.refusals or None,
        background=live.background_end() if background != () else None,
        recorded_answers=len(answers) if service.replays_answers else None,
    )
    live.schedule.record_in(done)
    return done


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
