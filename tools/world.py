"""The predictions of public runs that docs/design/fidelity.md shows: docs/data/world.json.

`python -m tools.world RUN…` adds folders of `bench experiment world-*` to it. An error compares a
prediction with the nearest number that the source states: 0% within a stated range.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import orjson

from harness.experiments.definition import load
from servers.basics.atomic import write_file
from servers.basics.phrasing import counted
from tools.results_tables import code, table

DATA = Path(__file__).parents[1] / "docs/data/world.json"

World = Mapping[str, Mapping[str, Any]]
"""What `experiment.json` says, by the name of the experiment."""


def read_world(path: Path = DATA) -> World:
    found: World = orjson.loads(path.read_bytes())
    return found


def add(world: World, runs: Sequence[Path]) -> World:
    """Return the predictions with those of `runs`, which replace earlier ones."""
    added = [orjson.loads((run / "experiment.json").read_bytes()) for run in runs]
    kept = ("verdict", "outcome", "findings")
    return dict(sorted({**world, **{e["name"]: {k: e[k] for k in kept} for e in added}}.items()))


def error(predicted: float, published: Sequence[float]) -> float:
    """Return the relative error of a prediction against a number or the two ends of a range."""
    nearest = min(max(predicted, min(published)), max(published))
    return predicted / nearest - 1


def capacity_errors(world: World) -> list[float]:
    """Return the errors of the claims about capacities that have numbers on both sides."""
    return [
        error(finding["points"][0]["value"], finding["published_range"])
        for each in world.values()
        for finding in each["findings"]
        if finding["is_capacity"] and finding["published_range"] and finding["points"]
    ]


def headline(world: World) -> str:
    """Return the first line of the page on fidelity."""
    errors = [abs(found) for found in capacity_errors(world)]
    return (
        f"Predicted capacity was within {max(errors):.0%} of what others measured, on "
        f"{counted(len(errors), 'run')} (median {median(errors):.0%})."
    )


def tables(world: World) -> dict[str, str]:
    """Return the tables by their names in the page."""
    return {
        "predicted capacity": headline(world),
        "runs of others": table(("experiment", "source", "engine", "predicted"), sources(world)),
        "predictions": table(
            ("experiment", "claim", "predicted", "measured", "error", "verdict"), rows(world)
        ),
    }


def rows(world: World) -> Iterator[list[str]]:
    for name, each in world.items():
        for finding in each["findings"]:
            points, published = finding["points"], finding["published_range"]
            off = "–"
            if len(points) == 1 and published:
                found = error(points[0]["value"], published)
                off = f"{found:+.0%}" if found else "within"
            yield [
                *(code(name), finding["says"], finding["ours"], finding["published"] or "–"),
                *(off, finding["outcome"]),
            ]


def sources(world: World) -> Iterator[list[str]]:
    for name in world:
        experiment = load(name)
        yield [code(name), experiment.source, experiment.source_engine, experiment.predicts]


if __name__ == "__main__":
    earlier = read_world() if DATA.exists() else {}
    write_file(
        DATA,
        orjson.dumps(add(earlier, [Path(a) for a in sys.argv[1:]]), option=orjson.OPT_INDENT_2),
    )
