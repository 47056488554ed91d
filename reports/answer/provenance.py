"""Formats the provenance of a report: the machine, the workload, the settings, and omissions.

In: `sweep.json`. Out: sentences and rows of tables.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from reports.answer.workload import compared_with_agents
from reports.run_folder.turns import VIRTUAL
from servers.basics.phrasing import counted, gpus_in_words, listed, share

ORIGINS = {
    "analytic": " (a roofline of published peaks, not a measurement)",
    "operator-table": " (sums of operators that were measured on that GPU)",
}
"""What a profile's provenance means."""
MAX_ROWS = 40
"""At most this many rows are shown for each kind of omission."""


def heading(sweep: Mapping[str, Any]) -> list[str]:
    workload = (sweep.get("workload") or {}).get("name")
    engine = VIRTUAL.get(str(sweep.get("engine")), sweep.get("engine"))
    return [str(word) for word in (workload, sweep.get("model"), _gpus(sweep), engine) if word]


def _gpus(sweep: Mapping[str, Any]) -> str | None:
    hardware = sweep.get("hardware")
    return hardware and gpus_in_words(hardware, sweep.get("gpus"))


def provenance(sweep: Mapping[str, Any]) -> str:
    """Return `basis`, and a sentence that compares the workload with recorded agents."""
    return f"{basis(sweep)} {compared_with_agents(sweep.get('workload') or {})}".rstrip()


def basis(sweep: Mapping[str, Any]) -> str:
    """Return a sentence that says whether times were measured or simulated, and names the model,
    the machine and the workload."""
    return " ".join([f"{timing(sweep)}; {_jobs(sweep)}.", *_finite(sweep)])


def workload(sweep: Mapping[str, Any]) -> str:
    """Return what `provenance` says about the workload, without the machine."""
    jobs, compared = _jobs(sweep), compared_with_agents(sweep.get("workload") or {})
    sentences = [f"{jobs[:1].upper()}{jobs[1:]}.", *_finite(sweep), compared]
    return " ".join(filter(None, sentences))


def timing(sweep: Mapping[str, Any]) -> str:
    """Say whether times were measured or simulated, and on which machine."""
    profile = sweep.get("profile") or {}
    model, hardware = sweep.get("model", "a model"), _gpus(sweep) or "a machine"
    engine = str(sweep.get("engine"))
    if engine in VIRTUAL:
        kind = profile.get("provenance", "unknown")
        note = ORIGINS.get(kind, "")
        return (
            f"Simulated in {VIRTUAL[engine]}, not measured on a GPU: {model} on {hardware},"
            f" {kind} profile{note}"
        )
    server = sweep.get("server") or {}
    for key, project in (("vllm", "vLLM"), ("sglang", "SGLang")):
        engine = f"{project} {server[key]}" if server.get(key) else engine
    if version := server.get("dynamo"):
        kind = profile.get("provenance", "unknown")
        return (
            f"Measured on Dynamo {version} over workers that compute nothing, but take the time"
            f" of {model} on {hardware}, {kind} profile{ORIGINS.get(kind, '')}"
        )
    return f"Measured on {engine}: {model} on {hardware}"


def _jobs(sweep: Mapping[str, Any]) -> str:
    """Say what the jobs are, and where their tool gaps and token counts come from."""
    workload = sweep.get("workload") or {}
    gaps = workload.get("gap_provenance") or {}
    total = sum(gaps.values())
    counts = {kind: n for kind, n in sorted(gaps.items(), key=lambda g: -g[1]) if n}
    kinds = [f"{kind} {share(n / total)}" for kind, n in counts.items()]
    name, turns = str(workload.get("name", "unnamed")), workload.get("turns")
    if sweep.get("steady_state"):
        name = _stream(workload)
        if (means := workload.get("means")) is not None:
            name += f", {means['turns']:.0f} turns on average"
    elif turns is not None:  # unknown before a run of agents that are not guided
        name = f"{counted(turns, 'turn')} of {name}"
    if beside := sweep.get("background"):
        name += f", beside {_background(beside)}"
    if len(kinds) == 1:
        kinds = list(counts)
    gaps_are = f", tool gaps {listed(kinds)}" if kinds else ""
    counts_are = f", {tokens}" if (tokens := inferred_tokens(workload)) else ""
    return f"{name}{gaps_are}{counts_are}"


def names(workload: Mapping[str, Any]) -> str:
    """Say which names a run of a person's history has; "" for other workloads."""
    if not workload.get("private"):
        return ""
    if workload.get("keeps_names"):
        return "those of the private history, since --keep-names was given"
    return "numbered, except for the names of well-known tools"


def inferred_tokens(workload: Mapping[str, Any]) -> str:
    """Return the share of programs with inferred token counts; "" if there are none."""
    if not (programs := workload.get("inferred_token_programs")):
        return ""
    of_all = programs / (workload.get("programs") or programs)
    return f"token counts inferred in {share(of_all)} of the programs"


def _finite(sweep: Mapping[str, Any]) -> list[str]:
    """Say what a fixed set of jobs at some rates does not measure."""
    if sweep.get("steady_state") or not any(sweep.get("jps") or ()):
        return []
    return [
        "Each cell runs a finite set of jobs from an empty system, so a rate that it keeps up with"
        " is no capacity: a stream with a burst may not be sustained at it."
    ]


def _background(background: Mapping[str, Any]) -> str:
    if not background:
        return ""
    return f"{background['requests_per_s']:g} requests/s of {background['name']}"


def _stream(workload: Mapping[str, Any]) -> str:
    """Return where the jobs of a stream come from."""
    if recipe := workload.get("recipe"):
        return f"jobs drawn afresh from the recipe {recipe}"
    programs = workload.get("programs")
    count = "the programs" if programs is None else f"the {counted(programs, 'program')}"
    return f"{count} of {workload.get('name', 'a trace')}, repeated in random orders"


def command(sweep: Mapping[str, Any]) -> str:
    """Return the command line that made the run, quoted for a shell."""
    return shlex.join(map(str, _made_by(sweep).get("argv", [])))


def left_out(sweep: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Return rows of (kind, name, reason), at most MAX_ROWS of each kind."""
    programs = [
        {**program, "reason": without_name(program)}
        for program in (sweep.get("workload") or {}).get("left_out") or []
    ]
    kinds = (
        ("variant", "name", sweep.get("left_out") or []),
        ("program", "program_id", programs),
        ("file", "file", sweep.get("rejected_files") or []),
        ("repaired", "file", sweep.get("repairs") or []),
    )
    rows: list[tuple[str, str, str]] = []
    for kind, key, entries in kinds:
        rows += [(kind, str(e.get(key)), str(e.get("reason"))) for e in entries[:MAX_ROWS]]
        if len(entries) > MAX_ROWS:
            rows.append((kind, f"{len(entries) - MAX_ROWS:,} more", "named in sweep.json"))
    return rows


def without_name(program: Mapping[str, Any]) -> str:
    """Return the reason why a program was left out, without the program's name."""
    name, reason = f"program {program.get('program_id')}", str(program.get("reason"))
    return reason.removeprefix(f"{name}, ").removeprefix(f"{name}: ")


def _made_by(sweep: Mapping[str, Any]) -> Mapping[str, Any]:
    made_by = sweep.get("made_by", sweep)
    return made_by if isinstance(made_by, Mapping) else {}


def facts(sweep: Mapping[str, Any]) -> list[tuple[str, str]]:
    workload, made_by = sweep.get("workload") or {}, _made_by(sweep)
    profile = ", ".join(f"{k} {_plain(v)}" for k, v in (sweep.get("profile") or {}).items())
    gaps = ", ".join(f"{n:,} {k}" for k, n in (workload.get("gap_provenance") or {}).items())
    known = (
        ("Model", sweep.get("model")),
        ("Hardware", sweep.get("hardware")),
        ("GPUs", sweep.get("gpus")),
        ("GPU file", _gpu(sweep.get("gpu") or {})),
        ("Engine", sweep.get("engine")),
        ("Agent", _agent(sweep.get("agent") or {})),
        ("Profile", profile),
        ("About the profile", _sentences(sweep.get("profile_notes") or ())),
        ("Limits", ", ".join(f"{k} {v}" for k, v in (sweep.get("limits") or {}).items())),
        ("Workload", _stream(workload) if sweep.get("steady_state") else _load(workload)),
        ("Trace SHA-256", workload.get("trace_sha256")),
        ("Names of tools and sessions", names(workload)),
        ("Tool gaps", gaps),
        ("Token counts", inferred_tokens(workload)),
        ("Answers", _answers(sweep.get("server") or {})),
        ("Arrivals", sweep.get("arrivals")),
        ("Background", _background(sweep.get("background") or {})),
        ("Seeds", ", ".join(map(str, sweep["seeds"]))),
        ("Variants", "; ".join(_described(v) for v in sweep["variants"])),
        ("Turnstile", sweep.get("turnstile_version")),
        ("Sources", sweep.get("code_sha256")),
        ("Commit", made_by.get("git_commit")),
        ("Python", made_by.get("python")),
    )
    return [(name, str(value)) for name, value in known if value]


GPU_FIELDS = (
    ("memory_bytes", "memory", 2**30, "GiB"),
    ("memory_bytes_per_s", "memory bandwidth", 1e12, "TB/s"),
    ("bf16_flops", "BF16", 1e12, "TFLOP/s"),
    ("fp8_flops", "FP8", 1e12, "TFLOP/s"),
    ("pcie_bytes_per_s", "link to the host", 1e9, "GB/s"),
    ("link_bytes_per_s", "link between GPUs", 1e9, "GB/s"),
    ("offload_gb", "host memory per GPU", 1, "GB"),
    ("price_usd_per_hour", "price of one GPU", 1, "USD/h"),
)
"""Fields of a GPU with their names, the size of the unit, and the unit."""


def _gpu(gpu: Mapping[str, Any]) -> str:
    """Describe the GPU of a file. All values are of one GPU."""
    known = [
        f"{name} {gpu[field] / size:,.4g} {unit}"
        for field, name, size, unit in GPU_FIELDS
        if isinstance(gpu.get(field), int | float)
    ]
    texts = [str(gpu[field]) for field in ("source", "note") if gpu.get(field)]
    return "; ".join([*filter(None, [", ".join(known)]), *texts])


def _sentences(notes: Sequence[str]) -> str:
    return " ".join(f"{note[:1].upper()}{note[1:].rstrip('.')}." for note in notes)


def _load(workload: Mapping[str, Any]) -> str:
    counts = [(workload.get(f"{noun}s"), noun) for noun in ("program", "turn")]
    known = ", ".join(counted(count, noun) for count, noun in counts if count)
    return ": ".join(filter(None, (workload.get("name"), known)))


def _agent(agent: Mapping[str, Any]) -> str:
    if not agent:
        return ""
    sandbox = (agent.get("sandbox") or {}).get("kind", "no sandbox")
    answers = "answers from the trace" if agent.get("guided") else "answers from the model"
    return f"{agent.get('name')} {agent.get('version')}, {answers}, {sandbox}"


def _answers(server: Mapping[str, Any]) -> str:
    """Say which tokens a live server generates in text mode."""
    if server.get("prompts") != "text":
        return ""
    if server.get("answers") == "recorded":
        return "the recorded ones, token for token"
    return "generated by the model, as many tokens as were recorded"


def _plain(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if value.is_integer() else f"{value:,.6g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _described(variant: Mapping[str, Any]) -> str:
    text = variant.get("description") or variant.get("policy_source") or variant.get("policy")
    return f"{variant['name']} ({text})" if text else str(variant["name"])
