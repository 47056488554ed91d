"""What a sweep runs its cells on. A sweep knows this protocol and no engine.

`ENGINES` has the engines by name: `sim` (virtual time), `vllm` (a fresh vLLM for each cell) and
`vllm-virtual` (vLLM's scheduler in virtual time). `harness.engines.url` is the engine for the URL
of a server that runs already.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from harness.cells.job import Job
from harness.load.settings import SweepSettings
from servers.records import EventRecord, TurnRecord
from servers.registry import Registry
from servers.variants import Variant, variants

ENGINES = Registry(
    kind="engine",
    group="turnstile.engines",
    built_in={
        "sim": "harness.engines.sim:resolve_sim",
        "vllm": "harness.engines.vllm:vllm_engine",
        "vllm-virtual": "harness.engines.vllm_virtual:virtual_engine",
    },
    remedy="give the URL of a server that runs already (http://…)",
    option="--engine",
)
"""Each is a `ResolveEngine`."""


class Unsupported(NamedTuple):
    """A variant that this engine cannot run here, and why."""

    name: str
    reason: str


def split_supported(
    policies: str, check: Callable[[Variant], None]
) -> tuple[tuple[Variant, ...], tuple[Unsupported, ...]]:
    """The variants that pass `check`, and those whose ValueError says why not: only under `all` are
    these left out, while one that was asked for by name is refused."""
    chosen: list[Variant] = []
    left_out: list[Unsupported] = []
    for variant in variants(policies):
        try:
            check(variant)
        except ValueError as cannot:
            if policies.strip() != "all":
                raise
            left_out.append(Unsupported(variant.name, str(cannot)))
        else:
            chosen.append(variant)
    return tuple(chosen), tuple(left_out)


class Engine(Protocol):
    """Resolved: all that decides how a cell comes out, and nothing that changes between cells."""

    @property
    def name(self) -> str: ...
    @property
    def model(self) -> str: ...
    @property
    def hardware(self) -> str: ...
    @property
    def parallel(self) -> bool:
        """Cells may run at the same time without disturbing one another."""

    @property
    def settings_decide(self) -> bool:
        """The settings of a cell name all that decides it, so that one finished elsewhere will do.
        They do not where a server runs already, in whatever state it is."""

    @property
    def longest(self) -> tuple[int | None, str]:
        """Longest context that it takes, in tokens, and what sets it; None where only a running
        server knows."""

    def describe(self) -> str:
        """In one line, what is measured and what is not."""

    def sweep_json(self) -> dict[str, Any]: ...
    def cell_json(self, variant: Variant) -> dict[str, Any]: ...
    def offload_json(self, variant: Variant) -> dict[str, Any] | None:
        """Its tier; None for a variant without one."""

    def run(
        self,
        job: Job,
        on_turn: Callable[[TurnRecord], None],
        on_event: Callable[[EventRecord], None],
        on_stage: Callable[[str], None],
    ) -> dict[str, Any]:
        """The contents of done.json. Lines go to `on_turn` as turns end, words for a person who
        waits to `on_stage`."""


ResolveEngine = Callable[
    [SweepSettings], tuple[tuple[Variant, ...], Engine, tuple[Unsupported, ...]]
]
"""Reads the settings; returns the variants that run, the engine, and what it cannot run here."""
