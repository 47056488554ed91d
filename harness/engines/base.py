"""The protocol of an engine, which runs the cells of a sweep, and the registry of engines.

`ENGINES` has the engines by name: `sim` (virtual time), `vllm` and `sglang` (fresh servers for each
cell), `vllm-virtual` (vLLM's scheduler in virtual time) and `dynamo-mocker` (NVIDIA Dynamo over
workers that only take time). `harness.engines.url` is the engine for the URL of a running server.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol

from harness.cells.job import Job
from harness.load.settings import Server, SweepSettings
from harness.load.workload import Longest
from servers.basics.errors import InvalidInput
from servers.basics.registry import Registry
from servers.disaggregation import engines_of, parse_splits
from servers.records.turns import EventRecord, TurnRecord
from servers.routing import ENGINES as ROUTER_ENGINES
from servers.routing import ForeignRouter
from servers.variants import Variant, behind_routers, disaggregated, variants

ENGINES = Registry(
    kind="engine",
    group="turnstile.engines",
    built_in={
        "sim": "harness.engines.sim:resolve_sim",
        "vllm": "harness.engines.vllm:vllm_engine",
        "vllm-virtual": "harness.engines.vllm_virtual:virtual_engine",
        "sglang": "harness.engines.sglang:sglang_engine",
        "dynamo-mocker": "harness.engines.dynamo_mocker:resolve_dynamo",
    },
    remedy="give the URL of a running server (http://…)",
    option="--engine",
)
"""Functions of type `ResolveEngine` by name."""
VIRTUAL = ("sim", "vllm-virtual")
"""The engines in virtual time."""


class Unsupported(NamedTuple):
    """A variant that the engine cannot run on this machine, and the reason."""

    name: str
    reason: str


def split_supported(
    policies: str, check: Callable[[Variant], None]
) -> tuple[tuple[Variant, ...], tuple[Unsupported, ...]]:
    """Return the variants that pass `check`, and those for which it raises a ValueError.

    With `all`, unsupported variants are left out. For explicit names, the error propagates.
    """
    chosen: list[Variant] = []
    left_out: list[Unsupported] = []
    for variant in variants(policies):
        try:
            check(variant)
        except ValueError as error:
            if policies.strip() != "all":
                raise
            left_out.append(Unsupported(variant.name, str(error)))
        else:
            chosen.append(variant)
    return tuple(chosen), tuple(left_out)


def replicas_of(server: Server) -> int:
    """Return the number of engines. Raise InvalidInput."""
    text = server.disaggregate
    if text is None:
        if server.transfer_gb_per_s is not None or server.transfer_latency_s:
            raise InvalidInput(
                "--transfer-gb-per-s and --transfer-latency-s: describe the link between prefill "
                "and decode engines; add --disaggregate 1P1D, or remove them"
            )
        return server.replicas
    if server.replicas > 1:
        raise InvalidInput(
            f"--replicas {server.replicas}: --disaggregate {text} says how many engines there are; "
            "remove --replicas, and write --disaggregate none,1P1D to compare with replicas that "
            "do both"
        )
    return engines_of(parse_splits(text))


def with_routers(
    chosen: Iterable[Variant], server: Server, engine: str | None
) -> tuple[Variant, ...]:
    """Return each variant behind each router and with each split of the engines, if there are
    several. Raise InvalidInput.

    `engine`: the engine that starts routers of other projects; None: whichever can.
    """
    if replicas_of(server) > 1:
        behind = tuple(behind_routers(chosen, server.router))
        for router in (variant.router for variant in behind):
            if engine is None or not isinstance(router, ForeignRouter):
                continue
            if engine not in ROUTER_ENGINES[router.project]:
                engines = " or ".join(ROUTER_ENGINES[router.project])
                raise InvalidInput(
                    f"--router {router.name}: is a process in front of live servers; use --engine "
                    f"{engines}, or one of our routers (bench list routers)"
                )
        if server.disaggregate is None:
            return behind
        return tuple(disaggregated(behind, parse_splits(server.disaggregate)))
    if server.router is not None:
        raise InvalidInput(
            f"--router {server.router}: distributes turns over several replicas; add "
            "--replicas with at least 2, or remove it"
        )
    return tuple(chosen)


class Engine(Protocol):
    """A resolved engine, with all engine settings that determine the result of a cell."""

    @property
    def name(self) -> str: ...
    @property
    def model(self) -> str: ...
    @property
    def hardware(self) -> str: ...
    @property
    def parallel(self) -> bool:
        """Whether cells can run at the same time without affecting each other."""

    @property
    def cells_reusable(self) -> bool:
        """Whether finished cells of other runs with the same settings can be reused. False for a
        running server, whose state is unknown."""

    @property
    def longest(self) -> Longest:
        """The longest context, and the reason for the limit."""

    def describe(self) -> str:
        """Return one line that states what is measured and what is simulated."""

    def sweep_json(self) -> dict[str, Any]: ...
    def cell_json(self, variant: Variant) -> dict[str, Any]: ...
    def offload_json(self, variant: Variant) -> dict[str, Any] | None:
        """Return the settings of the variant's offload tier, or None if it has none."""

    def run(
        self,
        job: Job,
        on_turn: Callable[[TurnRecord], None],
        on_event: Callable[[EventRecord], None],
        on_stage: Callable[[str], None],
    ) -> dict[str, Any]:
        """Run a cell and return the contents of done.json.

        `on_turn` is called when a turn ends, `on_stage` with a description of the current stage.
        """


ResolveEngine = Callable[
    [SweepSettings], tuple[tuple[Variant, ...], Engine, tuple[Unsupported, ...]]
]
"""Resolves settings to the variants to run, the engine, and the unsupported variants."""
