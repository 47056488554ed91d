"""The provenance of a report: the machine, the workload, the settings, and what was left out."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from reports.phrasing import counted, listed, share
from reports.run_folder.turns import VIRTUAL

SHOWN = 40
"""The most entries that are shown of each kind that was left out."""


def heading(sweep: Mapping[str, Any]) -> list[str]:
    workload = (sweep.get("workload") or {}).get("name")
    engine = VIRTUAL.get(str(sweep.get("engine")), sweep.get("engine"))
    return [
        str(word) for word in (workload, sweep.get("model"), sweep.get("hardware"), engine) if word
    ]


def provenance(sweep: Mapping[str, Any]) -> str:
    """One sentence: what was measured or simulated, on which machine, with which workload."""
    profile = sweep.get("profile") or {}
    model, hardware = sweep.get("model", "a model"), sweep.get("hardware", "a machine")
    engine = str(sweep.get("engine"))
    if engine in VIRTUAL:
        kind = profile.get("provenance", "unknown")
        why = " (a roofline of published peaks, not a measurement)" if kind == "analytic" else ""
        how = VIRTUAL[engine].replace("virtual", "Virtual", 1)
        time = f"{how}, not a GPU: {model} on {hardware}, {kind} profile{why}"
    else:
        version = (sweep.get("server") or {}).get("vllm")
        engine = f"vLLM {version}" if version else engine
        time = f"Measured on {engine}: {model} on {hardware}"
    workload = sweep.get("workload") or {}
    gaps = workload.get("gap_provenance") or {}
    whole = sum(gaps.values())
    kinds = [
        f"{kind} {share(n / whole)}" for kind, n in sorted(gaps.items(), key=lambda g: -g[1]) if n
    ]
    what, turns = str(workload.get("name", "unnamed")), workload.get("turns")
    if turns is not None:  # unknown before a run of agents that are not guided
        what = f"{counted(turns, 'turn')} of {what}"
    if len(kinds) == 1:
        return f"{time}; {what}, tool gaps {kinds[0].split()[0]}."
    return f"{time}; {what}" + (f", tool gaps {listed(kinds)}." if kinds else ".")


def command(sweep: Mapping[str, Any]) -> str:
    """The command line that made the run, quoted for a shell."""
    return shlex.join(map(str, _made_by(sweep).get("argv", [])))


def left_out(sweep: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Rows of (kind, name, reason), at most SHOWN of each kind."""
    programs = (sweep.get("workload") or {}).get("left_out") or []
    kinds = (
        ("variant", "name", sweep.get("left_out") or []),
        ("program", "program_id", programs),
        ("file", "file", sweep.get("rejected_files") or []),
        ("repaired", "file", sweep.get("repairs") or []),
    )
    rows: list[tuple[str, str, str]] = []
    for what, name, entries in kinds:
        rows += [(what, str(e.get(name)), str(e.get("reason"))) for e in entries[:SHOWN]]
        if len(entries) > SHOWN:
            rows.append((what, f"{len(entries) - SHOWN:,} more", "named in sweep.json"))
    return rows


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
        ("Engine", sweep.get("engine")),
        ("Agent", _agent(sweep.get("agent") or {})),
        ("Profile", profile),
        ("Limits", ", ".join(f"{k} {v}" for k, v in (sweep.get("limits") or {}).items())),
        ("Workload", _load(workload)),
        ("Trace SHA-256", workload.get("trace_sha256")),
        ("Tool gaps", gaps),
        ("Arrivals", sweep.get("arrivals")),
        ("Seeds", ", ".join(map(str, sweep["seeds"]))),
        ("Variants", "; ".join(_described(v) for v in sweep["variants"])),
        ("Turnstile", sweep.get("turnstile_version")),
        ("Sources", sweep.get("code_sha256")),
        ("Commit", made_by.get("git_commit")),
        ("Python", made_by.get("python")),
    )
    return [(name, str(value)) for name, value in known if value]


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


def _plain(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if value.is_integer() else f"{value:,.6g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _described(variant: Mapping[str, Any]) -> str:
    about = variant.get("description") or variant.get("policy_source") or variant.get("policy")
    return f"{variant['name']} ({about})" if about else str(variant["name"])
