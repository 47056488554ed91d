"""Makes the tables of docs/reference/results.md from docs/data/.

`python -m tools.results_tables RUN…` adds run folders of sweeps to docs/data/results.json.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations
from pathlib import Path
from statistics import median

import orjson

from reports.capacity.estimate import Kind
from reports.capacity.slo import DEFAULT_SLO, DEFAULT_SLO_OF_AGENTS
from reports.statistics.bootstrap import Estimate
from reports.statistics.over_seeds import paired_ratio
from servers.variants import TUNED
from tools.results import (
    AGENTS,
    BASELINE,
    DAY,
    STEADY,
    TableResult,
    merged,
    read_results,
    result_of,
    write_results,
)

DATA = Path(__file__).parents[1] / "docs/data"
MACHINES = {"a100-80g": "A100 80 GB", "h100": "H100", "b200": "B200"}
RECIPE_OF = {"mini-swe-agent": "mini-swe-agent", "weka": "claude-code"}
"""The recipe that is fitted to a recorded set."""
KINDS = {Kind.NEVER: "none", Kind.ALWAYS: "all", Kind.OPEN: "unfinished"}
LOADS = {DAY: "jobs/s", AGENTS: "agents"}
SLOS = ("", DEFAULT_SLO, DEFAULT_SLO_OF_AGENTS)
"""The table of loads names others."""
DASH = "–"
POLICIES = ("continuum", "infercept", "thunderagent", "turnstile", "lmcache")
COMPARED = (TUNED, *POLICIES)
"""Policies of the table of loads, with the baseline."""
SHOWN_BY_LOAD = (*COMPARED, "unlimited-kv")
"""The last one has memory that never fills, so that it is never the best."""
MEASURES = {AGENTS: "agents", DAY: "a day", STEADY: "after a burst"}
ALIKE = 1.03
"""Capacities whose ratio is at most this are in no order."""


def tables(results: Sequence[TableResult]) -> dict[str, str]:
    """Return the tables by their names in the page."""
    every, results = results, [result for result in results if result.load == STEADY]
    return {
        "loads": table(
            ("load", "workload", "machine", "seeds", "against", "its capacity", *SHOWN_BY_LOAD),
            _by_load(every),
        ),
        "orders": table(
            ("workload", "machine", *MEASURES.values(), "agents ≠ day", "day ≠ burst"),
            _orders(every),
        ),
        "capacities": table(
            ("machine", "workload", f"{BASELINE}, jobs/s", *POLICIES), _after_a_burst(results)
        ),
        "recipes": table(
            ("recipe", "machine", "within 10%", "median", "largest"), _recipes(results)
        ),
        "live": table(("load", "mean JCT", "P95 JCT", "winner", "τ"), _live()),
    }


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))


def code(name: str) -> str:
    return f"`{name}`"


def interval(ratio: Estimate) -> str:
    limits = f" ({ratio.low:.2f}–{ratio.high:.2f})" if ratio.has_interval else ""
    return f"{ratio.value:.2f}{limits}"


def _is_fitted(result: TableResult) -> bool:
    """Whether the workload is a recipe whose recorded set has the same results within 10%."""
    return not result.recorded and result.workload in RECIPE_OF.values()


def _workload(result: TableResult) -> str:
    return f"recorded {result.workload}" if result.recorded else code(result.workload)


def _after_a_burst(results: Sequence[TableResult]) -> Iterator[list[str]]:
    """Yield a row per machine and workload."""
    for hardware, machine in MACHINES.items():
        for result in results:
            if result.hardware == hardware and not _is_fitted(result):
                base = result.capacity(BASELINE)
                yield [
                    *(machine, _workload(result), DASH if base is None else f"{base.value:.3g}"),
                    *(_capacity(result, name) for name in POLICIES),
                ]


def _by_load(results: Sequence[TableResult]) -> Iterator[list[str]]:
    """Yield a row per load other than a steady state and per baseline: stock vLLM, and stock vLLM
    with the settings that were found."""
    shown = [each for each in results if each.load in LOADS]
    order = list(LOADS)
    for result in sorted(shown, key=lambda each: (order.index(each.load), each.key)):
        yield _row_against(result, BASELINE, BASELINE)
        if result.tuned and result.per_s(TUNED) != result.per_s(BASELINE):
            yield _row_against(result, TUNED, result.tuned)


def _row_against(result: TableResult, baseline: str, name: str) -> list[str]:
    base, by_seed = result.capacity(baseline), result.per_s(baseline)
    others = [each for each in SHOWN_BY_LOAD if each != baseline]
    ratios = {each: ratio for each in others if (ratio := result.ratio(each, baseline))}
    best = max([1.0, *(ratio.value for each, ratio in ratios.items() if each in COMPARED)])
    other_slo = code(result.slo) if result.slo not in SLOS else ""
    load = ", ".join(filter(None, (LOADS[result.load], result.horizon, other_slo)))
    multiples = {
        each: "1.00" if result.per_s(each) == by_seed else interval(ratio)
        for each, ratio in ratios.items()
    }
    return [
        *(load, _workload(result), MACHINES[result.hardware], str(len(by_seed)), code(name)),
        DASH if base is None else _bold(f"{base.value:.3g}", best == 1),
        *(
            _bold(multiples[each], each in COMPARED and ratios[each].value == best)
            if each in ratios
            else _kinds(result, each)
            for each in SHOWN_BY_LOAD
        ),
    ]


def _orders(results: Sequence[TableResult]) -> Iterator[list[str]]:
    """Yield a row for each workload on a machine that has a day or agents and one measure more."""
    found: dict[tuple[str, bool, str], dict[str, TableResult]] = {}
    for result in results:
        if result.slo in SLOS and not _is_fitted(result):
            found.setdefault(result.key[:3], {})[result.load] = result
    for by_load in found.values():
        if len(by_load) > 1:
            capacities = {load: _ordered(by_load[load]) for load in MEASURES if load in by_load}
            first = next(iter(by_load.values()))
            yield [
                *(_workload(first), MACHINES[first.hardware]),
                *(_order(capacities.get(load, {})) for load in MEASURES),
                _reversed(capacities.get(AGENTS, {}), capacities.get(DAY, {})),
                _reversed(capacities.get(DAY, {}), capacities.get(STEADY, {})),
            ]


def _ordered(result: TableResult) -> dict[str, float]:
    """Return the capacities of stock vLLM and the compared policies, the highest first. One that
    every load stays below is the highest."""
    names = [BASELINE, *(each for each in COMPARED if each != TUNED)]
    found = {name: each.value for name in names if (each := result.capacity(name))}
    found |= {name: math.inf for name in names if _kinds(result, name) == KINDS[Kind.ALWAYS]}
    return dict(sorted(found.items(), key=lambda each: -each[1]))


def _order(capacities: dict[str, float]) -> str:
    """Return names with ">" between them where the capacity falls by more than `ALIKE` from the
    first of those before that are alike."""
    text, first = "", math.inf
    for name, value in capacities.items():
        if not text or first > ALIKE * value:
            text, first = f"{text} > {name}" if text else name, value
        else:
            text += f" = {name}"
    return text or DASH


def _reversed(one: dict[str, float], other: dict[str, float]) -> str:
    """Return how many pairs of policies have another order."""
    pairs = list(combinations([name for name in one if name in other], 2))
    if not pairs:
        return DASH
    count = sum(one[a] > ALIKE * one[b] and other[b] > ALIKE * other[a] for a, b in pairs)
    return f"{count} of {len(pairs)}"


def _bold(text: str, is_bold: bool) -> str:
    return f"**{text}**" if is_bold else text


def _capacity(result: TableResult, variant: str) -> str:
    """Return the capacity ÷ the baseline's, or why it is no number."""
    ratio = result.ratio(variant, BASELINE)
    if ratio is not None:
        return f"**{ratio.value:.2f}**" if ratio.differs_from_one else f"{ratio.value:.2f}"
    return _kinds(result, variant)


def _kinds(result: TableResult, variant: str) -> str:
    """Return why a capacity is no number; a dash if it was not searched."""
    kinds = {KINDS[k] for k in result.capacities.get(variant, {}).values() if k in KINDS}
    return " or ".join(sorted(kinds)) or DASH


def _recipes(results: Sequence[TableResult]) -> Iterator[list[str]]:
    by_key = {result.key[:3]: result for result in results}
    for recorded_set, recipe in RECIPE_OF.items():
        for hardware in MACHINES:
            recorded = by_key.get((recorded_set, True, hardware))
            drawn = by_key.get((recipe, False, hardware))
            if recorded and drawn:
                shares = {
                    name: ratio.value - 1
                    for name in recorded.capacities
                    if (ratio := paired_ratio(drawn.per_s(name), recorded.per_s(name)))
                }
                far = max(shares, key=lambda name: abs(shares[name]))
                near = sum(abs(share) <= 0.1 for share in shares.values())
                yield [
                    *(code(recipe), MACHINES[hardware], f"{near} of {len(shares)}"),
                    f"{median(shares.values()):+.0%}",
                    f"{shares[far]:+.0%} ({far})",
                ]


def _live() -> Iterator[list[str]]:
    card = orjson.loads((DATA / "fidelity-tiny-cpu.json").read_bytes())
    for ranking in card["rankings"]:
        points = [point for point in card["points"] if point["load"] == ranking["load"]]
        yield [
            ranking["load"],
            *(_range([point[name]["value"] for point in points]) for name in ("mean", "p95")),
            "the same" if ranking["same_winner"] else "another",
            DASH if ranking["tau"] is None else f"{ranking['tau']:.2f}",
        ]


def _range(errors: list[float]) -> str:
    return f"{min(errors):+.1%} to {max(errors):+.1%}"


if __name__ == "__main__":
    write_results(
        DATA / "results.json",
        merged(read_results(DATA / "results.json"), [result_of(Path(run)) for run in sys.argv[1:]]),
    )
