"""`bench plan`: find the cheapest machines that serve a number of agents at an SLO."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli.errors import one_line_errors
from harness.cli.options import CommandApp, Only
from harness.cli.run_from_settings import resume_hint
from harness.console import print_message
from harness.load.option import Option, build, elements, option_name, values_of
from harness.load.settings import (
    DEFAULT_SEEDS,
    LOAD,
    MACHINE,
    SERVED,
    Execution,
    Machine,
    SweepSettings,
)
from servers.admission import Limits
from servers.basics.atomic import write_file
from servers.basics.errors import DoesNotFit, InvalidInput

if TYPE_CHECKING:
    from reports.compare.plans import Plan

app = CommandApp()
ALL = "all"
HARDWARE, POLICIES = "a100-80g,h100,h200", "fcfs,turnstile,lmcache"

HELP = """Find the cheapest machines that serve a number of agents at an SLO, in virtual time.

Searches how many agents one machine serves, for each combination of hardware, model, GPUs, DRAM and
policy, with a sweep each; then takes as many whole machines as the agents need. Prints the plans,
and writes plan.html, with the Pareto front of cost and latency, and plan.json. The same command
resumes. --hardware all searches the GPUs of bench list hardware that have a price there or in
--price. Exit code 1: no plan meets the SLO.

[bold]Examples[/bold]

  bench plan my-trajectories/ --model qwen3-coder-30b-a3b --agents 40 --slo 'ttft_p95<=5s'

  bench plan claude-code --agents 40 --slo 'ttft_p95<=5s,speed_p90>=30' --hardware all --gpus 1,2

  bench plan claude-code --agents 200 --policies lmcache --offload-gb 100,400 --price h100=2.5
"""


@app.command(help=HELP)
def plan(
    *,
    traces_given: Annotated[
        list[str] | None,
        Option(
            "Trace files, folders of them, or packs (bench list packs). Default: swe-bench.",
            "TRACES",
            positional=True,
        ),
    ] = None,
    agents: Annotated[str, Option("Agents to serve.", "N", panel=LOAD)],
    arrivals: Annotated[
        str,
        Option(
            "agents: each agent starts a new job when its last one ends. agents:SECONDS: "
            "after a think time with this mean.",
            "PROCESS",
            panel=LOAD,
        ),
    ] = "agents",
    gpus: Annotated[
        str | None,
        Option(
            "GPUs that share one model, such as 1,2,4. Default: the model's usual number.",
            "N,…",
            panel=MACHINE,
        ),
    ] = None,
    offload_gb: Annotated[
        str | None,
        Option(
            "DRAM per machine for policies that offload, such as 100,400; 0 alone leaves them "
            "out. Default: as for bench sweep.",
            "GB,…",
            panel=MACHINE,
        ),
    ] = None,
    settings: Annotated[
        SweepSettings,
        Only(
            *("slo", "policies", "seeds", "programs", "overlong", "model", "hardware"),
            *("kv_cache_dtype", "max_model_len", "max_num_seqs", "step_tokens", "step_times"),
            *("replicas", "router", "price"),
            *("columns", "tokenizer", "synthesise_gaps", "keep_names"),
            policies=POLICIES,
            hardware=HARDWARE,
            seeds=DEFAULT_SEEDS,
        ),
    ],
    execution: Annotated[Execution, Only("out", "workers", "fresh")],
) -> None:
    from harness.load.prices import priced_hardware
    from harness.sweep.planning import (
        candidates,
        default_folder,
        parse_numbers,
        parse_wanted,
        refuse_run,
        search,
    )

    wanted = parse_wanted(agents)
    counts = parse_numbers("--gpus", gpus, 1)
    sizes = parse_numbers("--offload-gb", offload_gb, 0)
    traces = tuple(traces_given or ())
    for path in traces:
        if path.endswith(".toml"):
            raise InvalidInput(
                f"{path}: a plan takes no settings file; give traces, and settings as options"
            )
    load = replace(settings.load, traces=traces, arrivals=arrivals)
    settings = replace(settings, load=load)
    if not arrivals.startswith("agents"):
        raise InvalidInput(
            f"--arrivals {arrivals}: a plan is for agents; use agents, or "
            "agents:SECONDS with their think time"
        )
    hardware = elements(settings.machine.hardware)
    if ALL in hardware:
        if len(hardware) > 1:
            raise InvalidInput(
                f"--hardware {','.join(hardware)}: {ALL} stands alone; remove the other names"
            )
        priced = ",".join(priced_hardware(settings.price))
        machine = replace(settings.machine, hardware=priced)
        settings = replace(settings, machine=machine)
    found, left_out = candidates(settings, counts, sizes)
    for sentence in left_out:
        print_message(f"left out: {sentence}")
    if not found:
        raise DoesNotFit("no machine of --hardware is left; change --gpus or --model")
    folder = execution.out or default_folder(found, wanted)
    refuse_run(folder)
    with one_line_errors(resume_hint(sys.argv[1:])):
        searched = search(found, wanted, folder, execution, sys.argv[1:])
        every = [*left_out, *searched.left_out]
        _report(searched.plans, wanted, settings, every, folder)
    if searched.failed:
        print_message(f"{len(searched.failed)} cells failed, such as {next(iter(searched.failed))}")
    if searched.failed or not searched.plans:
        raise typer.Exit(1)


def _report(
    found: Sequence[Plan],
    agents: int,
    settings: SweepSettings,
    left_out: Sequence[str],
    folder: Path,
) -> None:
    import orjson

    from harness.cli.tables import show_rows
    from reports import write_report
    from reports.capacity.slo import DEFAULT_SLO_OF_AGENTS, parse_slo
    from reports.compare.plans import cheapest, findings, headline
    from reports.compare.plans_page import PLAN, draw, table

    slo = parse_slo(settings.slo or DEFAULT_SLO_OF_AGENTS)
    deploy = deployment(cheapest(found), settings) if found else []
    if found:
        plans = table(found, slo)
        rows = [(row.name, *(cell.text for cell in row.cells)) for row in plans.rows]
        show_rows(rows, heads=[head.lower() for head in plans.heads])
        for path in dict.fromkeys(plan.folder for plan in found):
            write_report(path)
        draw(found, agents, slo, left_out, deploy, folder / PLAN)
        document = {
            "format": "turnstile-plan-1",
            "answer": headline(found, agents, slo),
            "agents": agents,
            "slo": str(slo),
            "plans": [plan.document() for plan in found],
            "left_out": left_out,
            "deploy": deploy,
        }
        write_file(folder / "plan.json", orjson.dumps(document, option=orjson.OPT_INDENT_2))
    print("", headline(found, agents, slo), *findings(found, slo), sep="\n")
    for sentence in left_out:
        print(f"left out: {sentence}")
    for line in deploy:
        print(f"  {line}")
    if found:
        print_message(f"page: {folder / PLAN}")


def deployment(plan: Plan, settings: SweepSettings) -> list[str]:
    """Return the commands for each machine of the plan."""
    replicas, machine = settings.server.replicas, settings.machine
    gpus = str((plan.sweep.gpus or 1) // replicas)
    policy, _, router = plan.policy.partition("@")
    model = f"FOLDER_OF_{plan.sweep.model}"
    words = ["bench", "serve", "--model", model, "--policy", policy, "--gpus", gpus]
    words += _changed(machine, {*SERVED} - {"gpus", "offload_gb"})
    if plan.offload_gb:
        words += ["--offload-gb", f"{plan.offload_gb:g}"]
    if router:
        words += ["--replicas", str(replicas), "--router", router]
    commands = [shlex.join(words)]
    if re.fullmatch(r"fcfs(\(.*\))?", policy) and not router:
        from servers.variants import variant

        limits = variant(policy).limited(build(Limits, values_of(machine)))
        words = ["vllm", "serve", model, "--tensor-parallel-size", gpus]
        words += ["--max-num-seqs", str(limits.max_num_seqs)]
        words += ["--max-num-batched-tokens", str(limits.step_tokens)]
        words += _changed(machine, {"kv_cache_dtype", "max_model_len"})
        words += limits.vllm_flags()
        commands.append(shlex.join(words))
    return commands


def _changed(machine: Machine, names: Collection[str]) -> list[str]:
    defaults, words = values_of(Machine()), list[str]()
    for name, value in values_of(machine).items():
        if name in names and value != defaults[name]:
            words += [option_name(name), *([] if value is True else [str(value)])]
    return words
