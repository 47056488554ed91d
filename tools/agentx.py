"""The results of AgentX that docs/reference/results.md shows: docs/data/agentx.json.

`python -m tools.agentx RUN…` writes sweeps with the same scenario, window and seeds to it. They
replace its rows of the same models, machines, policies and numbers of agents.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile
from operator import itemgetter
from pathlib import Path
from typing import Any

import orjson

from reports.metrics.cells import collect
from reports.metrics.interactivity import scenario_points
from reports.numbers import digits, whole
from reports.run_folder.read import load_run
from servers.basics.atomic import write_file
from servers.basics.errors import InvalidInput
from servers.basics.phrasing import gpus_in_words
from servers.records.settings import ScenarioRecord
from tools.results_tables import DASH, DATA, code, table

FILE = DATA / "agentx.json"
AGENTS = 16
"""Agents of the rows that the page shows: with fewer, policies differ less."""
HYBRID = {
    "gemma-4-26b-a4b": (AGENTS,),
    "qwen3-coder-30b-a3b": (32, 40, 48),
    "qwen3-coder-next": (64, 80, 96),
}
"""Models of the tables on hybrid attention, the second one for comparison, and numbers of agents.
Where attention is hybrid, memory is scarce with more."""
LIMIT_S = 5.0
"""P90 TTFT that the table of numbers of agents allows."""
NO_DIFFERENCE = 1.03
"""Loads on which no policy gives this many times the tokens of another one have no column."""
Row = Mapping[str, Any]
Rules = tuple[ScenarioRecord, tuple[int, ...]]
"""The scenario and the seeds."""


def read_agentx(path: Path = FILE) -> list[Row]:
    found: list[Row] = orjson.loads(path.read_bytes())["rows"]
    return found


def read(run: Path) -> tuple[Rules, list[Row]]:
    """Return the rules of a run folder, and a row per policy and number of agents. Raises
    InvalidInput."""
    found = load_run(run)
    sweep, scenario = found.sweep, found.sweep.scenario
    if scenario is None:
        raise InvalidInput(f"{run}: has no scenario; give sweeps with --scenario")
    machine = {"model": sweep.model, "machine": gpus_in_words(sweep.hardware or "", sweep.gpus)}
    points = scenario_points(collect(found).cells)
    return (scenario, sweep.seeds), [machine | point._asdict() for point in points]


def document(runs: Sequence[Path], before: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the results of runs with the same rules, and the others of `before`. Raises
    InvalidInput."""
    found = [read(run) for run in runs]
    if len({rules for rules, _ in found}) != 1:
        raise InvalidInput("give sweeps with the same scenario, window and seeds")
    scenario, seeds = found[0][0]
    rules = {"scenario": scenario.name, "window_s": scenario.window_s, "seeds": list(seeds)}
    if before is not None and any(before[name] != value for name, value in rules.items()):
        raise InvalidInput(f"{FILE}: has other rules than these sweeps; remove it first")
    known = before["rows"] if before is not None else []
    rows = {_key(row): row for row in [*known, *(row for _, rows in found for row in rows)]}
    return {**rules, "rows": list(rows.values())}


def _key(row: Row) -> tuple[object, ...]:
    return tuple(row[name] for name in ("model", "machine", "variant", "agents"))


def _machine(row: Row) -> str:
    return f"{row['model']}, {row['machine']}"


def tables(rows: Sequence[Row]) -> dict[str, str]:
    """Return the tables by their names in the page: tokens per second and GPU (interactivity P90),
    and for hybrid attention the share of prompt tokens that were hits, and the most agents within
    the limit."""
    others = [row for row in rows if row["model"] not in HYBRID and row["agents"] == AGENTS]
    hybrid = sorted((row for row in rows if row["model"] in HYBRID), key=itemgetter("agents"))
    shown = [row for model in HYBRID for row in hybrid if row["model"] == model]
    shown = [row for row in shown if row["agents"] in HYBRID[row["model"]]]
    return {
        "agentx": _table(others, _machine, "{tokens} ({tps})"),
        "agentx of hybrid attention": _table(shown, _load, "{tokens} ({tps}), {hits:.0%}"),
        "agents with hybrid attention": _within_limit(hybrid),
    }


def _within_limit(rows: Sequence[Row]) -> str:
    """Return a table of the most agents, by policy, up to which all numbers meet the limit."""
    machines = [each for each in dict.fromkeys(map(_machine, rows)) if _numbers(rows, each) > 1]
    cells: list[tuple[str, ...]] = []
    for policy in dict.fromkeys(row["variant"] for row in rows):
        found: list[str] = []
        for machine in machines:
            own = [r for r in rows if r["variant"] == policy and _machine(r) == machine]
            met = list(takewhile(lambda row: row["ttft_p90_s"] <= LIMIT_S, own))
            found += _most(met, at_least=met == own)
        cells.append((code(policy), *found))
    columns = [f"{name}: {what}" for name in machines for what in ("agents", "tokens", "hits")]
    return table(("policy", *columns), cells)


def _numbers(rows: Sequence[Row], machine: str) -> int:
    return len({row["agents"] for row in rows if _machine(row) == machine})


def _most(met: Sequence[Row], *, at_least: bool) -> tuple[str, str, str]:
    if not met:
        return DASH, DASH, DASH
    last = met[-1]
    agents = f"{'≥ ' * at_least}{last['agents']}"
    return agents, whole(last["tokens_per_s_per_gpu"]), f"{last['hit_ratio']:.0%}"


def _load(row: Row) -> str:
    return f"{row['model']}, {row['machine']}, {row['agents']} agents"


def _table(rows: Sequence[Row], column: Callable[[Row], str], form: str) -> str:
    tokens: dict[str, list[float]] = {}
    for row in rows:
        tokens.setdefault(column(row), []).append(row["tokens_per_s_per_gpu"])
    columns = [name for name, each in tokens.items() if max(each) > NO_DIFFERENCE * min(each)]
    found: dict[str, dict[str, str]] = {}
    for row in rows:
        found.setdefault(row["variant"], {})[column(row)] = form.format(
            tokens=whole(row["tokens_per_s_per_gpu"]),
            tps=digits(row["interactivity_p90"]),
            hits=row["hit_ratio"],
        )
    return table(
        ("policy", *columns),
        [
            (code(policy), *(each.get(name, DASH) for name in columns))
            for policy, each in found.items()
        ],
    )


if __name__ == "__main__":
    try:
        before = orjson.loads(FILE.read_bytes()) if FILE.exists() else None
        written = document([Path(run) for run in sys.argv[1:]], before)
    except InvalidInput as error:
        sys.exit(str(error))
    write_file(FILE, orjson.dumps(written, option=orjson.OPT_INDENT_2) + b"\n")
