"""Read published experiments from `harness/experiments/files/NAME.toml`.

In: a file with the workload, the settings of the sweeps, the claims of the source and its published
numbers. Out: a validated `Experiment`, and a plan for each of its arms. An arm's `sweep` has the
keys of a settings file (`harness.load.settings_file`) and overrides `[sweep]`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from harness.engines.base import engine_kind, with_routers
from harness.load.arrivals import parse_arrivals
from harness.load.option import build, settings_of
from harness.load.rates import parse_rates, parse_seeds
from harness.load.settings import DISAGGREGATION, LOAD, MACHINE, RUN, SweepSettings
from harness.load.settings_file import parse_values, read_toml
from harness.sweep.plan import SweepPlan
from harness.sweep.resolve import AUTO, DEFAULT_JPS, resolve
from reports.experiment.claims import Check
from servers.admission import Admission
from servers.basics.errors import InvalidInput
from servers.basics.json_object import JsonObject
from servers.basics.text import brief, describe_first_error, slug
from servers.profiles.cpu_time import Scheduling
from servers.variants import variants
from traces import RECIPES, Program, SharedPrefix, synthesize
from traces.formats.native import write_programs
from traces.synthesis.conversation import ConversationShape

FOLDER = Path(__file__).parent / "files"
SEVERAL_ENGINES = ("replicas", "router", *DISAGGREGATION)
OPTIONS = {
    name: setting
    for name, setting in settings_of(SweepSettings).items()
    if (setting.option.panel in (LOAD, MACHINE, RUN) and name not in ("traces", "until"))
    or name in SEVERAL_ENGINES
}
"""The keys of `[sweep]`. An experiment has its own traces and needs no live server."""

DEFAULT_SEEDS = "1..5"
"""Seeds of an experiment. Each draws its own programs and arrivals, so that intervals cover both.
Five make Student's t 2.8; with three it is 4.3."""

Kind = Literal["sweep", "scheduler-overhead"]
Change = Callable[[SweepSettings], SweepSettings]
"""Applies options of the command line to the settings of an experiment."""
CHANGEABLE: dict[str, Callable[[SweepSettings], str]] = {
    "--jps": lambda settings: settings.jps or DEFAULT_JPS,
    "--seeds": lambda settings: settings.seeds or DEFAULT_SEEDS,
    "--admission": lambda settings: settings.machine.admission,
    "--scheduling": lambda settings: settings.machine.scheduling,
}
"""What options of the command line can change, besides the engine, as text."""


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Synthesis(Strict):
    """The options of `bench traces synthesize`, or lengths that the source states."""

    recipe: str = ""
    conversation: ConversationShape | None = None
    """Instead of a recipe."""
    shared_tokens: int = Field(default=0, ge=0)
    """Leading tokens that are the same in the prompts of all jobs."""
    shared_prefixes: int = Field(default=1, ge=1)
    """How many such prefixes there are, which the jobs have in turn."""
    programs: int = Field(default=100, ge=1)
    seed: int = 1
    turn_scale: int = 1
    tokens: Literal["final-context", "sum"] | None = None
    output_tokens: tuple[int, int] | None = None

    def with_seed(self, seed: int) -> Synthesis:
        """Return the workload of a seed of the experiment, which begin at 1."""
        return self.model_copy(update={"seed": self.seed + seed - 1})

    def draw(self) -> list[Program]:
        if self.conversation is not None:
            programs = self.conversation.draw(
                self.programs, self.seed, shared_tokens=self.shared_tokens
            )
        else:
            programs = synthesize(
                self.recipe,
                self.programs,
                self.seed,
                turn_scale=self.turn_scale,
                tokens=self.tokens,
                output_tokens=self.output_tokens,
            )
        return [
            _sharing(program, self.shared_tokens, number % self.shared_prefixes)
            for number, program in enumerate(programs)
        ]


def _sharing(program: Program, tokens: int, group: int) -> Program:
    """Return the program with prompts whose first `tokens` tokens all jobs of a group share."""
    if not tokens:
        return program
    name = f"common-{group}" if group else "common"
    turns = tuple(
        replace(turn, prefixes=(SharedPrefix(name, min(tokens, turn.prompt_tokens)),))
        for turn in program.turns
    )
    return replace(program, turns=turns, prefix=None)


class Arm(Strict):
    name: str
    x: float | None = None
    """The position on the figure's axis, if arms differ in a number."""
    axis: str = ""
    """What `x` is, if arms differ in several things."""
    sweep: JsonObject = {}
    workload: JsonObject = {}


class Experiment(Strict):
    name: str
    title: str
    source: str
    source_engine: str = ""
    """The engine and version that the source measured."""
    claim: str
    assumes: str = ""
    """Values that the source does not state, and the values used instead."""
    predicts: str = ""
    """What was predicted before the source's numbers were entered as `published`."""
    not_testable: str = ""
    """The reason if the experiment cannot be tested here."""
    kind: Kind = "sweep"
    axis: str = ""
    sweep: JsonObject = {}
    workload: JsonObject = {}
    arms: tuple[Arm, ...] = ()
    checks: tuple[Check, ...] = ()

    @property
    def is_sweep(self) -> bool:
        return self.kind == "sweep" and not self.not_testable

    def all_arms(self) -> tuple[Arm, ...]:
        return self.arms or (Arm(name=self.name),)

    def settings(self, arm: Arm, traces: str = "") -> SweepSettings:
        values = {
            "traces": (traces,),
            "seeds": DEFAULT_SEEDS,
            "once": True,  # as the sources measured
            **parse_values({**self.sweep, **arm.sweep}, OPTIONS, "sweep."),
        }
        return build(SweepSettings, values)

    def workload_of(self, arm: Arm) -> Synthesis:
        return Synthesis(**{**self.workload, **arm.workload})


def names() -> list[str]:
    return sorted((file.stem for file in FOLDER.iterdir()), key=_natural_order)


def _natural_order(name: str) -> tuple[str, int, str]:
    word = name.rstrip("0123456789")
    return word, int(name[len(word) :] or 0), name


def load(name: str) -> Experiment:
    """Load a built-in experiment by name, or one from the path of a .toml file."""
    if name.endswith(".toml"):
        file = Path(name)
    elif name in names():
        file = FOLDER / f"{name}.toml"
    else:
        raise InvalidInput(
            f"no experiment is named {name!r}; give one of {', '.join(names())}, or the path of a "
            ".toml file"
        )
    values = read_toml(file, "give a .toml file or a name from bench list experiments")
    with _errors_name(str(file)):
        experiment = Experiment(name=file.stem, **values)
    contents: dict[str, ArmContents] = {}
    for arm in experiment.all_arms():
        with _errors_name(str(file)):
            settings = experiment.settings(arm)
        if experiment.is_sweep:
            contents[arm.name] = _arm_contents(str(file), settings)
            with _errors_name(f"{file}: workload"):
                workload = experiment.workload_of(arm)
            if bool(workload.recipe) == (workload.conversation is not None):
                raise InvalidInput(f"{file}: workload: give either a recipe or a conversation")
            if workload.shared_prefixes > 1 and not workload.shared_tokens:
                raise InvalidInput(
                    f"{file}: workload.shared_prefixes is {workload.shared_prefixes}, but the jobs "
                    f"of arm {brief(arm.name)} share no tokens; give shared_tokens, or remove "
                    "shared_prefixes"
                )
            if workload.recipe:
                _refuse_unknown(f"{file}: workload.recipe", [workload.recipe], RECIPES)
                _refuse_without_effect(f"{file}: workload", arm, workload, settings)
    if experiment.is_sweep:
        _refuse_empty_checks(str(file), experiment, contents)
    return experiment


class ArmContents(NamedTuple):
    """The variants and loads of an arm's sweep, for the validation of checks."""

    variants: set[str]
    loads: set[float]
    """0 if the arrivals have no rate."""


@contextmanager
def _errors_name(part: str) -> Iterator[None]:
    try:
        yield
    except (TypeError, ValueError) as error:
        message = describe_first_error(error) if isinstance(error, ValidationError) else error
        raise InvalidInput(f"{part}: {message}") from None


def _arm_contents(file: str, settings: SweepSettings) -> ArmContents:
    with _errors_name(f"{file}: sweep.policies"):
        chosen = with_routers(variants(settings.policies), settings.server, None)
        names = {variant.name for variant in chosen}
    with _errors_name(f"{file}: sweep.seeds"):
        parse_seeds(settings.seeds or DEFAULT_SEEDS)
    with _errors_name(f"{file}: sweep.arrivals"):
        arrivals = parse_arrivals(settings.load.process)
        agents = settings.load.agents or ""
        if arrivals.takes_agents and (settings.load.once or not agents.isdecimal()):
            raise InvalidInput(
                "give one number of agents and once = false, with an arm for each number"
            )
    with _errors_name(f"{file}: sweep.jps"):
        fixed = arrivals.takes_rate and settings.jps != AUTO
        rates = parse_rates(settings.jps or DEFAULT_JPS) if fixed else (0.0,)
    return ArmContents(names, set(rates))


def _refuse_empty_checks(
    file: str, experiment: Experiment, contents: dict[str, ArmContents]
) -> None:
    positions = {arm.name: arm.x for arm in experiment.all_arms()}
    for index, check in enumerate(experiment.checks):
        field = f"{file}: checks.{index}"
        _refuse_unknown(f"{field}.arms", check.arms, contents)
        _refuse_unknown(f"{field}.over", [] if check.over is None else [check.over], contents)
        if check.is_knee:
            _refuse_unordered(field, {name: positions[name] for name in check.arms or contents})
        arms = [contents[name] for name in check.arms or contents]
        known = dict.fromkeys(name for arm in arms for name in sorted(arm.variants))
        _refuse_unknown(f"{field}.of", [check.of], known)
        _refuse_unknown(f"{field}.to", [check.of if check.to is None else check.to], known)
        rates = sorted(set[float]().union(*(arm.loads for arm in arms)))
        _refuse_unknown(f"{field}.loads", check.loads, rates)


def _refuse_without_effect(
    field: str, arm: Arm, workload: Synthesis, settings: SweepSettings
) -> None:
    """Raise InvalidInput for options that a stream, which draws jobs of a recipe, would ignore."""
    given = workload.model_dump(include=workload.model_fields_set - {"recipe"})
    if given and not settings.load.once:
        name, value = next(iter(given.items()))
        raise InvalidInput(
            f"{field}.{name} is {brief(value)}: arm {brief(arm.name)} with once = false draws "
            "its jobs from the recipe alone; remove it, or set once = true"
        )


def _refuse_unordered(field: str, positions: Mapping[str, float | None]) -> None:
    below = -math.inf
    for name, position in positions.items():
        if position is None:
            raise InvalidInput(f"{field}: arm {brief(name)} needs a number x")
        if position <= below:
            raise InvalidInput(
                f"{field}: arm {brief(name)} has x = {position:g} after {below:g}: above and below "
                "need arms in ascending order of x; give them in arms"
            )
        below = position


def _refuse_unknown(field: str, values: Collection[object], known: Collection[object]) -> None:
    if unknown := [value for value in values if value not in known]:
        names = ", ".join(map(str, known))
        raise InvalidInput(f"{field} is {brief(unknown[0])}: must be one of {names}")


class ArmSweep(NamedTuple):
    """The sweep of an arm with one seed; with all seeds, if its jobs are a stream."""

    arm: Arm
    folder: str
    """Relative to the experiment's."""
    plan: SweepPlan


def plans(
    experiment: Experiment, folder: Path, change: Change = lambda settings: settings
) -> Iterator[ArmSweep]:
    """Yield the sweeps of each arm. Each seed has its own programs, which are synthesized into the
    folder. A stream draws those of a recipe itself, and repeats others in random order."""
    if not experiment.is_sweep:
        return
    for arm in experiment.all_arms():
        workload, name = experiment.workload_of(arm), slug(arm.name)
        settings = change(experiment.settings(arm))
        if not settings.load.once:
            drawn = workload.recipe or str(_programs(workload, folder / "programs"))
            plan = resolve(_with_traces(settings, drawn, settings.seeds))
            yield ArmSweep(arm, name, plan)
            continue
        for seed in parse_seeds(settings.seeds or DEFAULT_SEEDS):
            traces = str(_programs(workload.with_seed(seed), folder / "programs"))
            yield ArmSweep(
                arm, f"{name}/seed{seed}", resolve(_with_traces(settings, traces, str(seed)))
            )


def _with_traces(settings: SweepSettings, traces: str, seeds: str | None) -> SweepSettings:
    return replace(settings, seeds=seeds, load=replace(settings.load, traces=(traces,)))


def _programs(workload: Synthesis, folder: Path) -> Path:
    fields = workload.model_dump(exclude_defaults=True)
    if conversation := fields.pop("conversation", None):
        fields["conversation"] = sha256(repr(conversation).encode()).hexdigest()[:12]
    path = folder / f"{slug(' '.join(f'{field} {value}' for field, value in fields.items()))}.jsonl"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_programs(path, workload.draw())
    return path


def changed_options(experiment: Experiment, change: Change) -> str:
    """Return a sentence with the options whose values `change` replaced and with the values in the
    file; empty if it replaced none."""
    arms = [experiment.settings(arm) for arm in experiment.all_arms()]
    changed = []
    for option, value_of in CHANGEABLE.items():
        own = dict.fromkeys(value_of(arm) for arm in arms)
        used = dict.fromkeys(value_of(change(arm)) for arm in arms)
        if own.keys() != used.keys():
            changed.append(f"{option} {' or '.join(used)} instead of {' or '.join(own)}")
    return f"Changed with options: {'; '.join(changed)}." if changed else ""


def with_engine(
    engine: str,
    model: str | None,
    jps: str | None,
    admission: Admission | None = None,
    scheduling: Scheduling | None = None,
    seeds: str | None = None,
) -> Change:
    """Return a change to another engine, model, job rates, admission, scheduling or seeds. A live
    engine has its own hardware and its own scheduling."""

    def change(settings: SweepSettings) -> SweepSettings:
        machine = settings.machine
        machine = replace(
            machine,
            engine=engine,
            admission=admission or machine.admission,
            scheduling=scheduling or machine.scheduling,
        )
        if not engine_kind(engine).is_virtual:
            machine = replace(
                machine,
                hardware=None,
                model=model or machine.model,
                scheduling=Scheduling.ASYNC,
            )
        return replace(
            settings, machine=machine, jps=jps or settings.jps, seeds=seeds or settings.seeds
        )

    return change
