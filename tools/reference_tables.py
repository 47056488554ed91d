"""Writes the tables of docs/reference/ whose facts the code or docs/data/ states.

`python -m tools.reference_tables` rewrites each table between `<!-- table: NAME -->` and `<!-- end
of table -->`. A test checks that the pages are current.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

from reports.metrics.background import BACKGROUND
from reports.metrics.measure import GROUPS
from reports.metrics.metric import Group, Metric
from reports.metrics.routing import ROUTING
from servers.admission import STEP_TOKENS
from servers.basics.atomic import write_file
from servers.profiles import HARDWARE, MODELS, Model, Profile
from servers.profiles.files import profile_for
from servers.profiles.machines.gpus import GIB, PCIE3_X16, PCIE4_X16, PCIE5_X16
from servers.profiles.reference_steps import reference_steps
from servers.variants import POLICIES
from tools import laws
from tools.agentx import read_agentx
from tools.agentx import tables as agentx_tables
from tools.results import read_results
from tools.results_tables import DATA, code, table
from tools.results_tables import tables as results_tables
from tools.world import read_world
from tools.world import tables as world_tables
from traces.formats.about import About
from traces.formats.registry import PACKAGED, abouts, known_formats

DOCS = Path(__file__).parents[1] / "docs"
TABLE = re.compile(r"(<!-- table: (.+?) -->\n).*?(<!-- end of table -->)", re.DOTALL)
ARROWS = {"lower": " ↓", "higher": " ↑", "": ""}
"""Which values of a metric are better."""
PER = re.compile("1?/")
PERCENTILE = re.compile(r"p\d\d")
MODEL_GPUS = ("h200", "b200")
MODEL_COLUMNS = [
    f"{gpu.upper()}: {what}" for gpu in MODEL_GPUS for what in ("KV tokens", "prompt / decode, ms")
]
PCIE: dict[float, str] = {PCIE3_X16: "PCIe 3", PCIE4_X16: "PCIe 4", PCIE5_X16: "PCIe 5"}


@cache
def tables() -> dict[str, str]:
    return {
        "policies": table(("policy", "checked", "source"), _policies()),
        "hardware": table(
            ("name", "BF16 / FP8, TFLOP/s", "memory, GB/s", "GiB", "host link", "GPU link, GB/s"),
            _hardware(),
        ),
        "models": table(
            (
                *("model", "parameters", "KV bytes per token, states", "GPUs", "block"),
                *(*MODEL_COLUMNS, "step times"),
            ),
            _models(),
        ),
        **_formats("trace formats", known_formats().built_in),
        **_formats("formats of the package", PACKAGED),
        "laws": table(("law", "held", "where it did not always hold"), laws.rows()),
        "cell metrics": _metrics(*(g for g in GROUPS if g not in (BACKGROUND, ROUTING))),
        "background metrics": _metrics(BACKGROUND),
        "routing metrics": _metrics(ROUTING),
        **results_tables(read_results(DATA / "results.json")),
        **world_tables(read_world()),
        **agentx_tables(read_agentx()),
    }


def page(text: str) -> str:
    return TABLE.sub(lambda m: f"{m[1]}{tables()[m[2]]}\n{m[3]}", text)


def _metrics(*groups: Group) -> str:
    rows: list[list[Metric]] = []
    for metric in (metric for group in groups for metric in group.metrics):
        if rows and _is_percentile_of(rows[-1][0], metric):
            rows[-1].append(metric)
        else:
            rows.append([metric])
    return table(("column", "definition"), map(_metrics_row, rows))


def _metrics_row(row: list[Metric]) -> list[str]:
    """Return the row of a metric, and of other percentiles of the same values."""
    columns = (f"{code(each.column)}{ARROWS[each.better]}{_unit(each)}" for each in row)
    others = "The other percentiles likewise." if row[1:] else ""
    words = filter(None, (row[0].meaning, row[0].detail, others))
    return [", ".join(columns), " ".join(words)]


def _unit(metric: Metric) -> str:
    """Return the unit, unless the column ends with it."""
    name = metric.unit.name
    in_column = PER.sub("_per_", name).replace("·", "_").lower()
    return "" if metric.column.endswith(in_column) else f", {name}"


def _is_percentile_of(first: Metric, metric: Metric) -> bool:
    """Whether the metric is another percentile of the first one's values, with nothing to add."""
    same = PERCENTILE.sub("p", first.column) == PERCENTILE.sub("p", metric.column)
    return same and metric.better == "lower" and not metric.detail


def _policies() -> Iterator[list[str]]:
    for policy in map(POLICIES.load, POLICIES.built_in):
        yield [code(policy.name), policy.checked or "no", policy.source]


def _hardware() -> Iterator[list[str]]:
    for gpu in HARDWARE.values():
        fp8 = f"{gpu.fp8_flops / 1e12:g}" if gpu.fp8_flops else "–"
        host = PCIE.get(gpu.pcie_bytes_per_s) or f"{gpu.pcie_bytes_per_s / 1e9:g} GB/s"
        yield [
            *(code(gpu.name), f"{gpu.bf16_flops / 1e12:g} / {fp8}"),
            *(f"{gpu.memory_bytes_per_s / 1e9:g}", f"{gpu.memory_bytes / GIB:.2f}", host),
            f"{gpu.link_bytes_per_s / 1e9:g}" if gpu.link_bytes_per_s else "–",
        ]


def _models() -> Iterator[list[str]]:
    """Models with windows, states or sparse attention; one row for those with the same numbers."""
    names: dict[tuple[str, ...], list[str]] = {}
    for llm in MODELS.values():
        if llm.states is not None or llm.window is not None:
            names.setdefault(tuple(_model(llm)), []).append(code(llm.name))
    for numbers, same in names.items():
        yield [", ".join(same), *numbers]


def _model(llm: Model) -> Iterator[str]:
    gpus = llm.gpus or 1
    kept, states = f"{llm.kv_bytes_per_token_on(gpus):,}", llm.state_bytes_on(gpus)
    yield f"{llm.params / 1e9:.1f}B"
    yield f"{kept}, {states / 2**20:.1f} MiB per turn" if states else kept
    yield from (str(gpus), str(profile_for("b200", llm.name, gpus=gpus).block_tokens))
    profiles = [profile_for(gpu, llm.name, gpus=gpus) for gpu in MODEL_GPUS]
    for profile in profiles:
        yield from _on_machine(profile)
    yield ", ".join(dict.fromkeys(profile.provenance for profile in profiles))


def _on_machine(profile: Profile) -> tuple[str, str]:
    """Return KV tokens, and the times of a prompt of 8,192 tokens and of a decode of 32 turns with
    16,384 tokens each."""
    steps = reference_steps(profile, STEP_TOKENS)
    kv_tokens = profile.kv_tokens(STEP_TOKENS, profile.max_model_len)
    return f"{kv_tokens:,}", f"{steps[0].ms:,.0f} / {steps[5].ms:.1f}"


def _formats(name: str, formats: Iterable[str]) -> dict[str, str]:
    declared = [abouts()[format] for format in formats]
    facts = (
        [
            *(code(each.name), each.holds, each.tokens, each.tool_times, each.repeats),
            ", ".join(_parts_of(each)) or "–",
            *(each.accuracy or "–", each.without or "–"),
        ]
        for each in declared
    )
    head = (
        *("format", "holds", "token counts", "tool times", "repeats", "also"),
        *("inferred, and how well", "files without"),
    )
    rules = ([each.title, each.rules] for each in declared if each.rules)
    return {name: table(head, facts), f"rules of {name}": table(("format", "rules"), rules)}


def _parts_of(format: About) -> Iterator[str]:
    """Yield what programs of the format have that not all formats have."""
    if format.starts:
        yield "starts"
    if format.sub_agents:
        yield "sub-agents"


if __name__ == "__main__":
    for path in sorted(DOCS.rglob("*.md")):
        text = path.read_text(encoding="utf-8")
        if (current := page(text)) != text:
            write_file(path, current.encode())
