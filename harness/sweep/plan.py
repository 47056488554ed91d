"""A sweep whose settings were checked (`harness.sweep.resolve`): its cells, and the contents of
`sweep.json` and each `cell.json`. A `SweepPlan` contains everything that determines the results.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import metadata
from typing import TYPE_CHECKING, Any

from msgspec import structs

from harness.engines.base import ResolvedEngine
from harness.load.arrivals import Arrivals
from harness.load.background import Background
from harness.load.settings import SweepSettings
from harness.load.workload import Workload
from harness.sweep.fingerprint import class_sha256
from reports.capacity.slo import Slo
from reports.loads import least_rate
from reports.run_folder.read import cell_name
from servers.records.cell import CellRecord
from servers.records.settings import HorizonRecord, RouterRecord, ScenarioRecord, SplitRecord
from servers.records.sweep import (
    ONCE,
    ApiPriceRecord,
    NoteRecord,
    PriceRecord,
    SearchRecord,
    SweepRecord,
    Unsupported,
    VariantRecord,
)
from servers.routing import ForeignRouter, NamedRouter
from servers.variants import Variant

if TYPE_CHECKING:
    from harness.load.agent_plan import AgentPlan

ONE = ""
"""Name of a plan whose run folder is the folder itself."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One variant under one load, with one draw of the arrivals."""

    variant: str
    amount: float | None
    """Jobs per second, or agents; None for a closed loop and recorded arrivals."""
    seed: int
    arrivals: str
    repeat: int = 1
    """From 1. Repeats of a cell have equal settings."""

    @property
    def name(self) -> str:
        return cell_name(self.variant, self.amount, self.seed, self.repeat, self.arrivals)


@dataclass(frozen=True, slots=True)
class SweepPlan:
    settings: SweepSettings
    variants: tuple[Variant, ...]
    left_out: tuple[Unsupported, ...]
    """Variants of `--policies all` that the engine does not support here."""
    amounts: tuple[float | None, ...]
    """The loads under which all variants run: jobs per second, or agents; None for a load without
    a number."""
    seeds: tuple[int, ...]
    arrivals: Arrivals
    arrivals_text: str
    engine: ResolvedEngine
    workload: Workload
    baseline: str
    code_sha256: str
    agents: AgentPlan | None = None
    """None: programs are replayed."""
    background: Background | None = None
    """Requests alongside the jobs, at the same rate in all cells."""
    horizon: HorizonRecord | None = None
    """For how long jobs arrive; None: until a steady state has been measured, or a fixed set."""
    scenario: ScenarioRecord | None = None
    steady: bool = False
    """Whether each cell runs a stream of jobs, instead of a fixed set."""
    slo: Slo | None = None
    """What a sustained rate meets. The capacity of each variant is searched; None: it is not."""
    price: PriceRecord | None = None
    api_price: ApiPriceRecord | None = None

    @property
    def turns_per_cell(self) -> int:
        """Number of turns of each cell; 0 if unknown: a stream, or requests beside the jobs, go on
        as long as the cell."""
        return 0 if self.steady or self.background else self.workload.turns

    def cells(self) -> tuple[Cell, ...]:
        """Return the cells in the order in which they run.

        High loads come first, because they take longest. If cells run one after the other, the
        order of the variants rotates, so that a drift of the machine favours none of them. Each
        repeat begins when all cells have run once more.
        """
        amounts = sorted(self.amounts, key=lambda amount: -(amount or 0.0))
        repeats = range(1, self.settings.repeats + 1)
        blocks = [(amount, seed, n) for n in repeats for amount in amounts for seed in self.seeds]
        return tuple(
            Cell(variant.name, amount, seed, self.arrivals_text, repeat)
            for index, (amount, seed, repeat) in enumerate(blocks)
            for variant in self._rotated(index)
        )

    def _rotated(self, index: int) -> tuple[Variant, ...]:
        first = 0 if self.engine.kind.is_virtual else index % len(self.variants)
        return self.variants[first:] + self.variants[:first]

    @property
    def has_agents(self) -> bool:
        """Whether the load of a cell is a number of agents."""
        return self.arrivals.takes_agents

    @property
    def least_load(self) -> float:
        """The lowest load that a search tries."""
        return 0.0 if self.horizon is None else least_rate(self.horizon.seconds)

    @property
    def cells_reusable(self) -> bool:
        """Whether settings determine the result of a cell, so that another run folder can reuse it.
        They do not with real agents, whose workspaces may change between runs."""
        return not self.engine.kind.is_remote and self.agents is None

    def variant(self, name: str) -> Variant:
        return next(variant for variant in self.variants if variant.name == name)

    def notes(self, kind: str) -> tuple[NoteRecord, ...]:
        """Return the notes on the files of the jobs and of the background."""
        sources = (self.workload, self.background)
        notes = (note for source in sources if source for note in getattr(source, kind))
        return tuple(NoteRecord(note.file, note.reason) for note in notes)

    def sweep_record(self) -> SweepRecord:
        repeats = self.settings.repeats
        return SweepRecord(
            **self._common(None),
            variants=tuple(
                VariantRecord(
                    name=variant.name,
                    description=variant.description,
                    same_as=variant.same_as,
                    **self._policy(variant),
                )
                for variant in self.variants
            ),
            jps=() if self.has_agents else self.amounts,
            agents=tuple(int(n) for n in self.amounts if n) if self.has_agents else (),
            seeds=self.seeds,
            repeats=ONCE if repeats == 1 else tuple(range(1, repeats + 1)),
            search=None if self.slo is None else SearchRecord(str(self.slo), self.settings.until),
            baseline=self.baseline,
            price=self.price,
            api_price=self.api_price,
            left_out=self.left_out,
            rejected_files=self.notes("rejected_files"),
            repairs=self.notes("repairs"),
        )

    def cell_record(self, cell: Cell) -> CellRecord:
        variant = self.variant(cell.variant)
        return CellRecord(
            **self._common(variant),
            **self._policy(variant),
            variant=variant.name,
            jps=None if self.has_agents else cell.amount,
            agents=int(cell.amount) if self.has_agents and cell.amount else None,
            seed=cell.seed,
            repeat=cell.repeat,
        )

    def _common(self, variant: Variant | None) -> dict[str, Any]:
        """Fields that `sweep.json` and each `cell.json` have in common."""
        return structs.asdict(self.engine.settings(variant)) | {
            "arrivals": self.arrivals_text,
            "steady_state": self.steady,
            "horizon": self.horizon,
            "scenario": self.scenario,
            "agent": self.agents and self.agents.record(),
            "background": self.background and self.background.record(),
            "workload": self.workload.record(),
            "turnstile_version": metadata.version("turnstile-bench"),
            "code_sha256": self.code_sha256,
        }

    def _policy(self, variant: Variant) -> dict[str, Any]:
        split = variant.split
        return {
            "policy": variant.policy_path,
            "policy_arguments": dict(variant.arguments),
            "policy_source": variant.source,
            "policy_sha256": class_sha256(variant.policy),
            "reference": variant.reference,
            "router": variant.router and _router_record(variant.router),
            "disaggregate": split
            and SplitRecord(name=split.name, prefill=split.prefill, decode=split.decode),
            "offload": self.engine.tier(variant),
        }


def _router_record(router: NamedRouter | ForeignRouter) -> RouterRecord:
    if isinstance(router, ForeignRouter):
        return RouterRecord(name=router.name, version=router.version, source=router.source)
    kind = router.router
    return RouterRecord(
        name=router.name,
        router=f"{kind.__module__}:{kind.__qualname__}",
        source=kind.source,
        sha256=class_sha256(kind),
    )
