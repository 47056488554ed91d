"""Checks and resolves the settings of a sweep before the first cell runs.

In: `SweepSettings`. Out: `SweepPlan`, which contains everything that determines the results of a
sweep, its cells, and the contents of `sweep.json`. Invalid settings raise `InvalidInput` here, not
in a cell.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from importlib import metadata
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from harness.cells.names import slug
from harness.engines.base import ENGINES, VIRTUAL, Engine, ResolveEngine, Unsupported
from harness.load.arrivals import Arrivals, parse_arrivals
from harness.load.background import Background, load_background, refuse_same_ids
from harness.load.machines import refuse_list
from harness.load.rates import parse_rates, parse_seeds
from harness.load.settings import Agents, Overlong, Prompts, SweepSettings
from harness.load.workload import Longest, Workload, load_workload
from harness.sweep.fingerprint import code_sha256, policy_sha256
from reports.capacity.slo import DEFAULT_SLO, Slo, parse_slo
from servers.errors import DoesNotFit, InvalidInput
from servers.nearest import nearest
from servers.variants import Variant, second_arm, variant
from traces import Note

if TYPE_CHECKING:
    from harness.load.agent_plan import AgentPlan

DEFAULT_JPS = "0.05..0.9"
DEFAULT_BASELINES = ("fcfs", "fcfs@sticky")
DEFAULT_SEEDS, DEFAULT_SEEDS_ONCE = "1..3", "1"
AUTO = "auto"
Resolved = tuple[tuple[Variant, ...], Engine, tuple[Unsupported, ...]]
"""The variants to run, the engine, and the variants that it does not support."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One variant at one rate, with one draw of the arrivals."""

    variant: str
    jps: float | None
    """Jobs per second; None for a closed loop and recorded arrivals, which have no rate."""
    seed: int
    arrivals: str
    repeat: int = 1
    """From 1. Repeats of a cell have equal settings."""

    @property
    def name(self) -> str:
        load = slug(self.arrivals) if self.jps is None else f"jps{self.jps:g}"
        repeat = f"_repeat{self.repeat}" if self.repeat > 1 else ""
        return f"{slug(self.variant)}_{load}_seed{self.seed}{repeat}"


@dataclass(frozen=True, slots=True)
class SweepPlan:
    settings: SweepSettings
    variants: tuple[Variant, ...]
    left_out: tuple[Unsupported, ...]
    """Variants of `--policies all` that the engine does not support here."""
    rates: tuple[float | None, ...]
    seeds: tuple[int, ...]
    arrivals: Arrivals
    arrivals_text: str
    engine: Engine
    workload: Workload
    baseline: str
    code_sha256: str
    agents: AgentPlan | None = None
    """None: programs are replayed."""
    background: Background | None = None
    """Requests beside the jobs, at the same rate in all cells."""
    steady: bool = False
    """Whether each cell runs a stream of jobs until its steady state, instead of a fixed set."""
    slo: Slo | None = None
    """What a sustained rate meets. The capacity of each variant is searched; None: it is not."""

    @property
    def turns_per_cell(self) -> int:
        """Number of turns of each cell; 0 if unknown: a stream, or requests beside the jobs, go on
        as long as the cell."""
        return 0 if self.steady or self.background else self.workload.turns

    def cells(self) -> tuple[Cell, ...]:
        """Return the cells in the order in which they run.

        High rates come first, because they take longest. If cells run one after the other, the
        order of the variants rotates, so that a drift of the machine favours none of them. Each
        repeat begins when all cells have run once more.
        """
        rates = sorted(self.rates, key=lambda jps: -(jps or 0.0))
        repeats = range(1, self.settings.repeats + 1)
        blocks = [(jps, seed, n) for n in repeats for jps in rates for seed in self.seeds]
        return tuple(
            Cell(variant.name, jps, seed, self.arrivals_text, repeat)
            for index, (jps, seed, repeat) in enumerate(blocks)
            for variant in self._rotated(index)
        )

    def _rotated(self, index: int) -> tuple[Variant, ...]:
        first = 0 if self.engine.parallel else index % len(self.variants)
        return self.variants[first:] + self.variants[:first]

    @property
    def cells_reusable(self) -> bool:
        """Whether settings determine the result of a cell, so that another run folder can reuse it.
        They do not with real agents, whose workspaces may change between runs."""
        return self.engine.cells_reusable and self.agents is None

    def variant(self, name: str) -> Variant:
        return next(variant for variant in self.variants if variant.name == name)

    def _common_json(self) -> dict[str, Any]:
        """Fields that `sweep.json` and each `cell.json` have in common."""
        return {
            "arrivals": self.arrivals_text,
            **({"steady_state": True} if self.steady else {}),
            **({} if self.agents is None else {"agent": self.agents.as_json()}),
            **({} if self.background is None else {"background": self.background.as_json()}),
            "workload": self.workload.as_json(),
            "turnstile_version": metadata.version("turnstile-bench"),
            "code_sha256": self.code_sha256,
        }

    def variant_json(self, variant: Variant) -> dict[str, Any]:
        return {
            "policy": variant.policy_path,
            "policy_arguments": dict(variant.arguments),
            "policy_source": variant.source,
            "policy_sha256": policy_sha256(variant),
            "bound": variant.bound,
            **({} if variant.router is None else {"router": variant.router.as_json()}),
            **({} if variant.split is None else {"disaggregate": variant.split.as_json()}),
            "offload": self.engine.offload_json(variant),
        }

    def as_json(self) -> dict[str, Any]:
        return {
            "format": "turnstile-sweep-1",
            "variants": [
                {
                    "name": v.name,
                    "description": v.description,
                    **self.variant_json(v),
                    **({} if v.same_as is None else {"same_as": v.same_as}),
                }
                for v in self.variants
            ],
            "jps": list(self.rates),
            "seeds": list(self.seeds),
            **({} if self.settings.repeats == 1 else {"repeats": self._repeats()}),
            **({} if self.slo is None else {"search": {"slo": str(self.slo)}}),
            **self.engine.sweep_json(),
            **self._common_json(),
            "baseline": self.baseline,
            "left_out": [left._asdict() for left in self.left_out],
            "rejected_files": [asdict(note) for note in self.notes("rejected_files")],
            "repairs": [asdict(note) for note in self.notes("repairs")],
        }

    def notes(self, kind: str) -> list[Note]:
        """Return the notes on the files of the jobs and of the background."""
        sources = (self.workload, self.background)
        return [note for source in sources if source for note in getattr(source, kind)]

    def _repeats(self) -> list[int]:
        return list(range(1, self.settings.repeats + 1))

    def cell_json(self, cell: Cell) -> dict[str, Any]:
        variant = self.variant(cell.variant)
        return {
            "format": "turnstile-cell-1",
            "variant": variant.name,
            **self.variant_json(variant),
            "jps": cell.jps,
            "seed": cell.seed,
            **({} if cell.repeat == 1 else {"repeat": cell.repeat}),
            **self.engine.cell_json(variant),
            **self._common_json(),
        }


def resolve(settings: SweepSettings) -> SweepPlan:
    """Return the plan of a sweep on one machine."""
    refuse_list(settings.machine)
    (plan,) = resolve_each([settings])
    return plan


def resolve_each(settings: Sequence[SweepSettings]) -> list[SweepPlan]:
    """Return a plan for each of these settings, which differ in the machine only.

    All plans have the same programs: those that fit every machine.
    """
    first = settings[0]
    arrivals = parse_arrivals(first.load.arrivals)
    if first.load.background is not None and first.agents != Agents():
        raise InvalidInput(
            f"--background {first.load.background}: is replayed beside recorded programs, not "
            "beside real agents; remove it"
        )
    engines = _engines(settings)
    refuse_same_folder([variant.name for variant in engines[0][0]])
    steady = not fixed_by(first)
    longest = _shortest([engine.longest for _, engine, _ in engines])
    agents, workload = _load(first, longest, steady)
    background = _background(first, longest, workload)
    slo = _slo(first, steady)
    jps = AUTO if first.jps is None and slo is not None else first.jps
    rates = _rates(jps, arrivals, first.load.arrivals)
    seeds = tuple(parse_seeds(first.seeds or (DEFAULT_SEEDS if steady else DEFAULT_SEEDS_ONCE)))
    if rates:
        arrivals.draw(workload.programs, rates[0], seeds[0])  # Raises if a recorded one is missing.
    baseline = _baseline(first.baseline, [variant.name for variant in engines[0][0]])
    engines = _with_second_arm(engines, baseline, first)
    chosen, engine, left_out = engines[0]
    plan = SweepPlan(
        settings=first,
        variants=chosen,
        left_out=left_out,
        rates=rates,
        seeds=seeds,
        arrivals=arrivals,
        arrivals_text=first.load.arrivals,
        engine=engine,
        workload=workload,
        baseline=baseline,
        code_sha256=code_sha256(agents=agents is not None),
        agents=agents,
        background=background,
        steady=steady,
        slo=slo,
    )
    return [
        replace(plan, settings=each, engine=engine, variants=chosen, left_out=left_out)
        for each, (chosen, engine, left_out) in zip(settings, engines, strict=True)
    ]


def _engines(settings: Sequence[SweepSettings]) -> list[Resolved]:
    """Raise DoesNotFit with all machines on which the model does not fit."""
    engines: list[Resolved] = []
    too_large: list[str] = []
    for each in settings:
        try:
            engines.append(_engine(each))
        except DoesNotFit as error:
            too_large.append(str(error))
    if too_large:
        more = "; or remove what does not fit from --hardware or --model"
        raise DoesNotFit("; ".join(too_large) + more * (len(settings) > 1))
    return engines


def _with_second_arm(
    engines: Sequence[Resolved], baseline: str, settings: SweepSettings
) -> list[Resolved]:
    """Append the baseline under another name, if `--aa` asks for it."""
    again = "--aa" if settings.aa else f"--repeats {settings.repeats}"
    if settings.machine.engine in VIRTUAL and (settings.aa or settings.repeats > 1):
        raise InvalidInput(
            f"{again}: is for live engines (--engine vllm or a URL); in virtual time a second "
            "measurement has exactly the same numbers"
        )
    if not settings.aa:
        return list(engines)
    return [
        ((*chosen, *(second_arm(v) for v in chosen if v.name == baseline)), engine, left_out)
        for chosen, engine, left_out in engines
    ]


def _shortest(longest: Sequence[Longest]) -> Longest:
    known = [limit for limit in longest if limit.tokens is not None]
    return min(known, key=itemgetter(0), default=longest[0])


def _load(
    settings: SweepSettings, longest: Longest, steady: bool
) -> tuple[AgentPlan | None, Workload]:
    if settings.agents != Agents():
        from harness.load.agent_plan import plan_agents

        return plan_agents(settings, longest)
    return None, load_workload(
        settings.load.traces,
        settings.load.programs,
        longest,
        refuse=settings.load.overlong is Overlong.REFUSE,
        messages=settings.server.prompts is Prompts.TEXT,
        stream=steady,
        reading=settings.load.reading,
    ).packed()


def _background(settings: SweepSettings, longest: Longest, workload: Workload) -> Background | None:
    load = settings.load
    background = load_background(
        load.background,
        load.background_columns,
        longest,
        refuse=load.overlong is Overlong.REFUSE,
        messages=settings.server.prompts is Prompts.TEXT,
    )
    if background is not None:
        refuse_same_ids(workload)
    return background


def _engine(settings: SweepSettings) -> Resolved:
    """Imports an engine only when it is needed: virtual time needs no HTTP client."""
    if settings.machine.engine.startswith(("http://", "https://")):
        from harness.engines.url import url_engine

        return url_engine(settings)
    resolve_engine: ResolveEngine = ENGINES.load(settings.machine.engine)
    return resolve_engine(settings)


def refuse_same_folder(names: Sequence[str]) -> None:
    """Raises InvalidInput for names whose arguments differ only in characters that `slug` drops."""
    by_folder: dict[str, str] = {}
    for name in names:
        if (other := by_folder.setdefault(slug(name), name)) != name:
            raise InvalidInput(
                f"--policies: {other} and {name} would have the same folder, {slug(name)}; run "
                "them in two sweeps"
            )


def _slo(settings: SweepSettings, steady: bool) -> Slo | None:
    """Return the SLO of the search for capacities; None if there is none."""
    given = settings.slo is not None or settings.jps == AUTO
    option = f"--slo '{settings.slo}'" if settings.slo is not None else "--jps auto"
    if given and settings.no_capacity:
        raise InvalidInput(
            f"{option}: is about capacities, which --no-capacity and bench run do not search; give "
            "a rate, such as --jps 0.1"
        )
    if given and not steady:
        remedy = "remove --slo" if settings.slo is not None else "give rates, such as --jps 0.1,0.3"
        fixed = fixed_by(settings)
        raise InvalidInput(
            f"{option}: needs cells in steady state, and with {fixed} the jobs are a fixed set; "
            + ("remove --once, or " if fixed == "--once" else "")
            + remedy
        )
    if not steady or settings.no_capacity:
        return None
    return parse_slo(settings.slo or DEFAULT_SLO)


def fixed_by(settings: SweepSettings) -> str:
    """Return the option that makes the jobs of a cell a fixed set; empty if none does."""
    if (engine := settings.machine.engine) not in VIRTUAL:
        return f"--engine {'URL' if '://' in engine else engine}"
    if not parse_arrivals(settings.load.arrivals).takes_rate:
        return f"--arrivals {settings.load.arrivals}"
    return "--once" if settings.load.once else ""


def _rates(jps: str | None, arrivals: Arrivals, text: str) -> tuple[float | None, ...]:
    if jps == AUTO and arrivals.takes_rate:
        return ()
    if arrivals.takes_rate:
        return tuple(parse_rates(DEFAULT_JPS if jps is None else jps))
    if jps is not None:
        raise InvalidInput(f"--jps {jps}: --arrivals {text} sets the load itself; remove --jps")
    return (None,)


def _baseline(given: str | None, names: Sequence[str]) -> str:
    if given is None:
        return next((name for name in DEFAULT_BASELINES if name in names), names[0])
    if "(" in given and "@" not in given:
        given = variant(given).name
    if given not in names:
        close = nearest(given, names)
        hint = f"did you mean {close}?" if close else "add it to --policies"
        raise InvalidInput(f"--baseline {given}: not among the policies of this sweep; {hint}")
    return given
