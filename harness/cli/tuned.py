"""Search the settings with which stock vLLM does best (`--policies fcfs-tuned`).

In: the settings of a sweep. Out: the same with the settings that were found, such as
`fcfs-tuned(long_prefill=512)`. One setting after another is tried in virtual time, on seeds that
the sweep does not measure. What is compared is what the sweep reports: the capacity for its SLO, or
without a search for capacities the mean JCT at its loads that plain fcfs sustains with every seed.
The sweep of the search has a run folder with a report of its own, so the same command finds the
same without running a cell twice.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from statistics import geometric_mean

from harness.console import print_message
from harness.engines.base import engine_kind
from harness.load.machines import is_list
from harness.load.option import build, values_of
from harness.load.rates import parse_seeds
from harness.load.settings import DEFAULT_SEEDS, Execution, Keep, SweepSettings
from harness.sweep.folder import default_folder
from harness.sweep.resolve import fixed_by, resolve
from reports.run_folder.read import load_run, read_sweep
from servers.admission import Limits
from servers.basics.errors import CellFailed, InvalidInput, InvalidVariant
from servers.policies.arguments import Value, arguments_text
from servers.variants import TUNED, split, variant

Settings = Mapping[str, Value]
Run = Callable[..., tuple[Path, Mapping[str, str]]]
SEEDS = "1001,1002"
SEARCHED: tuple[tuple[Settings, ...], ...] = (
    ({"step_tokens": 1024}, {"step_tokens": 8192}),
    ({"long_prefill": 512}, {"long_prefill": 512, "long_prefill_adaptive": True}),
    ({"watermark": 0.05},),
    ({"max_num_seqs": 16}, {"max_num_seqs": 64}),
)
"""The alternatives of each round, which are added to the best settings of the rounds before."""


def with_tuned(
    settings: SweepSettings, execution: Execution, run: Run, condition: str | None = None
) -> tuple[SweepSettings, str | None]:
    """Return the settings, and the condition of `--fail-unless`, with what was found in place of
    `fcfs-tuned`. `run` runs a sweep (`run_from_settings`)."""
    items = split(settings.policies)
    if TUNED not in items:
        return settings, condition
    _refuse(settings, execution)
    found = _search(settings, execution, run)
    policies = ",".join(found if item == TUNED else item for item in items)
    baseline = found if settings.baseline == TUNED else settings.baseline
    if condition is not None:
        condition = re.sub(rf"\b{TUNED}(?!\s*\()", found, condition)
    return replace(settings, policies=policies, baseline=baseline), condition


def _refuse(settings: SweepSettings, execution: Execution) -> None:
    """Raise InvalidInput for a sweep that cannot search."""
    label, remedy = "--policies fcfs-tuned", "and give what it prints to this one"
    if not engine_kind(settings.machine.engine).is_virtual:
        raise InvalidInput(
            f"{label}: is searched in virtual time; run the sweep with --engine sim, {remedy}"
        )
    if is_list(settings):
        raise InvalidInput(
            f"{label}: is searched for one machine at a time; give one --hardware, one --model and"
            " at most one --burst"
        )
    if execution.shard is not None:
        raise InvalidInput(
            f"{label}: shards do not search; run the sweep without --shard once, {remedy}"
        )


def _name(found: Settings) -> str:
    return f"fcfs{arguments_text(sorted(found.items()))}"


def _options(best: Settings, alternatives: Iterable[Settings], limits: Limits) -> list[Settings]:
    """Return the best settings so far, and these with each alternative, without those that the
    machine with these limits refuses or already has."""
    options = {variant(_name(best)).limited(limits): best}
    for each in alternatives:
        settings = {**best, **each}
        with suppress(InvalidVariant):
            options.setdefault(variant(_name(settings)).limited(limits), settings)
    return list(options.values())


def _folder(out: Path) -> Path:
    name = out.resolve().name
    if not name:
        raise InvalidInput(f"--out {out}: fcfs-tuned needs a folder beside it; use another")
    return out.resolve().with_name(f"{name}-tuning")


def _search(settings: SweepSettings, execution: Execution, run: Run) -> str:
    from reports.statistics.capacities import EQUAL_WITHIN

    if scenario := settings.load.scenario:
        raise InvalidInput(
            f"fcfs-tuned: needs JCTs or a search for capacities; remove --scenario {scenario}"
        )
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
        until=None,
        baseline=None,
        price=None,
        api_price=None,
    )
    best: Settings = {}
    limits = build(Limits, values_of(machine))
    plain = replace(search, policies=_name(best))
    folder = _folder(execution.out) if execution.out else default_folder(resolve(plain))
    tried = _tried(folder) or [_name(best)]
    execution = replace(execution, out=folder, keep=Keep.NONE)
    print_message(f"fcfs-tuned: searching the settings of fcfs with the seeds {search.seeds}")
    for alternatives in SEARCHED:
        continues = alternatives is not SEARCHED[0]
        options = _options(best, alternatives, limits)
        tried = list(dict.fromkeys([*tried, *map(_name, options)]))
        of_round = replace(search, policies=",".join(tried))
        _, failed = run(of_round, execution, continues=continues)
        if failed:
            raise CellFailed(f"--policies fcfs-tuned: cells of its search failed; see {folder}")
        scores = scores_of(folder)
        if not any(scores.values()):
            raise InvalidInput(
                "--policies fcfs-tuned: fcfs sustains no load of this sweep with every seed, so no "
                "settings can be compared; give lower loads or a looser --slo, or remove fcfs-tuned"
            )
        better = max(options, key=lambda option: scores[_name(option)])
        if scores[_name(better)] > (1 + EQUAL_WITHIN) * scores[_name(best)]:
            best = better
    what = f"{len(tried)} settings, {_name(best)} is best"
    if not best:
        # A setting of the machine itself, so that the name says that it was searched.
        best = {"long_prefill": machine.long_prefill}
        what = f"{len(tried)} settings, none is {EQUAL_WITHIN:.0%} better than the machine's own"
    print_message(f"fcfs-tuned: of {what}; bench report {folder} shows all of them")
    return f"fcfs-tuned{arguments_text(sorted(best.items()))}"


def _tried(folder: Path) -> list[str]:
    """Return the variants of an earlier search in the folder, without their routers."""
    if not (folder / "sweep.json").is_file():
        return []
    return list(dict.fromkeys(_without_router(v.name) for v in read_sweep(folder).variants))


def scores_of(folder: Path) -> dict[str, float]:
    """Return the score of each variant by its name without a router, behind the best router.

    The score is the capacity, or without a search 1 ÷ mean JCT, as a geometric mean over seeds and
    the loads that fcfs sustains with every seed; 0 if the variant has neither."""
    from reports.capacity.estimate import Kind
    from reports.metrics.cells import amounts_of, collect
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
        is_unstable, amounts = cells["unstable"].astype(bool), amounts_of(cells)
        is_plain = cells["variant"].map(_without_router) == _name({})
        compared = cells[~amounts.isin(amounts[is_unstable & is_plain])]
        of_variants = [
            (str(name), 0.0 if any(own["unstable"]) else 1 / geometric_mean(own["jct_mean_s"]))
            for name, own in compared.groupby("variant", sort=False)
        ]
    scores = dict.fromkeys((_without_router(v.name) for v in run.sweep.variants), 0.0)
    for name, score in of_variants:
        base = _without_router(name)
        scores[base] = max(score, scores[base])
    return scores


def _without_router(variant: str) -> str:
    return variant.partition("@")[0]
