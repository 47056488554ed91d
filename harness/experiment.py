"""The sources' experiments by name: one small file each, `harness/experiments/NAME.toml`.

In: a file that names workload, machine, variants, loads, what the source claims of them, and what
it published. Out: an `Experiment`, checked, and the question of each of its arms. An arm
takes the options of `bench sweep` under their names, over those of the file's `[sweep]`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from harness.asked import Asked
from harness.names import slug
from harness.question import Question, resolve
from reports.claims import Check
from servers.variants import variants
from traces.native import write_programs
from traces.synthesis import synthesize

FOLDER = files("harness") / "experiments"
OPTIONS = frozenset(field.name for field in fields(Asked)) - {"server", "traces"}


class BadExperiment(ValueError):
    """A file of experiments that cannot be used, or a name that there is not."""


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Workload(Strict):
    """What `bench traces synthesize` takes."""

    recipe: str
    programs: int = Field(default=100, ge=1)
    seed: int = 1
    turn_scale: int = 1
    tokens: Literal["final-context", "sum"] = "final-context"
    output_tokens: tuple[int, int] | None = None


class Arm(Strict):
    name: str
    x: float | None = None
    """Where it stands on the figure's axis, if arms differ in a number."""
    sweep: dict[str, Any] = {}
    workload: dict[str, Any] = {}


class Experiment(Strict):
    name: str
    title: str
    source: str
    claim: str
    assumes: str = ""
    """What the source does not say, and what was taken."""
    not_testable: str = ""
    """Why not, where that is so."""
    kind: Literal["sweep", "pins", "scheduler-overhead"] = "sweep"
    axis: str = ""
    sweep: dict[str, Any] = {}
    workload: dict[str, Any] = {}
    arms: tuple[Arm, ...] = ()
    checks: tuple[Check, ...] = ()

    @property
    def is_sweep(self) -> bool:
        return self.kind == "sweep" and not self.not_testable

    def all_arms(self) -> tuple[Arm, ...]:
        return self.arms or (Arm(name=self.name),)

    def asked(self, arm: Arm, traces: Path) -> Asked:
        return Asked(traces=(str(traces),), **{**self.sweep, **arm.sweep})

    def synthesised(self, arm: Arm) -> Workload:
        return Workload(**{**self.workload, **arm.workload})


def names() -> list[str]:
    return sorted(
        (entry.name.removesuffix(".toml") for entry in FOLDER.iterdir()), key=_as_people_count
    )


def _as_people_count(name: str) -> tuple[str, int, str]:
    word = name.rstrip("0123456789")
    return word, int(name[len(word) :] or 0), name


def load(name: str) -> Experiment:
    """One of ours by name, or a file of the user's own."""
    entry = Path(name) if name.endswith(".toml") else FOLDER / f"{name}.toml"
    if not entry.is_file():
        raise BadExperiment(
            f"no experiment is called {name!r}; there are {', '.join(names())}, "
            "or give the path of a .toml file of your own"
        )
    try:
        said = tomllib.loads(entry.read_text())
        made = Experiment(name=Path(entry.name).stem, **said)
    except tomllib.TOMLDecodeError as error:
        raise BadExperiment(f"{entry}: {error}") from None
    except (TypeError, ValidationError) as error:
        raise BadExperiment(f"{entry}: {_first(error)}") from None
    for arm in made.all_arms():
        if unknown := sorted({*made.sweep, *arm.sweep} - OPTIONS):
            raise BadExperiment(f"{entry}: sweep.{unknown[0]}: bench sweep has no such option")
        if made.is_sweep:
            variants(made.asked(arm, Path()).policies)
            try:
                made.synthesised(arm)
            except ValidationError as error:
                raise BadExperiment(f"{entry}: workload: {_first(error)}") from None
    return made


def _first(error: Exception) -> str:
    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"


def questions(
    experiment: Experiment, folder: Path, change: Callable[[Asked], Asked] = lambda asked: asked
) -> Iterator[tuple[Arm, Question]]:
    """Of each arm, on programs synthesised into the folder. `change` is what the user asked
    otherwise (another engine, say)."""
    if experiment.is_sweep:
        for arm in experiment.all_arms():
            traces = _programs(experiment.synthesised(arm), folder / "programs")
            yield arm, resolve(change(experiment.asked(arm, traces)))


def arm_folder(folder: Path, arm: Arm) -> Path:
    return folder / slug(arm.name)


def _programs(workload: Workload, folder: Path) -> Path:
    said = workload.model_dump(exclude_defaults=True)
    path = folder / f"{slug(' '.join(f'{field} {value}' for field, value in said.items()))}.jsonl"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        made = synthesize(
            workload.recipe,
            workload.programs,
            workload.seed,
            turn_scale=workload.turn_scale,
            tokens=workload.tokens,
            output_tokens=workload.output_tokens,
        )
        write_programs(path, made)
    return path


def with_engine(engine: str, model: str | None, jps: str | None) -> Callable[[Asked], Asked]:
    """The same question to another engine, which measures its own machine."""

    def change(asked: Asked) -> Asked:
        if engine in ("sim", "vllm-virtual"):
            return replace(asked, engine=engine, jps=jps or asked.jps)
        return replace(
            asked, engine=engine, hardware=None, model=model or asked.model, jps=jps or asked.jps
        )

    return change
