"""Search the settings with which stock vLLM does best (`--policies fcfs-tuned`).

In: the settings of a sweep. Out: the same with the settings that were found, such as
`fcfs-tuned(long_prefill=512)`. One setting after another is tried in virtual time, on seeds that
the sweep does not measure. What is compared is what the sweep reports: the capacity for its SLO, or
without a search for capacities the mean JCT at its loads. The sweep of the search has a run folder
with a report of its own, so the same command finds the same without running a cell twice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from statistics import geometric_mean
from typing import TYPE_CHECKING

from harness.console import print_message
from servers.basics.errors import CellFailed, InvalidInput

if TYPE_CHECKING:
    from harness.load.settings import Execution, SweepSettings
    from servers.policies.arguments import Value

Settings = Mapping[str, "Value"]
Run = Callable[["SweepSettings", "Execution"], tuple[Path, Mapping[str, str]]]
SEEDS = "1001,1002"
SEARCHED: tuple[tuple[Settings, ...], ...] = (
    ({"step_tokens": 1024}, {"step_tokens": 8192}),
    ({"long_prefill": 512}, {"long_prefill": 512, "long_prefill_adaptive": True}),
    ({"watermark": 0.05},),
    ({"max_num_seqs": 16}, {"max_num_seqs": 64}),
)
"""The alternatives of each round, which are added to the best settings of the rounds before."""


def with_tuned(settings: SweepSettings, execution: Execution, run: Run) -> SweepSettings:
    """Return the settings with those found in place of `fcfs-tuned`. `run` runs a sweep and returns
    its folder and the errors of failed cells."""
    from servers.variants import TUNED, split

    items = split(settings.policies)
    if TUNED not in items:
        return settings
    _refuse(settings, execution)
    found = _search(settings, execution, run)
    policies = ",".join(found if item == TUNED else item for item in items)
    baseline = found if settings.baseline == TUNED else settings.baseline
    return replace(settings, policies=policies, baseline=baseline)


def _refuse(settings: SweepSettings, execution: Execution) -> None:
    """Raise InvalidInput for a sweep that cannot search."""
    from harness.engines.base import engine_kind
    from harness.load.machines import is_list

    label, remedy = "--policies fcfs-tuned", "and give what it prints to this one"
    if not engine_kind(settings.machine.engine).is_virtual:
        raise InvalidInput(
            f"{label}: is searched in virtual time; run the sweep with --engine sim, {remedy}"
        )
    if is_list(settings.machine):
        raise InvalidInput(
            f"{label}: is searched for one machine at a time; give one --hardware and one --model"
        )
    if execution.shard is not None:
        raise InvalidInput(
            f"{label}: shards do not search; run the sweep without --shard once, {remedy}"
        )


def _search(settings: SweepSettings, execution: Execution, run: Run) -> str:
    """Return the variant with the best settings."""
    from harness.engines.base import engine_kind
    from harness.load.rates import parse_seeds
    from harness.load.settings import Keep
    from harness.sweep.folder import default_folder
    from harness.sweep.resolve import DEFAULT_SEEDS, fixed_by, resolve
    from reports.statistics.capacities import EQUAL_WITHIN
    from servers.policies.arguments import arguments_text

    machine = replace(settings.machine, engine="sim")
    fixed = fixed_by(settings.load, engine_kind(machine.engine))
    if set(parse_seeds(SEEDS)) & set(parse_seeds(settings.seeds or DEFAULT_SEEDS)):
        raise InvalidInput(
            f"--seeds {settings.seeds}: fcfs-tuned is searched with the seeds {SEEDS}; use others"
        )
    search = replace(
        settings,
        machine=machine,
        seeds=SEEDS.partition(",")[0] if fixed else SEEDS,
        baseline=None,
        price=None,
        api_price=None,
    )

    def name(found: Settings) -> str:
        return f"fcfs{arguments_text(sorted(found.items()))}"

    best: Settings = {}
    out = execution.out and execution.out.with_name(f"{execution.out.name}-tuning")
    folder = out or default_folder(resolve(replace(search, policies=name(best))))
    tried = _tried(folder) or [name(best)]
    execution = replace(execution, out=folder, keep=Keep.NONE)
    print_message(f"fcfs-tuned: searching the settings of fcfs with the seeds {search.seeds}")
    for alternatives in SEARCHED:
        options = [best, *({**best, **each} for each in alternatives)]
        tried = list(dict.fromkeys([*tried, *map(name, options)]))
        _, failed = run(replace(search, policies=",".join(tried)), execution)
        if failed:
            raise CellFailed(f"fcfs-tuned: cells of its search failed, see {folder}")
        scores = _scores(folder)
        better = max(options, key=lambda option: scores[name(option)])
        if scores[name(better)] > (1 + EQUAL_WITHIN) * scores[name(best)]:
            best = better
    what = f"{len(tried)} settings, {name(best)} is best"
    if not best:
        # A setting of the machine itself, so that the name says that it was searched.
        best = {"long_prefill": machine.long_prefill}
        what = f"{len(tried)} settings, none is {EQUAL_WITHIN:.0%} better than the machine's own"
    print_message(f"fcfs-tuned: of {what}; bench report {folder} shows all of them")
    return f"fcfs-tuned{arguments_text(sorted(best.items()))}"


def _tried(folder: Path) -> list[str]:
    """Return the variants of an earlier search in the folder, without their routers."""
    from reports.run_folder.read import read_sweep

    if not (folder / "sweep.json").is_file():
        return []
    names = [variant.name.partition("@")[0] for variant in read_sweep(folder).variants]
    return list(dict.fromkeys(names))


def _scores(folder: Path) -> dict[str, float]:
    """Return how good each variant is, by its name without a router: its capacity, or without a
    search the inverse of the mean JCT, the geometric mean over loads and seeds; 0 without either.
    Behind several routers, that of the best."""
    from reports.capacity.estimate import Kind
    from reports.metrics.cells import collect
    from reports.run_folder.read import load_run
    from reports.statistics.searched import searched

    run = load_run(folder)
    found = searched(run)
    if found is not None:
        of_variants = [
            (c.variant, math.inf if c.kind is Kind.ALWAYS else c.load.value if c.load else 0.0)
            for c in found.found
        ]
    else:
        cells = collect(run).cells
        of_variants = [
            (str(variant), 0.0 if any(own["unstable"]) else 1 / geometric_mean(own["jct_mean_s"]))
            for variant, own in cells.groupby("variant", sort=False)
        ]
    scores: dict[str, float] = {}
    for variant, score in of_variants:
        base = variant.partition("@")[0]
        scores[base] = max(score, scores.get(base, 0.0))
    return scores
