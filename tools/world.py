"""The predictions of public runs that docs/design/fidelity.md shows: docs/data/world.json.

`python -m tools.world RUN…` adds folders of `bench experiment world-*` to it. An error compares a
prediction with the nearest number that the source states: 0% within a stated range.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from statistics import median
from typing import Any

import orjson

from harness.experiments.definition import Experiment, load
from reports.experiment.significance import ClaimOutcome
from servers.basics.atomic import write_file
from servers.basics.phrasing import counted
from tools.results_tables import DASH, DATA, code, table

FILE = DATA / "world.json"

World = Mapping[str, Mapping[str, Any]]
"""What `experiment.json` says, by the name of the experiment, and the hash of its settings."""


def read_world(path: Path = FILE) -> World:
    found: World = orjson.loads(path.read_bytes())
    return found


def add(world: World, runs: Sequence[Path]) -> World:
    """Return the predictions with the ones of `runs`, which replace earlier ones."""
    added = [orjson.loads((run / "experiment.json").read_bytes()) for run in runs]
    kept = ("verdict", "outcome", "findings")
    new = {
        e["name"]: {
            "settings_sha256": settings_sha256(load(e["name"])),
            **{k: _rounded(e[k]) for k in kept},
        }
        for e in added
    }
    return dict(sorted({**world, **new}.items()))


def _rounded(value: Any) -> Any:
    """Return a JSON value whose floats have six digits, which do not depend on the CPU."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, list):
        return [_rounded(each) for each in value]
    if isinstance(value, dict):
        return {name: _rounded(each) for name, each in value.items()}
    return value


VERDICTS = {
    ClaimOutcome.HOLDS: "holds",
    ClaimOutcome.FAILS: "no",
    ClaimOutcome.OPEN: "?",
}
"""As on the page on the published figures."""


def settings_sha256(experiment: Experiment) -> str:
    """Return a hash of all that decides the numbers and verdicts of an experiment."""
    settings = experiment.model_dump(
        mode="json", include={"sweep", "workload", "arms", "checks"}, exclude_defaults=True
    )
    return sha256(orjson.dumps(settings, option=orjson.OPT_SORT_KEYS)).hexdigest()


def error(predicted: float, published: Sequence[float]) -> float:
    """Return the relative error of a prediction against a number or the two ends of a range."""
    nearest = min(max(predicted, min(published)), max(published))
    return predicted / nearest - 1


FAR = 1.0
"""A capacity that is off by this factor or more is named with its experiment."""


def headline(world: World) -> str:
    """Return the first line of the page on fidelity: the claims about capacities for which the
    source states a number. A prediction that arms only bound has no error."""
    compared = [
        (name, finding)
        for name, each in world.items()
        for finding in each["findings"]
        if finding["is_capacity"] and finding["published_range"]
    ]
    found = [(name, abs(off)) for name, each in compared if (off := error_of(each)) is not None]
    errors = [off for _, off in found]
    near = [off for off in errors if off < FAR]
    sources = len({name for name, _ in compared})
    outcomes = Counter(each["outcome"] for _, each in compared)
    every = Counter(finding["outcome"] for each in world.values() for finding in each["findings"])
    hold = outcomes[ClaimOutcome.HOLDS]
    bounded = len(compared) - len(errors)
    more = f"; {bounded} more {'has' if bounded == 1 else 'have'} only a bound" if bounded else ""
    far = "".join(
        f"; in {code(name)} it was {1 + off:.0f} times as high" for name, off in found if off >= FAR
    )
    return (
        f"Predicted capacity was within {max(near):.0%} of the nearest number that others measured "
        f"in {len(near)} of {counted(len(errors), 'comparison')} with {counted(sources, 'source')} "
        f"(median {median(errors):.0%}){far}{more}. "
        f"{hold or 'None'} of these claims {'hold' if hold > 1 else 'holds'}, {_others(outcomes)} "
        f"Of all {every.total()} claims below, {every[ClaimOutcome.HOLDS]} hold, {_others(every)}"
    )


def _others(outcomes: Counter[str]) -> str:
    fail, open_ = outcomes[ClaimOutcome.FAILS], outcomes[ClaimOutcome.OPEN]
    return (
        f"{fail} {'does' if fail == 1 else 'do'} not, and {open_} {'is' if open_ == 1 else 'are'} "
        "undecided."
    )


def error_of(finding: Mapping[str, Any]) -> float | None:
    """Return the error of a claim about one number that is predicted and published."""
    points, published = finding["points"], finding["published_range"]
    if len(points) != 1 or points[0]["bounds"] or not published:
        return None
    return error(points[0]["value"], published)


def tables(world: World) -> dict[str, str]:
    """Return the tables by their names in the page."""
    return {
        "predicted capacity": headline(world),
        "runs of others": table(("experiment", "source", "engine"), sources(world)),
        "predictions": table(
            ("experiment", "claim", "predicted", "measured", "error", "verdict"), rows(world)
        ),
    }


def rows(world: World) -> Iterator[list[str]]:
    """Yield a row per claim; the first one of an experiment names it."""
    for name, each in world.items():
        for n, finding in enumerate(each["findings"]):
            found = error_of(finding)
            off = DASH if found is None else f"{found:+.0%}" if found else "within"
            yield [
                *("" if n else code(name), finding["says"], finding["ours"]),
                *(finding["published"] or DASH, off, VERDICTS[finding["outcome"]]),
            ]


def sources(world: World) -> Iterator[list[str]]:
    for name in world:
        experiment = load(name)
        yield [code(name), experiment.source, experiment.source_engine]


if __name__ == "__main__":
    earlier = read_world() if FILE.exists() else {}
    options = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
    write_file(FILE, orjson.dumps(add(earlier, [Path(a) for a in sys.argv[1:]]), option=options))
