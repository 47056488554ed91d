"""The results of AgentX that docs/reference/results.md shows: docs/data/agentx.json.

`python -m tools.agentx RUN…` writes those of sweeps with `--scenario` to it.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from reports.metrics.cells import collect
from reports.metrics.interactivity import scenario_points
from reports.numbers import digits, whole
from reports.run_folder.read import load_run
from servers.basics.atomic import write_file
from servers.basics.phrasing import gpus_in_words
from tools.results_tables import DASH, DATA, code, table

FILE = DATA / "agentx.json"
Row = Mapping[str, Any]


def read_agentx(path: Path = FILE) -> list[Row]:
    found: list[Row] = orjson.loads(path.read_bytes())
    return found


def rows_of(run: Path) -> list[Row]:
    """Return a row per policy and number of agents of a run folder."""
    sweep = load_run(run).sweep
    machine = {"model": sweep.model, "machine": gpus_in_words(sweep.hardware or "", sweep.gpus)}
    return [machine | point._asdict() for point in scenario_points(collect(load_run(run)).cells)]


def tables(rows: Sequence[Row]) -> dict[str, str]:
    """Return the table by its name in the page: tokens per second and GPU at interactivity P90."""
    policies = list(dict.fromkeys(row["variant"] for row in rows))
    found: dict[tuple[str, str, int], dict[str, str]] = {}
    for row in rows:
        key = (row["model"], row["machine"], row["agents"])
        values = whole(row["tokens_per_s_per_gpu"]), digits(row["interactivity_p90"])
        found.setdefault(key, {})[row["variant"]] = " at ".join(values)
    return {
        "agentx": table(
            ("model", "machine", "agents", *map(code, policies)),
            [
                (code(model), machine, str(agents), *(each.get(p, DASH) for p in policies))
                for (model, machine, agents), each in found.items()
            ],
        )
    }


if __name__ == "__main__":
    if not sys.argv[1:]:
        sys.exit("tools.agentx: give the folders of sweeps with --scenario")
    written = [row for run in sys.argv[1:] for row in rows_of(Path(run))]
    write_file(FILE, orjson.dumps(written, option=orjson.OPT_INDENT_2) + b"\n")
