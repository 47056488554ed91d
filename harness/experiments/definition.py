"""Reads the published experiments, one file each: `harness/experiments/files/NAME.toml`.

In: a file with the workload, the settings of the sweeps, the claims of the source and its published
numbers. Out: a validated `Experiment`, and the plan of each of its arms. The keys of an arm's
`sweep` are those of a settings file (`harness.load.settings_file`); they override `[sweep]`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from harness.cells.names import slug
from harness.load.arrivals import parse_arrivals
from harness.load.option import build, settings_of
from harness.load.rates import parse_rates, parse_seeds
from harness.load.settings import LOAD, MACHINE, RUN, SweepSettings
from harness.load.settings_file import parse_values
from harness.sweep.plan import DEFAULT_JPS, SweepPlan, resolve
from reports.experiment.claims import Check
from servers.errors import InvalidExperiment
from servers.variants import variants
from traces.formats.native import write_programs
from traces.lenient import brief, describe_first_error
from traces.synthesis.recipes import RECIPES
from traces.synthesis.synthesize import synthesize

FOLDER = files("harness") / "experiments" / "files"
OPTIONS = {
    name: setting
    for name, setting in settings_of(SweepSettings).items()
    if setting.option.panel in (LOAD, MACHINE, RUN) and name != "traces"
}
"""The keys of `[sweep]`: an experiment has its own traces and needs no live server."""

Change = Callable[[SweepSettings], SweepSettings]


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Workload(Strict):
    """The options of `bench traces synthesize`."""

    recipe: str
    programs: int = Field(default=100, ge=1)
    seed: int = 1
    turn_scale: int = 1
    tokens: Literal["final-context", "sum"] = "final-context"
    output_tokens: tuple[int, int] | None = None


class Arm(Strict):
    name: str
    x: float | None = None
    """The position on the figure's axis, if arms differ in a number."""
    sweep: dict[str, Any] = {}
    workload: dict[str, Any] = {}


class Experiment(Strict):
    name: str
    title: str
    source: str
    claim: str
    assumes: str = ""
    """Values that the source does not give, and the values used instead."""
    not_testable: str = ""
    """Why the experiment cannot be tested, if it cannot."""
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

    def settings(self, arm: Arm, traces: Path) -> SweepSettings:
        values = {
            "traces": (str(traces),),
            **parse_values({**self.sweep, **arm.sweep}, OPTIONS, "sweep."),
        }
        return build(SweepSettings, values)

    def synthesised(self, arm: Arm) -> Workload:
        return Workload(**{**self.workload, **arm.workload})


def names() -> list[str]:
    return sorted(
        (entry.name.removesuffix(".toml") for entry in FOLDER.iterdir()), key=_natural_order
    )


def _natural_order(name: str) -> tuple[str, int, str]:
    word = name.rstrip("0123456789")
    return word, int(name[len(word) :] or 0), name


def load(name: str) -> Experiment:
    """Loads an experiment of ours by name, or a .toml file of the user."""
    own = Path(name) if name.endswith(".toml") else None
    entry = own or FOLDER / f"{name}.toml"
    if not entry.is_file():
        if own is not None:
            what = "is no regular file" if own.exists() else "no such file"
            raise InvalidExperiment(
                f"{own}: {what}; give a .toml file or a name of bench experiment list"
            )
        raise InvalidExperiment(
            f"no experiment is called {name!r}; there are {', '.join(names())}, "
            "or give the path of a .toml file of your own"
        )
    try:
        values = tomllib.loads(entry.read_bytes().decode())
        made = Experiment(name=Path(entry.name).stem, **values)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidExperiment(f"{entry}: {error}") from None
    except RecursionError:
        raise InvalidExperiment(f"{entry}: nested too deeply") from None
    except (TypeError, ValidationError) as error:
        raise InvalidExperiment(f"{entry}: {_first(error)}") from None
    played: dict[str, ArmContents] = {}
    for arm in made.all_arms():
        with _errors_of(str(entry)):
            settings = made.settings(arm, Path())
        if made.is_sweep:
            played[arm.name] = _played(entry, settings)
            with _errors_of(f"{entry}: workload"):
                recipe = made.synthesised(arm).recipe
            _refuse_others(f"{entry}: workload.recipe", [recipe], RECIPES)
    if made.is_sweep:
        _refuse_empty_checks(entry, made.checks, played)
    return made


class ArmContents(NamedTuple):
    """Variants and loads of an arm's sweep, with which its checks are validated."""

    variants: set[str]
    loads: set[float]
    """0 if the arrivals have no rate."""


@contextmanager
def _errors_of(part: str) -> Iterator[None]:
    try:
        yield
    except (TypeError, ValueError) as error:
        raise InvalidExperiment(f"{part}: {_first(error)}") from None


def _played(entry: Any, settings: SweepSettings) -> ArmContents:
    with _errors_of(f"{entry}: sweep.policies"):
        chosen = {variant.name for variant in variants(settings.policies)}
    with _errors_of(f"{entry}: sweep.seeds"):
        parse_seeds(settings.seeds)
    with _errors_of(f"{entry}: sweep.arrivals"):
        rated = parse_arrivals(settings.load.arrivals).takes_rate
    with _errors_of(f"{entry}: sweep.jps"):
        rates = parse_rates(settings.jps or DEFAULT_JPS) if rated else (0.0,)
    return ArmContents(chosen, set(rates))


def _refuse_empty_checks(
    entry: Any, checks: tuple[Check, ...], played: dict[str, ArmContents]
) -> None:
    """Raises InvalidExperiment for a check whose variants or loads no arm contains."""
    for place, check in enumerate(checks):
        where = f"{entry}: checks.{place}"
        _refuse_others(f"{where}.arms", check.arms, played)
        over = [played[name] for name in check.arms or played]
        there = dict.fromkeys(name for arm in over for name in sorted(arm.variants))
        _refuse_others(f"{where}.of", [check.of], there)
        _refuse_others(f"{where}.to", [check.to or check.of], there)
        rates = sorted(set[float]().union(*(arm.loads for arm in over)))
        _refuse_others(f"{where}.loads", check.loads, rates)


def _refuse_others(field: str, values: Collection[object], there: Collection[object]) -> None:
    if wrong := [value for value in values if value not in there]:
        known = ", ".join(map(str, there))
        raise InvalidExperiment(f"{field} is {brief(wrong[0])}: must be one of {known}")


def _first(error: Exception) -> str:
    return describe_first_error(error) if isinstance(error, ValidationError) else str(error)


def plans(
    experiment: Experiment,
    folder: Path,
    change: Change = lambda settings: settings,
) -> Iterator[tuple[Arm, SweepPlan]]:
    """The plan of each arm, on programs synthesised into the folder. `change` applies the options
    of the command line, such as another engine."""
    if experiment.is_sweep:
        for arm in experiment.all_arms():
            traces = _programs(experiment.synthesised(arm), folder / "programs")
            yield arm, resolve(change(experiment.settings(arm, traces)))


def arm_folder(folder: Path, arm: Arm) -> Path:
    return folder / slug(arm.name)


def _programs(workload: Workload, folder: Path) -> Path:
    fields = workload.model_dump(exclude_defaults=True)
    path = folder / f"{slug(' '.join(f'{field} {value}' for field, value in fields.items()))}.jsonl"
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


def with_engine(engine: str, model: str | None, jps: str | None) -> Change:
    """Runs the same sweep on another engine. A live engine has its own hardware."""

    def change(settings: SweepSettings) -> SweepSettings:
        if engine in ("sim", "vllm-virtual"):
            machine = replace(settings.machine, engine=engine)
        else:
            machine = replace(
                settings.machine,
                engine=engine,
                hardware=None,
                model=model or settings.machine.model,
            )
        return replace(settings, machine=machine, jps=jps or settings.jps)

    return change
