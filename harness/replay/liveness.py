"""Whether a cell's servers still serve: asked only while nothing is heard of them.

In: what is heard of each (bytes of answers, turns that fail), and its `/v1/models`, which needs no
engine. Out: why one counts as lost, so that a cell ends soon and says so. Bytes of any turn count
for the whole server, so that a turn may wait in its queue, or compute its prompt, as long as it
takes. Seconds of this machine's monotonic clock.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

import aiohttp

from harness.replay.http import CONNECT_S, authorization

LOOK_EVERY_S = 0.5
ASK_EVERY_S = 1.0
QUIET_S = 5.0
"""So long nothing is asked of a server after a byte of its own."""
ENDS_WITHIN_S = 10.0
REFUSALS = 2
"""In a row, and nobody listens there any more."""
REFUSES = "it refuses connections"
SILENT = "it does not answer"


@dataclass(frozen=True, slots=True)
class ServerTimeouts:
    lost_after_s: float = 60.0
    """With a server that answers nothing."""
    stuck_after_s: float = 900.0
    """With one that answers, while no byte comes of its turns under way."""


class Liveness:
    """What is heard of one server."""

    def __init__(self) -> None:
        self.heard_at_s = time.monotonic()
        """The last byte, or when it got something to do after it had nothing."""
        self.under_way = 0
        self.doubted = False
        """A turn failed, and it has not answered since."""

    def turn_started(self) -> None:
        if not self.under_way:
            self.heard_at_s = time.monotonic()
        self.under_way += 1

    def byte_received(self) -> None:
        self.heard_at_s = time.monotonic()

    def turn_ended(self) -> None:
        self.under_way -= 1


class Server(Protocol):
    @property
    def root(self) -> str: ...


class Watch:
    def __init__(
        self,
        servers: Sequence[Server],
        patience: ServerTimeouts,
        api_key: str | None = None,
        failure: Callable[[], Exception | None] | None = None,
    ) -> None:
        """`failure` says why a process of ours no longer runs."""
        self.pulses = [Liveness() for _ in servers]
        self.lost: str | None = None
        """Why a server counts as lost."""
        self.turns_end = True
        """By themselves, each with its own reason: their connections are gone."""
        self._servers = servers
        self._patience = patience
        self._api_key = api_key
        self._failure = failure

    async def until_lost(self) -> None:
        async with self._session() as session:
            looking = [asyncio.create_task(self._process())]
            looking += [
                asyncio.create_task(self._follow(session, place))
                for place in range(len(self._servers))
            ]
            try:
                ended, _ = await asyncio.wait(looking, return_when=asyncio.FIRST_COMPLETED)
                self.lost = next(iter(ended)).result()
            finally:
                for each in looking:
                    each.cancel()
                await asyncio.wait(looking)

    async def last_look(self, *, all_failed: bool) -> None:
        """After the last turn: is one lost whose turns failed too fast for us to see it?"""
        self.lost = await self._ending() if all_failed else self._process_ended()
        doubted = [place for place, pulse in enumerate(self.pulses) if pulse.doubted]
        if self.lost is None and doubted:
            async with self._session() as session:
                for place in doubted:
                    self.lost = self.lost or await self._no_answer(session, place)

    async def _process(self) -> str:
        while (why := self._process_ended()) is None:
            await asyncio.sleep(LOOK_EVERY_S)
        return why

    def _process_ended(self) -> str | None:
        failed = None if self._failure is None else self._failure()
        return None if failed is None else str(failed)

    async def _no_answer(self, session: aiohttp.ClientSession, place: int) -> str | None:
        """None once it answers."""
        began_s, refusals = time.monotonic(), 0
        while (silence := await self._ask(session, place)) is not None:
            refusals = refusals + 1 if silence == REFUSES else 0
            if refusals == REFUSALS:
                return await self._gone(place)
            if time.monotonic() - began_s > self._patience.lost_after_s:
                return self._silent(place, silence)
            await asyncio.sleep(ASK_EVERY_S)
        return None

    async def _gone(self, place: int) -> str:
        return await self._ending() or f"{self._name(place)} is lost: {REFUSES}"

    def _silent(self, place: int, silence: str) -> str:
        after_s = self._patience.lost_after_s
        return f"{self._name(place)} is lost: {silence} for {after_s:g} s (--lost-after-s)"

    async def _ending(self) -> str | None:
        """A server of ours fails its turns, and closes its port, some time before it ends; its end
        says why."""
        if self._failure is not None:
            with suppress(TimeoutError):
                return await asyncio.wait_for(self._process(), ENDS_WITHIN_S)
        return None

    async def _follow(self, session: aiohttp.ClientSession, place: int) -> str:
        pulse, patience = self.pulses[place], self._patience
        quiet_s = min(QUIET_S, patience.lost_after_s / 4)
        answered_at_s, refusals = time.monotonic(), 0
        while True:
            await asyncio.sleep(ASK_EVERY_S if refusals else LOOK_EVERY_S)
            silent_s = time.monotonic() - pulse.heard_at_s
            if silent_s < quiet_s and not pulse.doubted:
                refusals = 0
                continue
            silence = await self._ask(session, place)
            now_s = time.monotonic()
            # One that nobody asks anything may be away for a while: it hits no turn.
            wanted = pulse.under_way > 0 or pulse.doubted
            refusals = refusals + 1 if silence == REFUSES and wanted else 0
            if silence is None:
                answered_at_s, pulse.doubted = now_s, False
                if pulse.under_way and now_s - pulse.heard_at_s > patience.stuck_after_s:
                    self.turns_end = False
                    return _stuck(self._name(place), pulse.under_way, patience.stuck_after_s)
                await asyncio.sleep(ASK_EVERY_S if wanted else quiet_s)
            elif refusals == REFUSALS:
                return await self._gone(place)
            elif now_s - max(answered_at_s, pulse.heard_at_s) > patience.lost_after_s:
                self.turns_end = False
                return self._silent(place, silence)

    async def _ask(self, session: aiohttp.ClientSession, place: int) -> str | None:
        """None, or what it does instead of answering."""
        within_s = min(CONNECT_S, self._patience.lost_after_s)
        try:
            async with asyncio.timeout(within_s):
                url = f"{self._servers[place].root}/v1/models"
                async with session.get(url, allow_redirects=False) as answer:
                    return f"{SILENT} ({answer.status})" if answer.status >= 500 else None
        except aiohttp.ClientConnectorError as error:
            return REFUSES if isinstance(error.os_error, ConnectionRefusedError) else SILENT
        except (aiohttp.ClientError, OSError, TimeoutError):
            return SILENT

    def _session(self) -> aiohttp.ClientSession:
        """A connection for each question: a kept one may be dead without a sign."""
        headers = {"Connection": "close", **authorization(self._api_key)}
        connector = aiohttp.TCPConnector(force_close=True)
        return aiohttp.ClientSession(connector=connector, headers=headers)

    def _name(self, place: int) -> str:
        url = self._servers[place].root
        return url if len(self._servers) == 1 else f"replica {place} ({url})"


def _stuck(name: str, turns: int, after_s: float) -> str:
    what = "turn" if turns == 1 else f"{turns} turns"
    return f"{name} is stuck: no byte of the {what} under way for {after_s:g} s (--stuck-after-s)"
