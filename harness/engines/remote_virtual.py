"""What engines share whose cells run in virtual time in a process of another environment, with the
scheduler of the serving engine that is installed there."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import ClassVar

from msgspec import structs

from harness.cells.job import Job
from harness.engines.base import EngineKind
from harness.engines.sim import OfSimMachine, SimEngine
from harness.engines.virtual_cell import run_virtual
from servers.basics.errors import CellFailed, EngineError
from servers.records.done import DoneRecord
from servers.records.settings import EngineSettings, OffloadRecord, ServerRecord
from servers.remote.client import EngineProcess, RemoteEngine
from servers.variants import Variant


@dataclass(frozen=True, slots=True)
class RemoteVirtualEngine(OfSimMachine, ABC):
    scheduler_of: ClassVar[str]
    """The name of the serving engine."""
    kind: EngineKind
    sim: SimEngine
    python: str
    version: str
    """Of the serving engine."""

    @abstractmethod
    def server(self) -> ServerRecord: ...

    @abstractmethod
    def process(self, variant: Variant) -> EngineProcess:
        """Return the process that runs the cells of a variant."""

    @abstractmethod
    def policy(self, variant: Variant) -> str:
        """Return the variant as text that the process can load."""

    def describe(self) -> str:
        return (
            f"engine {self.kind.name}: the scheduler of {self.scheduler_of} {self.version} in "
            f"virtual time, {self.sim.profile.provenance} profile of {self.model} on "
            f"{self.sim.machine}; this run uses no GPU"
        )

    def settings(self, variant: Variant | None = None) -> EngineSettings:
        return structs.replace(
            self.sim.settings(variant),
            engine=self.kind.name,
            virtual_time=self.kind.virtual_time,
            server=self.server(),
        )

    def tier(self, variant: Variant) -> OffloadRecord | None:
        return self.sim.tier(variant)

    def run(self, job: Job) -> DoneRecord:
        profile, limits = self.sim.profile, job.variant.limited(self.sim.limits)
        job.on_stage(f"importing {self.scheduler_of}")
        try:
            process = self.process(job.variant)
            policy = self.policy(job.variant)
            engine = partial(RemoteEngine, process, policy, profile, limits, on_event=job.on_event)
            return run_virtual(job, engine)
        except Exception as failed:
            started.cache_clear()  # the process is in the middle of the cell
            if isinstance(failed, EngineError):
                raise CellFailed(str(failed)) from None
            raise


@cache
def started(
    start: Callable[..., EngineProcess], python: str, *arguments: Path | None
) -> EngineProcess:
    """Start one process for all cells of a worker, because importing a serving engine takes ten
    seconds and more. Each policy module of the user gets its own process."""
    return start(python, *arguments)
