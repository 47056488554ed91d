"""Reads from a run folder what to deploy: the winner, on the machine of the run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import orjson
from msgspec import convert, structs

from harness.console import print_message
from harness.load.option import values_of
from harness.load.settings import Machine
from servers.admission import Limits
from servers.basics.errors import InvalidInput
from servers.profiles.kv_cache_dtype import KvCacheDtype
from servers.sglang.schedulers import SglangScheduler, scheduler_of, sglang_variants
from servers.speculation import parse_speculation


@dataclass(frozen=True, slots=True)
class Winner:
    model: str
    policy: str
    machine: Machine
    replicas: int
    router: str | None


def winner_of(folder: Path) -> Winner:
    """Return the first winner of a run with a report. Raises InvalidInput."""
    from reports.answer.document import ANSWER
    from reports.run_folder.members import has_members
    from reports.run_folder.read import read_sweep

    if has_members(folder):
        raise InvalidInput(
            f"--from {folder}: has a run for each machine; give the folder of one of them"
        )
    sweep = read_sweep(folder)
    try:
        winners = orjson.loads((folder / ANSWER).read_bytes())["winners"]
    except (OSError, orjson.JSONDecodeError, LookupError, TypeError):
        raise InvalidInput(
            f"--from {folder}: has no {ANSWER}; write it with: bench report {folder}"
        ) from None
    variant = next((v for v in sweep.variants if not v.reference and v.name in winners), None)
    if variant is None or sweep.model is None:
        raise InvalidInput(
            f"--from {folder}: no scheduler wins; give --model and --policy instead of --from"
        )
    if len(winners) > 1:
        print_message(f"{', '.join(winners)} are not distinguished; taking {variant.name}")
    router = variant.router.name if variant.router is not None else None
    policy = variant.name.removesuffix(f"@{router}")
    if variant.policy_source == SglangScheduler.source:
        flags = scheduler_of(sglang_variants(policy)[0]).flags()
        raise InvalidInput(
            f"--from {folder}: {variant.name} wins, a scheduler of SGLang, and bench serve starts "
            f"vLLM; start SGLang with {' '.join(flags)}, or give --model and --policy instead of "
            "--from"
        )
    if variant.disaggregate is not None:
        raise InvalidInput(
            f"--from {folder}: {variant.name} wins with separate engines for prompts and answers "
            f"({variant.disaggregate.name}), which bench serve cannot start or print; give --model "
            "and --policy instead of --from"
        )
    if sweep.layout is not None:
        raise InvalidInput(
            f"--from {folder}: its machine has --layout {sweep.layout}, which bench serve does not "
            "start; give --model and --policy instead of --from, with vLLM's own flags after --"
        )
    limits, replicas = sweep.limits, sweep.replica_count
    if limits.speculate is not None:
        speculation = parse_speculation(limits.speculate)
        config = {"method": speculation.method, "num_speculative_tokens": speculation.tokens}
        print_message(
            f"{folder} has --speculate {limits.speculate}, which is not set here: give vLLM the "
            f"flag --speculative-config '{orjson.dumps(config).decode()}', with the draft model if "
            "the method has one"
        )
    recorded = structs.asdict(limits)
    served = {n: v for n, v in recorded.items() if v is not None and n != "speculate"}
    machine = Machine(
        gpus=(sweep.gpus or 1) // replicas,
        **values_of(convert(served, Limits)),
        kv_cache_dtype=KvCacheDtype(sweep.kv_cache_dtype or KvCacheDtype.AUTO),
        max_model_len=sweep.server.max_model_len,
        offload_gb=variant.offload.dram_gb if variant.offload else None,
    )
    return Winner(sweep.model, policy, machine, replicas, router)
