"""The base class of live engines, which replay a cell against real servers in real time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from harness.cells.job import Job
from harness.engines.live_cell import end_on_sigterm, replay_on
from harness.load.settings import Prompts, Server
from harness.replay.live_server import LiveServer, Service
from servers.processes.supervised import Failing
from servers.records.done import DoneRecord
from servers.records.settings import OffloadRecord
from servers.records.turns import EventRecord, TurnRecord
from servers.variants import Variant
from traces.token_counts import TokenCounter


class CellReplay(Protocol):
    def __call__(self, service: Service, processes: Sequence[Failing] = ()) -> DoneRecord:
        """Replay the cell's programs on the servers, or run its agents. Raises CellFailed, also
        when one of the `processes` exits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveEngine(ABC):
    server: Server
    """The options of live engines."""

    @property
    def text(self) -> bool:
        return self.server.prompts is Prompts.TEXT

    def tier(self, variant: Variant) -> OffloadRecord | None:
        return None

    def service(
        self,
        servers: Sequence[LiveServer],
        model: str,
        vocabulary: tuple[int, int],
        seed: int,
        *,
        cache_salt: str | None = None,
        replays_answers: bool = False,
        counter: TokenCounter | None = None,
    ) -> Service:
        return Service(
            *(servers, model, range(*vocabulary), seed, self.text, self.server.turn_timeout_s),
            cache_salt=cache_salt,
            replays_answers=replays_answers,
            counter=counter,
        )

    @abstractmethod
    def serve(self, job: Job, replay: CellReplay, on_stage: Callable[[str], None]) -> DoneRecord:
        """Start the servers of the cell, call `replay` once, stop them, and return its record with
        what the servers report."""

    def run(
        self,
        job: Job,
        on_turn: Callable[[TurnRecord], None],
        on_event: Callable[[EventRecord], None],
        on_stage: Callable[[str], None],
    ) -> DoneRecord:
        end_on_sigterm()  # so that the servers are stopped

        def replay(service: Service, processes: Sequence[Failing] = ()) -> DoneRecord:
            return replay_on(service, job, self.server, processes, on_turn, on_event, on_stage)

        return self.serve(job, replay, on_stage)
