"""Routes the turns of a live replay, and reports the ends of programs to routers and servers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import aiohttp

from harness.replay.contents import Contents, ProgramPaths
from harness.replay.live_router import LiveRouter
from harness.replay.live_server import LiveServer, Service
from harness.replay.load_reports import LoadReports, replicas_of
from harness.replay.schedule import ActiveProgram
from servers.routers.base import RoutedTurn, Runs
from servers.routers.runner import MOST_HELD_S, BuildRouter
from servers.sim.front import runs_of

RUN_TOKENS = 16
"""Prompts are compared in blocks of this size, for routers that compare them."""


class ProgramRouting:
    def __init__(
        self,
        build: BuildRouter,
        service: Service,
        session: aiohttp.ClientSession,
        api_key: str | None,
        now_s: Callable[[], float],
    ) -> None:
        self._servers, self._session = service.servers, session
        self._model, self._api_key = service.model, api_key
        report = LoadReports(session, self._servers, api_key, now_s)
        held_s = service.turn_timeout_s or MOST_HELD_S
        self.router = LiveRouter(build, replicas_of(self._servers), now_s, report, held_s)
        self._contents = [Contents(RUN_TOKENS)]
        self._paths: dict[str, ProgramPaths] = {}
        self._behind = self._servers[0].behind
        self._served_by: dict[str, set[int]] = {}
        """The servers behind a router of another project that have served turns of a program."""

    def arrived(self, run: ActiveProgram) -> RoutedTurn:
        """Return the program's next turn, which has arrived, with its recorded length."""
        tokens, runs = run.next_turn.prompt_tokens, self._runs(run)
        return self.router.turn(run.program.id, run.job_id, tokens, runs, run.is_last)

    def ended(
        self,
        turn: RoutedTurn,
        served_by: int | None,
        *,
        succeeded: bool,
        ends_program: bool,
        tasks: asyncio.TaskGroup,
    ) -> None:
        """Report the end of a turn, and the end of its program to the servers that do not know it.

        `served_by`: the server that served the turn, None if unknown.
        """
        others = self.router.finished(turn, succeeded=succeeded, ends_program=ends_program)
        if self._behind and served_by is not None:
            self._served_by.setdefault(turn.program_id, set()).add(served_by)
        if not ends_program:
            return
        # The server of the last turn knows the end from that turn's `is_last`.
        self._report(turn.program_id, self._servers[turn.replica], tasks, is_aware=True)
        for index in others:
            self._report(turn.program_id, self._servers[index], tasks)
        self._report_behind(turn.program_id, served_by, tasks)

    def cut(self, program_id: str, tasks: asyncio.TaskGroup) -> None:
        """Report the end of a program that sends no further turn."""
        for index in self.router.program_ended(program_id):
            is_router = bool(self._behind)
            self._report(program_id, self._servers[index], tasks, is_aware=is_router)
        self._report_behind(program_id, None, tasks)

    def _report_behind(self, program_id: str, aware: int | None, tasks: asyncio.TaskGroup) -> None:
        """Report the end to the servers behind a router that served the program, but for one."""
        self._paths.pop(program_id, None)
        served = self._served_by.pop(program_id, set())
        # Servers without an event log do not say which turns they have served.
        served |= {k for k, server in enumerate(self._behind) if server.session_ends}
        for index in served - {aware}:
            self._report(program_id, self._behind[index], tasks)

    def _report(
        self,
        program_id: str,
        server: LiveServer,
        tasks: asyncio.TaskGroup,
        *,
        is_aware: bool = False,
    ) -> None:
        is_dynamo = server.dynamo is not None and server.dynamo.has_sessions
        model = None if is_aware and not is_dynamo else self._model
        if model is not None or server.session_ends:
            report = server.report_end(self._session, program_id, model, self._api_key)
            tasks.create_task(report)

    def _runs(self, run: ActiveProgram) -> Runs:
        """Return the contents of the prompt, as in a replay in virtual time."""
        if not self.router.router.needs_runs:
            return ()
        program = run.program
        if program.id not in self._paths:
            self._paths[program.id] = ProgramPaths(self._contents, program)
        path = self._paths[program.id].of_turn(run.turn, 0)
        return runs_of(path, RUN_TOKENS, run.next_turn.prompt_tokens)
