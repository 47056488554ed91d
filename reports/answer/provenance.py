"""Formats the provenance of a report: the machine, the workload, the settings and omissions.

In: `sweep.json`. Out: sentences and rows of tables.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import to_builtins

from reports.answer.workload import compared_with_agents
from servers.basics.phrasing import counted, gpus_in_words, listed, share, time_span
from servers.records.settings import (
    AgentRecord,
    BackgroundRecord,
    LeftOutProgram,
    RunSettings,
    ServerRecord,
    WorkloadRecord,
)
from servers.records.sweep import PriceRecord, SweepRecord, VariantRecord

ORIGINS = {
    "analytic": " (a roofline of published peaks, not a measurement)",
    "operator-table": " (sums of operator times measured on that GPU)",
}
"""What the provenance of a profile means."""
MAX_ROWS = 40
"""At most this many rows are shown for each kind of omission."""


def heading(sweep: RunSettings) -> list[str]:
    workload = sweep.workload.name
    engine = sweep.virtual_time or sweep.engine
    return [str(word) for word in (workload, sweep.model, _gpus(sweep), engine) if word]


def _gpus(sweep: RunSettings) -> str | None:
    hardware = sweep.hardware
    return hardware and gpus_in_words(hardware, sweep.gpus)


def provenance(sweep: SweepRecord) -> str:
    """Return `basis` and a sentence that compares the workload with recorded agents."""
    return f"{basis(sweep)} {compared_with_agents(sweep.workload)}".rstrip()


def basis(sweep: SweepRecord) -> str:
    """Return a sentence on whether times were measured or simulated, with the model, the machine
    and the workload."""
    return " ".join([f"{timing(sweep)}; {_jobs(sweep)}.", *_finite(sweep)])


def workload(sweep: SweepRecord) -> str:
    """Return the part of `basis` on the workload, without the machine."""
    jobs, compared = _jobs(sweep), compared_with_agents(sweep.workload)
    sentences = [f"{jobs[:1].upper()}{jobs[1:]}.", *_finite(sweep), compared]
    return " ".join(filter(None, sentences))


def timing(sweep: SweepRecord) -> str:
    """State whether times were measured or simulated, and on which machine."""
    profile = sweep.profile
    model, hardware = sweep.model or "a model", _gpus(sweep) or "a machine"
    engine = str(sweep.engine)
    if sweep.virtual_time is not None:
        kind = profile.provenance or "unknown"
        note = ORIGINS.get(kind, "")
        return (
            f"Simulated in {sweep.virtual_time}, not measured on a GPU: {model} on {hardware},"
            f" {kind} profile{note}{_drafts(sweep)}"
        )
    server = sweep.server
    for version, project in ((server.vllm, "vLLM"), (server.sglang, "SGLang")):
        engine = f"{project} {version}" if version else engine
    if version := server.dynamo:
        kind = profile.provenance or "unknown"
        return (
            f"Measured on Dynamo {version} over workers that compute nothing, but take the time"
            f" of {model} on {hardware}, {kind} profile{ORIGINS.get(kind, '')}"
        )
    return f"Measured on {engine}: {model} on {hardware}"


def _drafts(sweep: SweepRecord) -> str:
    if (drafts := sweep.limits.speculate) is None:
        return ""
    return f", speculative decoding {drafts}, whose acceptance is given and not measured"


def _jobs(sweep: SweepRecord) -> str:
    workload = sweep.workload
    gaps = workload.gap_provenance
    total = sum(gaps.values())
    counts = {kind: n for kind, n in sorted(gaps.items(), key=lambda g: -g[1]) if n}
    kinds = [f"{kind} {share(n / total)}" for kind, n in counts.items()]
    name, turns = workload.name or "unnamed", workload.turns
    if sweep.steady_state:
        name = _stream(workload)
        if workload.means:
            name += f", {workload.means['turns']:.0f} turns on average"
    elif turns is not None:  # unknown before a run of agents that are not guided
        name = f"{counted(turns, 'turn')} of {name}"
    if beside := sweep.background:
        name += f", alongside {_background(beside)}"
    if len(kinds) == 1:
        kinds = list(counts)
    gaps_are = f", tool gaps {listed(kinds)}" if kinds else ""
    counts_are = f", {tokens}" if (tokens := inferred_tokens(workload)) else ""
    return f"{name}{gaps_are}{counts_are}"


def names(workload: WorkloadRecord) -> str:
    """Describe the names in a run of a private history; "" for other workloads."""
    if not workload.private:
        return ""
    if workload.keeps_names:
        return "kept from the private history (--keep-names)"
    return "numbered, except for the names of well-known tools"


def inferred_tokens(workload: WorkloadRecord) -> str:
    """Return the share of programs with inferred token counts; "" if there are none."""
    if not (programs := workload.inferred_token_programs):
        return ""
    of_all = programs / (workload.programs or programs)
    return f"token counts inferred in {share(of_all)} of the programs"


def _finite(sweep: SweepRecord) -> list[str]:
    """State what a fixed set of jobs at some rates does not measure."""
    if sweep.steady_state or not any(sweep.jps):
        return []
    return [
        "Each cell runs a finite set of jobs from an empty system, so a rate that it keeps up with"
        " is not a capacity: a stream with a burst may not be sustained at that rate."
    ]


def _background(background: BackgroundRecord | None) -> str:
    if background is None:
        return ""
    return f"{background.requests_per_s:g} requests/s of {background.name}"


def _stream(workload: WorkloadRecord) -> str:
    if recipe := workload.recipe:
        return f"jobs drawn afresh from the recipe {recipe}"
    programs = workload.programs
    count = "the programs" if programs is None else f"the {counted(programs, 'program')}"
    return f"{count} of {workload.name or 'a trace'}, repeated in random orders"


def _arrivals(sweep: SweepRecord) -> str:
    text, horizon = sweep.arrivals or "", sweep.horizon
    if (scenario := sweep.scenario) is not None:
        window = f"a window of {time_span(scenario.window_s)}"
        return f"{text} under the rules of {scenario.name}, with {window}"
    if horizon is None:
        return text
    return f"{text} for {horizon.in_words}"


def command(sweep: SweepRecord) -> str:
    """Return the command line that made the run, quoted for a shell."""
    return shlex.join(sweep.made_by.argv)


def left_out(sweep: SweepRecord) -> list[tuple[str, str, str]]:
    """Return rows of (kind, name, reason), at most MAX_ROWS of each kind."""
    kinds = (
        ("variant", [(each.name, each.reason) for each in sweep.left_out]),
        ("program", [(p.program_id, without_name(p)) for p in sweep.workload.left_out]),
        ("file", [(note.file, note.reason) for note in sweep.rejected_files]),
        ("repaired", [(note.file, note.reason) for note in sweep.repairs]),
    )
    rows: list[tuple[str, str, str]] = []
    for kind, entries in kinds:
        rows += [(kind, *entry) for entry in entries[:MAX_ROWS]]
        if len(entries) > MAX_ROWS:
            rows.append((kind, f"{len(entries) - MAX_ROWS:,} more", "named in sweep.json"))
    return rows


def without_name(program: LeftOutProgram) -> str:
    """Return the reason why a program was left out, without the program's name."""
    name = f"program {program.program_id}"
    return program.reason.removeprefix(f"{name}, ").removeprefix(f"{name}: ")


def facts(sweep: SweepRecord) -> list[tuple[str, str]]:
    workload = sweep.workload
    profile = ", ".join(f"{k} {_plain(v)}" for k, v in to_builtins(sweep.profile).items())
    gaps = ", ".join(f"{n:,} {k}" for k, n in workload.gap_provenance.items())
    known = (
        ("Model", sweep.model),
        ("Hardware", sweep.hardware),
        ("GPUs", sweep.gpus),
        ("GPU file", _gpu(sweep.gpu or {})),
        ("Price of a GPU", price_in_words(sweep.price)),
        ("Engine", sweep.engine),
        ("Agent", _agent(sweep.agent)),
        ("Profile", profile),
        ("About the profile", _sentences(sweep.profile_notes)),
        ("Limits", ", ".join(f"{k} {v}" for k, v in to_builtins(sweep.limits).items())),
        ("Workload", _stream(workload) if sweep.steady_state else _load(workload)),
        ("Trace SHA-256", workload.trace_sha256),
        ("Names of tools and sessions", names(workload)),
        ("Tool gaps", gaps),
        ("Token counts", inferred_tokens(workload)),
        ("Answers", _answers(sweep.server)),
        ("Arrivals", _arrivals(sweep)),
        ("Background", _background(sweep.background)),
        ("Seeds", _seeds(sweep)),
        ("Variants", "; ".join(_described(v) for v in sweep.variants)),
        ("Turnstile", sweep.turnstile_version),
        ("Sources", sweep.code_sha256),
        ("Commit", sweep.made_by.git_commit),
        ("Python", sweep.made_by.python),
    )
    return [(name, str(value)) for name, value in known if value]


def _seeds(sweep: SweepRecord) -> str:
    rule = sweep.search and sweep.search.until
    return ", ".join(map(str, sweep.seeds)) + (f" (added by --until {rule})" if rule else "")


def price_in_words(price: PriceRecord | None) -> str:
    """Return the price with its source; "" if there is none."""
    if price is None:
        return ""
    source = ", ".join(filter(None, [price.source, price.date]))
    return f"{price.usd_per_gpu_hour:g} USD per hour ({source})"


GPU_FIELDS = (
    ("memory_bytes", "memory", 2**30, "GiB"),
    ("memory_bytes_per_s", "memory bandwidth", 1e12, "TB/s"),
    ("bf16_flops", "BF16", 1e12, "TFLOP/s"),
    ("fp8_flops", "FP8", 1e12, "TFLOP/s"),
    ("pcie_bytes_per_s", "link to the host", 1e9, "GB/s"),
    ("link_bytes_per_s", "link between GPUs", 1e9, "GB/s"),
    ("offload_gb", "host memory per GPU", 1, "GB"),
)
"""Fields of a GPU, with their label, the size of the unit, and the unit."""


def _gpu(gpu: Mapping[str, Any]) -> str:
    """Describe a GPU from a file. All values are for one GPU."""
    known = [
        f"{name} {gpu[field] / size:,.4g} {unit}"
        for field, name, size, unit in GPU_FIELDS
        if isinstance(gpu.get(field), int | float)
    ]
    texts = [str(gpu[field]) for field in ("source", "note") if gpu.get(field)]
    return "; ".join([*filter(None, [", ".join(known)]), *texts])


def _sentences(notes: Sequence[str]) -> str:
    return " ".join(f"{note[:1].upper()}{note[1:].rstrip('.')}." for note in notes)


def _load(workload: WorkloadRecord) -> str:
    counts = ((workload.programs, "program"), (workload.turns, "turn"))
    known = ", ".join(counted(count, noun) for count, noun in counts if count)
    return ": ".join(filter(None, (workload.name, known)))


def _agent(agent: AgentRecord | None) -> str:
    if agent is None:
        return ""
    sandbox = (agent.sandbox or {}).get("kind", "no sandbox")
    answers = "answers from the trace" if agent.guided else "answers from the model"
    return f"{agent.name} {agent.version}, {answers}, {sandbox}"


def _answers(server: ServerRecord) -> str:
    if server.prompts != "text":
        return ""
    if server.answers == "recorded":
        return "the recorded ones, token for token"
    return "generated by the model, as many tokens as were recorded"


def _plain(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if value.is_integer() else f"{value:,.6g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _described(variant: VariantRecord) -> str:
    text = variant.description or variant.policy_source or variant.policy
    return f"{variant.name} ({text})" if text else variant.name
