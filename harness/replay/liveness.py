"""Detects when a cell's servers are lost or stuck.

In: for each server the bytes and failed turns that the replay reports, the responses of
`/v1/models`, which do not need the engine, and at the end `/health`, if a turn has failed.
Out: the reason why a server counts as lost, with which the cell fails. A byte of any turn counts
for its whole server, so a turn may be in the queue or in prefill for any time. Times in seconds on
the machine's monotonic clock.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import aiohttp

from harness.replay.http import CONNECT_TIMEOUT_S, authorization, client_session
from harness.replay.live_server import LiveServer

POLL_INTERVAL_S = 0.5
HEALTH_CHECK_INTERVAL_S = 1.0
QUIET_S = 5.0
"""A server gets no health check for this time after it sent a byte."""
EXIT_TIMEOUT_S = 10.0
MAX_REFUSALS = 2
"""A server is lost if it refuses this many connections in succession while turns need it."""
REFUSED = "connection refused"
NO_RESPONSE = "no response"


@dataclass(frozen=True, slots=True)
class ServerTimeouts:
    lost_after_s: float = 60.0
    """A server is lost if it does not respond for this time."""
    stuck_after_s: float = 900.0
    """A server is stuck if it responds, but its active turns receive no byte for this time."""


class Liveness:
    def __init__(self) -> None:
        self.last_active_s = time.monotonic()
        """Time of the last byte, or of the start of a turn while no other was active."""
        self.active_turns = 0
        self.has_failed_turn = False
        self.suspected = False
        """Whether a turn has failed since the server last responded to a health check."""

    def turn_started(self) -> None:
        if not self.active_turns:
            self.last_active_s = time.monotonic()
        self.active_turns += 1

    def byte_received(self) -> None:
        self.last_active_s = time.monotonic()

    def turn_ended(self) -> None:
        self.active_turns -= 1

    def turn_failed(self) -> None:
        self.has_failed_turn = True
        self.suspected = True


class ServerMonitor:
    def __init__(
        self,
        servers: Sequence[LiveServer],
        timeouts: ServerTimeouts,
        api_key: str | None = None,
        failure: Callable[[], Exception | None] | None = None,
    ) -> None:
        """`failure` returns the error of a server process of ours that has exited. Servers behind a
        router of another project are lost if they do not respond, but their turns and bytes are
        only known to be its."""
        behind = servers[0].behind
        self.liveness = [Liveness() for _ in (*servers, *behind)]
        self.lost_reason: str | None = None
        """The reason why a server counts as lost."""
        self.connections_closed = True
        """Whether the turns of a lost server fail with errors of their own."""
        self._servers = (*servers, *behind)
        self._routed = bool(behind)
        self._timeouts = timeouts
        self._api_key = api_key
        self._failure = failure

    async def wait_until_lost(self) -> None:
        async with self._session() as session:
            checks = [asyncio.create_task(self._wait_for_exit())]
            checks += [
                asyncio.create_task(self._check_repeatedly(session, index))
                for index in range(len(self._servers))
            ]
            try:
                done, _ = await asyncio.wait(checks, return_when=asyncio.FIRST_COMPLETED)
                self.lost_reason = next(iter(done)).result()
            finally:
                for check in checks:
                    check.cancel()
                await asyncio.wait(checks)

    async def check_after_replay(self, *, all_failed: bool) -> None:
        """Detect a lost server whose turns all failed before a health check noticed it."""
        dead = await self._dead_engine()
        waits = all_failed or dead is not None
        self.lost_reason = await self._exit_reason() if waits else self._process_error()
        self.lost_reason = self.lost_reason or dead
        suspected = [index for index, server in enumerate(self.liveness) if server.suspected]
        if self.lost_reason is None and suspected:
            async with self._session() as session:
                for index in suspected:
                    self.lost_reason = self.lost_reason or await self._check_once(session, index)

    async def _dead_engine(self) -> str | None:
        """Return which server of ours says, after it failed a turn, that its engine has died. vLLM
        then fails all turns, still lists its models, and exits some seconds later."""
        if self._failure is None or not any(each.has_failed_turn for each in self.liveness):
            return None
        async with self._session() as session:
            for index, server in enumerate(self.liveness):
                if not server.has_failed_turn:
                    continue
                problem = await self._health_check(session, index, "/health")
                if problem not in (None, REFUSED, NO_RESPONSE):
                    return f"{self._name(index)} is lost: {problem} at /health"
        return None

    async def _wait_for_exit(self) -> str:
        while (reason := self._process_error()) is None:
            await asyncio.sleep(POLL_INTERVAL_S)
        return reason

    def _process_error(self) -> str | None:
        error = None if self._failure is None else self._failure()
        return None if error is None else str(error)

    async def _exit_reason(self) -> str | None:
        """Wait for our server's process to exit, because its error is the actual cause. The server
        fails its turns and closes its port some time before that."""
        if self._failure is not None:
            with suppress(TimeoutError):
                return await asyncio.wait_for(self._wait_for_exit(), EXIT_TIMEOUT_S)
        return None

    async def _check_once(self, session: aiohttp.ClientSession, index: int) -> str | None:
        """Return None as soon as the server responds, or the reason why it is lost."""
        started_s, refusals = time.monotonic(), 0
        while (problem := await self._health_check(session, index)) is not None:
            refusals = refusals + 1 if problem == REFUSED else 0
            if refusals == MAX_REFUSALS:
                return await self._refused(index)
            if time.monotonic() - started_s > self._timeouts.lost_after_s:
                return self._unresponsive(index, problem)
            await asyncio.sleep(HEALTH_CHECK_INTERVAL_S)
        return None

    async def _check_repeatedly(self, session: aiohttp.ClientSession, index: int) -> str:
        """Return the reason when the server is lost or stuck."""
        liveness, timeouts = self.liveness[index], self._timeouts
        quiet_s = min(QUIET_S, timeouts.lost_after_s / 4)
        responded_s, refusals = time.monotonic(), 0
        while True:
            await asyncio.sleep(HEALTH_CHECK_INTERVAL_S if refusals else POLL_INTERVAL_S)
            if time.monotonic() - liveness.last_active_s < quiet_s and not liveness.suspected:
                refusals = 0
                continue
            problem = await self._health_check(session, index)
            now_s = time.monotonic()
            # A server without turns may be unreachable for a while, since no turn is affected.
            needed = liveness.active_turns > 0 or liveness.suspected
            refusals = refusals + 1 if problem == REFUSED and needed else 0
            if problem is None:
                responded_s, liveness.suspected = now_s, False
                inactive_s = now_s - liveness.last_active_s
                if liveness.active_turns and inactive_s > timeouts.stuck_after_s:
                    self.connections_closed = False
                    return self._stuck(index)
                await asyncio.sleep(HEALTH_CHECK_INTERVAL_S if needed else quiet_s)
            elif refusals == MAX_REFUSALS:
                return await self._refused(index)
            elif now_s - max(responded_s, liveness.last_active_s) > timeouts.lost_after_s:
                self.connections_closed = False
                return self._unresponsive(index, problem)

    async def _health_check(
        self, session: aiohttp.ClientSession, index: int, path: str = "/v1/models"
    ) -> str | None:
        """Return None if the server responds with a status below 500, or else the problem."""
        try:
            async with asyncio.timeout(min(CONNECT_TIMEOUT_S, self._timeouts.lost_after_s)):
                url = f"{self._servers[index].root}{path}"
                async with session.get(url, allow_redirects=False) as response:
                    return f"status {response.status}" if response.status >= 500 else None
        except aiohttp.ClientConnectorError as error:
            refused = isinstance(error.os_error, ConnectionRefusedError)
            return REFUSED if refused else NO_RESPONSE
        except (aiohttp.ClientError, OSError, TimeoutError):
            return NO_RESPONSE

    def _session(self) -> aiohttp.ClientSession:
        """Return a session that opens a connection per request, since an idle one may be dead."""
        headers = {"Connection": "close", **authorization(self._api_key)}
        return client_session(headers, connection_per_request=True)

    async def _refused(self, index: int) -> str:
        return await self._exit_reason() or f"{self._name(index)} is lost: {REFUSED}"

    def _unresponsive(self, index: int, problem: str) -> str:
        after_s = self._timeouts.lost_after_s
        return f"{self._name(index)} is lost: {problem} for {after_s:g} s (--lost-after-s)"

    def _stuck(self, index: int) -> str:
        turns, after_s = self.liveness[index].active_turns, self._timeouts.stuck_after_s
        active = f"{turns} active turn{'' if turns == 1 else 's'}"
        return (
            f"{self._name(index)} is stuck: no byte for {active} in {after_s:g} s (--stuck-after-s)"
        )

    def _name(self, index: int) -> str:
        url = self._servers[index].root
        if self._routed:
            return f"replica {index - 1} ({url})" if index else f"the router ({url})"
        return url if len(self._servers) == 1 else f"replica {index} ({url})"
