"""Names that options accept, for `bench list` and shell completion."""

from __future__ import annotations

from harness.console import print_message
from servers.basics.errors import InvalidPlugin

HEADS = {
    "policies": ("policy", "description", "source", "needs", "checked"),
    "routers": ("router", "description", "source", "checked"),
    "hardware": ("GPU", "memory and peak rates", "price", "source"),
    "models": ("model", "size and context", "source"),
    "packs": ("pack", "description"),
    "experiments": ("experiment", "title and source"),
    "runs": ("date", "cells", "folder", "load", "plan"),
}
"""Heads of columns on a terminal, by what `bench list` lists."""


def policy_names() -> list[str]:
    from servers.variants import ALL, POLICIES, PROPOSED

    return [*ALL, *PROPOSED, *POLICIES.installed()]


def policies() -> list[tuple[str, str, str, str, str]]:
    """Return name, description and source of each policy, what it needs, and how it was checked
    against its authors' code. If a policy of an installed package is not usable, its error replaces
    the description."""
    from servers.variants import variant

    rows = []
    for name in policy_names():
        try:
            policy = variant(name)
            checked = policy.policy.checked or "no"
            if policy.needs != policy.policy.needs:
                checked = f"as {policy.policy.name}, not with the tier"
            needs = ", ".join(policy.needs) or "nothing"
            rows.append((name, policy.description, policy.source, needs, checked))
        except InvalidPlugin as error:
            rows.append((name, str(error), "cannot be used", "", ""))
    return rows


def routers() -> list[tuple[str, str, str, str]]:
    """Return name, description and source of each router, and how it was checked against its
    authors' code."""
    from servers.routing import FOREIGN, ROUTERS, ForeignRouter, named_router

    ours = [(name, named_router(name).router) for name in ROUTERS.names()]
    foreign = [ForeignRouter(name, policy) for name in FOREIGN for policy in FOREIGN[name].policies]
    return [
        *(
            (name, (router.__doc__ or "").strip(), router.source, router.checked or "no")
            for name, router in ours
        ),
        *(
            (router.name, router.description, router.source, "yes: runs their code")
            for router in foreign
        ),
    ]


def hardware() -> list[tuple[str, str, str, str]]:
    from servers.profiles.machines.gpus import HARDWARE, LIST_PRICES

    return [
        (
            gpu.name,
            f"{gpu.memory_bytes / 2**30:.0f} GiB, {gpu.memory_bytes_per_s / 1e12:.2g} TB/s, "
            f"{gpu.bf16_flops / 1e12:.0f} TFLOP/s BF16",
            f"{price.usd_per_h:.2f} USD/h" if price else "",
            f"{gpu.source}; price: {price.source}, {price.date}" if price else gpu.source,
        )
        for gpu in HARDWARE.values()
        for price in [LIST_PRICES.get(gpu.name)]
    ]


def packs() -> list[tuple[str, str]]:
    import traces
    from traces.synthesis.known import description

    return [(name, description(name)) for name in traces.packs()]


def experiments() -> list[tuple[str, str]]:
    from harness.experiments.definition import load, names

    rows = []
    for experiment in map(load, names()):
        reason = experiment.not_testable and f"; not testable here: {experiment.not_testable}"
        rows.append((experiment.name, f"{experiment.title} ({experiment.source}){reason}"))
    return rows


def models() -> list[tuple[str, str, str]]:
    from servers.profiles import MODELS

    return [
        (
            llm.name,
            f"{llm.params / 1e9:.1f}B parameters, {llm.weight_bytes / 2**30:.1f} GiB in "
            f"{llm.precision}, {llm.gpus} GPU{'s' * (llm.gpus != 1)}, "
            f"{llm.max_model_len} tokens of context, {llm.kv_bytes_per_token} KV bytes per token",
            llm.source,
        )
        for llm in MODELS.values()
    ]


def runs() -> list[tuple[str, str, str, str, str]]:
    """Return date, finished cells, folder, load and plan of each run under `runs/`."""
    from reports.run_folder.find import RUNS, find_runs

    return [
        (
            run.written.astimezone().strftime("%Y-%m-%d %H:%M"),
            f"{run.finished_cells}/{run.cells} cells",
            str(run.folder),
            run.load,
            run.plan,
        )
        for run in find_runs(RUNS, on_damaged=lambda error: print_message(f"damaged: {error}"))
    ]
