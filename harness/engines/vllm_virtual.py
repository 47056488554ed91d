"""vLLM's own scheduler in virtual time as the engine of a sweep: the reference that `sim` is held
against (docs/design/fidelity.md). It takes what `--engine sim` takes, and needs vLLM but no GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from harness.cells.job import Job
from harness.engines.base import Unsupported, split_supported
from harness.engines.sim import SimEngine, sim_engine
from harness.load.settings import SweepSettings
from harness.replay.schedule import Line
from harness.replay.virtual import replay
from servers.errors import CellFailed, InvalidInput, VirtualVllmFailed
from servers.variants import Variant
from servers.vllm.launch.find_vllm import Installed, find_vllm
from servers.vllm.virtual_time.client import RemoteVllm, VllmProcess


@dataclass(frozen=True, slots=True)
class VirtualEngine:
    sim: SimEngine
    """The same machine and model."""
    vllm: Installed
    name: str = "vllm-virtual"
    side_by_side: bool = True
    settings_decide: bool = True

    @property
    def model(self) -> str:
        return self.sim.model

    @property
    def hardware(self) -> str:
        return self.sim.hardware

    @property
    def longest(self) -> tuple[int, str]:
        return self.sim.longest

    def told(self) -> str:
        profile = self.sim.profile
        return (
            f"engine vllm-virtual: the scheduler of vLLM {self.vllm.version} in virtual time, "
            f"{profile.provenance} profile of {self.model} on {self.hardware}, nothing measured on "
            "a GPU"
        )

    def sweep_json(self) -> dict[str, Any]:
        return self._json(self.sim.sweep_json())

    def cell_json(self, variant: Variant) -> dict[str, Any]:
        return self._json(self.sim.cell_json(variant))

    def _json(self, said: dict[str, Any]) -> dict[str, Any]:
        return {**said, "engine": self.name, "server": {"vllm": self.vllm.version}}

    def offload_json(self, variant: Variant) -> dict[str, Any] | None:
        return self.sim.offload_json(variant)

    def run(
        self,
        job: Job,
        on_turn: Callable[[Line], None],
        on_event: Callable[[Line], None],
        on_stage: Callable[[str], None],
    ) -> Line:
        profile, limits = self.sim.profile, self.sim.limits
        on_stage("importing vLLM")
        try:
            process = _process(self.vllm.python)
            policy = job.variant.policy_spec
            engine = partial(RemoteVllm, process, policy, profile, limits, on_event=on_event)
            return replay(
                job.programs,
                job.starts_s,
                job.in_flight,
                engine,
                on_turn,
                bound=job.variant.bound,
            )
        except VirtualVllmFailed as failed:
            _process.cache_clear()
            raise CellFailed(str(failed)) from None


@cache
def _process(python: str) -> VllmProcess:
    """One for all cells of a worker: importing vLLM takes some ten seconds."""
    return VllmProcess(python)


def virtual_engine(
    settings: SweepSettings,
) -> tuple[tuple[Variant, ...], VirtualEngine, tuple[Unsupported, ...]]:
    vllm = find_vllm(settings.server.vllm_python)
    chosen, left_out = split_supported(settings.policies, _without_tier)
    return chosen, VirtualEngine(sim_engine(settings, chosen), vllm), left_out


def _without_tier(variant: Variant) -> None:
    if variant.offload is not None:
        raise InvalidInput(
            f"--policies {variant.name}: vllm-virtual has no offload tier; --engine sim has"
        )
