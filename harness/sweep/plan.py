"""A sweep whose settings were checked (`harness.sweep.resolve`): its cells, and the contents of
`sweep.json` and each `cell.json`. A `SweepPlan` contains everything that determines the results.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from importlib import metadata
from typing import TYPE_CHECKING, Any

from harness.cells.names import slug
from harness.engines.base import Engine, Unsupported
from harness.load.arrivals import Arrivals
from harness.load.background import Background
from harness.load.settings import SweepSettings
from harness.load.workload import Workload
from harness.sweep.fingerprint import class_sha256
from reports.capacity.slo import Slo
from servers.routing import ForeignRouter, NamedRouter
from servers.variants import Variant
from traces import Note

if TYPE_CHECKING:
    from harness.load.agent_plan import AgentPlan


@dataclass(frozen=True, slots=True)
class Cell:
    """One variant at one rate, with one draw of the arrivals."""

    variant: str
    jps: float | None
    """Jobs per second; None for a closed loop and recorded arrivals, which have no rate."""
    seed: int
    arrivals: str
    repeat: int = 1
    """From 1. Repeats of a cell have equal settings."""

    @property
    def name(self) -> str:
        load = slug(self.arrivals) if self.jps is None else f"jps{self.jps:g}"
        repeat = f"_repeat{self.repeat}" if self.repeat > 1 else ""
        return f"{slug(self.variant)}_{load}_seed{self.seed}{repeat}"


@dataclass(frozen=True, slots=True)
class SweepPlan:
    settings: SweepSettings
    variants: tuple[Variant, ...]
    left_out: tuple[Unsupported, ...]
    """Variants of `--policies all` that the engine does not support here."""
    rates: tuple[float | None, ...]
    seeds: tuple[int, ...]
    arrivals: Arrivals
    arrivals_text: str
    engine: Engine
    workload: Workload
    baseline: str
    code_sha256: str
    agents: AgentPlan | None = None
    """None: programs are replayed."""
    background: Background | None = None
    """Requests beside the jobs, at the same rate in all cells."""
    steady: bool = False
    """Whether each cell runs a stream of jobs until its steady state, instead of a fixed set."""
    slo: Slo | None = None
    """What a sustained rate meets. The capacity of each variant is searched; None: it is not."""

    @property
    def turns_per_cell(self) -> int:
        """Number of turns of each cell; 0 if unknown: a stream, or requests beside the jobs, go on
        as long as the cell."""
        return 0 if self.steady or self.background else self.workload.turns

    def cells(self) -> tuple[Cell, ...]:
        """Return the cells in the order in which they run.

        High rates come first, because they take longest. If cells run one after the other, the
        order of the variants rotates, so that a drift of the machine favours none of them. Each
        repeat begins when all cells have run once more.
        """
        rates = sorted(self.rates, key=lambda jps: -(jps or 0.0))
        repeats = range(1, self.settings.repeats + 1)
        blocks = [(jps, seed, n) for n in repeats for jps in rates for seed in self.seeds]
        return tuple(
            Cell(variant.name, jps, seed, self.arrivals_text, repeat)
            for index, (jps, seed, repeat) in enumerate(blocks)
            for variant in self._rotated(index)
        )

    def _rotated(self, index: int) -> tuple[Variant, ...]:
        first = 0 if self.engine.kind.is_virtual else index % len(self.variants)
        return self.variants[first:] + self.variants[:first]

    @property
    def cells_reusable(self) -> bool:
        """Whether settings determine the result of a cell, so that another run folder can reuse it.
        They do not with real agents, whose workspaces may change between runs."""
        return not self.engine.kind.is_remote and self.agents is None

    def variant(self, name: str) -> Variant:
        return next(variant for variant in self.variants if variant.name == name)

    def _common_json(self) -> dict[str, Any]:
        """Fields that `sweep.json` and each `cell.json` have in common."""
        return {
            "arrivals": self.arrivals_text,
            **({"steady_state": True} if self.steady else {}),
            **({} if self.agents is None else {"agent": self.agents.as_json()}),
            **({} if self.background is None else {"background": self.background.as_json()}),
            "workload": self.workload.as_json(),
            "turnstile_version": metadata.version("turnstile-bench"),
            "code_sha256": self.code_sha256,
        }

    def variant_json(self, variant: Variant) -> dict[str, Any]:
        return {
            "policy": variant.policy_path,
            "policy_arguments": dict(variant.arguments),
            "policy_source": variant.source,
            "policy_sha256": class_sha256(variant.policy),
            "bound": variant.bound,
            **({} if variant.router is None else {"router": _router_json(variant.router)}),
            **({} if variant.split is None else {"disaggregate": variant.split.as_json()}),
            "offload": self.engine.offload_json(variant),
        }

    def as_json(self) -> dict[str, Any]:
        return {
            "format": "turnstile-sweep-1",
            "variants": [
                {
                    "name": v.name,
                    "description": v.description,
                    **self.variant_json(v),
                    **({} if v.same_as is None else {"same_as": v.same_as}),
                }
                for v in self.variants
            ],
            "jps": list(self.rates),
            "seeds": list(self.seeds),
            **({} if self.settings.repeats == 1 else {"repeats": self._repeats()}),
            **({} if self.slo is None else {"search": {"slo": str(self.slo)}}),
            **self.engine.sweep_json(),
            **self._common_json(),
            "baseline": self.baseline,
            "left_out": [left._asdict() for left in self.left_out],
            "rejected_files": [asdict(note) for note in self.notes("rejected_files")],
            "repairs": [asdict(note) for note in self.notes("repairs")],
        }

    def notes(self, kind: str) -> list[Note]:
        """Return the notes on the files of the jobs and of the background."""
        sources = (self.workload, self.background)
        return [note for source in sources if source for note in getattr(source, kind)]

    def _repeats(self) -> list[int]:
        return list(range(1, self.settings.repeats + 1))

    def cell_json(self, cell: Cell) -> dict[str, Any]:
        variant = self.variant(cell.variant)
        return {
            "format": "turnstile-cell-1",
            "variant": variant.name,
            **self.variant_json(variant),
            "jps": cell.jps,
            "seed": cell.seed,
            **({} if cell.repeat == 1 else {"repeat": cell.repeat}),
            **self.engine.cell_json(variant),
            **self._common_json(),
        }


def _router_json(router: NamedRouter | ForeignRouter) -> dict[str, object]:
    """Return the fields of a router, with a hash if it is one that Turnstile does not contain."""
    own = class_sha256(router.router) if isinstance(router, NamedRouter) else None
    return {**router.as_json(), **({} if own is None else {"sha256": own})}
