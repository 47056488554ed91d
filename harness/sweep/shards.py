"""The cells of one shard of a sweep (`--shard 3/16`).

In: plans by the name of their folder, and a shard. Out: the cells that it runs. Shards know each
other only by the run folder, to which each writes its own cells.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from harness.cells.folder import is_done
from harness.cells.locks import Shard
from harness.sweep.cell import Work
from harness.sweep.plan import Cell, SweepPlan
from servers.basics.errors import InvalidInput


def refuse_shard(plan: SweepPlan, shard: Shard) -> None:
    """Raise InvalidInput for a plan whose cells cannot be divided beforehand."""
    if plan.slo is not None:
        raise InvalidInput(
            f"--shard {shard}: a search for capacities chooses its cells by the results of others; "
            + _without_search(plan)
        )
    if plan.engine.kind.is_remote:
        raise InvalidInput(
            f"--shard {shard}: --engine {plan.engine.kind.name} is one server, on which cells run "
            "one after the other; remove --shard"
        )


def _without_search(plan: SweepPlan) -> str:
    if plan.has_agents:
        return "add --no-capacity, with numbers of agents in --agents"
    return "add --no-capacity, with --jps for other rates than the default ones"


def cells_of_shard(
    plans: Mapping[str, SweepPlan], shard: Shard | None
) -> dict[str, tuple[Cell, ...]]:
    """Return the cells that a shard runs, by the name of their plan; all without a shard.

    Where cells are measurements, a shard gets all variants of a rate and seed, so that these are
    compared on one machine.
    """
    if shard is None:
        return {name: plan.cells() for name, plan in plans.items()}
    blocks = [(name, block) for name, plan in plans.items() for block in _blocks(plan)]
    mine: dict[str, tuple[Cell, ...]] = dict.fromkeys(plans, ())
    for name, block in shard.share(blocks):
        mine[name] += block
    return mine


def _blocks(plan: SweepPlan) -> list[tuple[Cell, ...]]:
    cells = plan.cells()
    size = 1 if plan.engine.kind.is_virtual else len(plan.variants)
    return [cells[first : first + size] for first in range(0, len(cells), size)]


def count_missing(work: Iterable[Work]) -> int:
    """Return the number of cells that have no result yet, of all shards."""
    return sum(not is_done(own.folder / cell.name) for own in work for cell in own.plan.cells())
