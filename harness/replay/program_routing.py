"""Routes the turns of a live replay: what a router learns of them, and who learns of their ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

import aiohttp

from harness.replay.contents import Contents, ProgramPaths
from harness.replay.identity import SessionEnd, report_end
from harness.replay.live_router import BuildRouter, LiveRouter
from harness.replay.load_reports import KnownServer, LoadReports, replicas_of
from harness.replay.schedule import ActiveProgram
from servers.routers.base import RoutedTurn, Runs
from servers.sim.fleet import runs_of

RUN_TOKENS = 16
"""Prompts are compared in blocks of this size, for routers that compare them."""


class Server(KnownServer, Protocol):
    @property
    def session_ends(self) -> tuple[SessionEnd, ...]: ...


class ProgramRouting:
    def __init__(
        self,
        build: BuildRouter,
        servers: Sequence[Server],
        session: aiohttp.ClientSession,
        model: str,
        api_key: str | None,
        now_s: Callable[[], float],
        most_held_s: float,
    ) -> None:
        self._servers, self._session = servers, session
        self._model, self._api_key = model, api_key
        report = LoadReports(session, [server.root for server in servers], api_key, now_s)
        self.router = LiveRouter(build, replicas_of(servers), now_s, report, most_held_s)
        self._contents = [Contents(RUN_TOKENS)]
        self._paths: dict[str, ProgramPaths] = {}

    def arrived(self, run: ActiveProgram) -> RoutedTurn:
        """Return the program's next turn, which has arrived, with its recorded length."""
        tokens, runs = run.next_turn.prompt_tokens, self._runs(run)
        return self.router.turn(run.program.id, run.job_id, tokens, runs, run.is_last)

    def ended(
        self, turn: RoutedTurn, *, succeeded: bool, ends_program: bool, tasks: asyncio.TaskGroup
    ) -> None:
        """Report the end of a turn, and that of its program to the servers that do not know it."""
        others = self.router.finished(turn, succeeded=succeeded, ends_program=ends_program)
        if not ends_program:
            return
        self._paths.pop(turn.program_id, None)
        for index in (turn.replica, *others):
            # The server of the last turn knows the end from that turn's `is_last`.
            model = None if index == turn.replica else self._model
            server = self._servers[index]
            if model is not None or server.session_ends:
                report = report_end(
                    self._session,
                    server.root,
                    turn.program_id,
                    model=model,
                    ends=server.session_ends,
                    api_key=self._api_key,
                )
                tasks.create_task(report)

    def _runs(self, run: ActiveProgram) -> Runs:
        """Return the contents of the prompt, which are those of a replay in virtual time."""
        if not self.router.router.needs_runs:
            return ()
        program = run.program
        if program.id not in self._paths:
            self._paths[program.id] = ProgramPaths(self._contents, program)
        path = self._paths[program.id].of_turn(run.turn, 0)
        return runs_of(path, RUN_TOKENS, run.next_turn.prompt_tokens)
