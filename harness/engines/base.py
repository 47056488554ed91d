"""The protocol of an engine, which runs the cells of a sweep, and the registry of engines.

`ENGINES` has the engines by name: `sim` and `sglang-sim` (virtual time), `vllm` and `sglang` (fresh
servers for each cell), `vllm-virtual` and `sglang-virtual` (their schedulers in virtual time) and
`dynamo-mocker` (NVIDIA Dynamo over workers that only take time). `harness.engines.url` is the
engine for the URL of a running server.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from harness.cells.job import Job
from harness.load.option import option_name, settings_of, values_of
from harness.load.settings import DISAGGREGATION, Machine, Server, SweepSettings
from harness.load.workload import Longest
from servers.admission import HEADROOM, OTHER_SCHEDULER
from servers.basics.errors import InvalidInput
from servers.basics.registry import Registry, load_path
from servers.disaggregation import engines_of, parse_splits
from servers.records.done import DoneRecord
from servers.records.settings import EngineSettings, OffloadRecord
from servers.records.sweep import Unsupported
from servers.routing import FOREIGN, ForeignRouter
from servers.variants import Variant, behind_routers, disaggregated, split, variants

ENGINES = Registry(
    kind="engine",
    group="turnstile.engines",
    built_in={
        "sim": "harness.engines.sim:SIM",
        "vllm": "harness.engines.vllm:VLLM",
        "vllm-virtual": "harness.engines.vllm_virtual:VLLM_VIRTUAL",
        "sglang": "harness.engines.sglang:SGLANG",
        "sglang-sim": "harness.engines.sglang_sim:SGLANG_SIM",
        "sglang-virtual": "harness.engines.sglang_virtual:SGLANG_VIRTUAL",
        "dynamo-mocker": "harness.engines.dynamo_mocker:DYNAMO_MOCKER",
    },
    remedy="give the URL of a running server (http://…)",
    option="--engine",
)
"""Objects of type `EngineKind` by name."""
URL_KIND = "harness.engines.url:url_kind"
"""Returns the `EngineKind` of a running server."""


def split_supported(
    policies: str,
    check: Callable[[Variant], None],
    read: Callable[[str], Iterable[Variant]] = variants,
) -> tuple[tuple[Variant, ...], tuple[Unsupported, ...]]:
    """Return the variants that pass `check`, and those for which it raises a ValueError.

    Of `all`, unsupported variants are left out. For explicit names, the error propagates. `read`:
    returns the variants of a comma list.
    """
    chosen: list[Variant] = []
    left_out: list[Unsupported] = []
    for variant in read(policies):
        try:
            check(variant)
        except ValueError as error:
            named = (item for item in split(policies) if item != "all")
            if any(variant.name == each.name for item in named for each in read(item)):
                raise
            reason = str(error).removeprefix(f"{variant.name}: ")
            left_out.append(Unsupported(variant.name, reason))
        else:
            chosen.append(variant)
    return tuple(chosen), tuple(left_out)


def engine_count(server: Server) -> int:
    """Return the number of engines. Raise InvalidInput."""
    text = server.disaggregate
    if text is None:
        if server.transfer_gb_per_s is not None or server.transfer_latency_s:
            raise InvalidInput(
                "--transfer-gb-per-s and --transfer-latency-s: describe the link between prefill "
                "and decode engines; add --disaggregate 1P1D, or remove them"
            )
        return server.replicas
    if server.replicas > 1:
        raise InvalidInput(
            f"--replicas {server.replicas}: --disaggregate {text} says how many engines there are; "
            "remove --replicas, and write --disaggregate none,1P1D to compare with replicas that "
            "do both"
        )
    return engines_of(parse_splits(text))


def with_routers(
    chosen: Iterable[Variant], server: Server, engine: str | None
) -> tuple[Variant, ...]:
    """Return each variant behind each router and with each split of the engines, if there are
    several. Raise InvalidInput.

    `engine`: the engine that starts routers of other projects; None: whichever can.
    """
    if engine_count(server) > 1:
        behind = tuple(behind_routers(chosen, server.router))
        for router in (variant.router for variant in behind):
            if engine is None or not isinstance(router, ForeignRouter):
                continue
            if engine not in FOREIGN[router.project].engines:
                engines = " or ".join(FOREIGN[router.project].engines)
                raise InvalidInput(
                    f"--router {router.name}: is a process in front of live servers; use --engine "
                    f"{engines}, or one of our routers (bench list routers)"
                )
        if server.disaggregate is None:
            return behind
        return tuple(disaggregated(behind, parse_splits(server.disaggregate)))
    if server.router is not None:
        raise InvalidInput(
            f"--router {server.router}: distributes turns over several replicas; add "
            "--replicas with at least 2, or remove it"
        )
    return tuple(chosen)


class ResolvedEngine(Protocol):
    """A resolved engine, with all engine settings that determine the result of a cell."""

    @property
    def kind(self) -> EngineKind: ...
    @property
    def model(self) -> str: ...
    @property
    def hardware(self) -> str: ...
    @property
    def longest(self) -> Longest:
        """The longest context, and the reason for the limit."""

    def describe(self) -> str:
        """Return one line that states what is measured and what is simulated."""

    def settings(self, variant: Variant | None = None) -> EngineSettings:
        """Return the settings that cells of the variant record, or by default the sweep."""

    def tier(self, variant: Variant) -> OffloadRecord | None:
        """Return the settings of the variant's offload tier, or None if it has none."""

    def run(self, job: Job) -> DoneRecord:
        """Run a cell and return its done.json."""


Resolved = tuple[tuple[Variant, ...], ResolvedEngine, tuple[Unsupported, ...]]
"""The variants to run, the engine, and the variants that it does not support."""


@dataclass(frozen=True, slots=True)
class EngineKind:
    """What an engine can do, which settings it takes, and how they become an engine."""

    name: str
    """What `--engine` calls it: for a running server, its URL."""
    resolve: Callable[[SweepSettings], Resolved]
    takes: Collection[str] = ()
    """Settings of `Server`, and opt-in ones of `Machine`, that it takes. Others must have their
    defaults."""
    refuses: Mapping[str, str] = field(default_factory=dict)
    """Why settings are refused, and the remedy: the ends of the messages. Other settings of
    `Machine` are refused only if they are here."""
    virtual_time: str | None = None
    """What reports call its time if cells run in virtual time: equal settings then give equal
    results, and cells that run at the same time do not affect each other. None for live engines."""
    is_remote: bool = False
    """Whether it is a server that runs already, in an unknown state: its cells run one after the
    other, and are not reused."""
    has_compiled_core: bool = False

    @property
    def is_virtual(self) -> bool:
        return self.virtual_time is not None

    def refuse_unsupported(self, settings: SweepSettings) -> None:
        """Raise InvalidInput for a setting that the engine does not take.

        `vllm_python` is exempt, because it may come from the environment.
        """
        _refuse_flags(settings.server.vllm_flags, self)
        machine, server = values_of(settings.machine), values_of(settings.server)
        defaults = {**values_of(Machine()), **values_of(Server())}
        opt_in = {name for name, own in settings_of(Machine).items() if own.option.opt_in}
        optional = {*self.takes, "vllm_python", *(machine.keys() - self.refuses.keys() - opt_in)}
        for name, value in {**server, **machine}.items():
            if name in optional or value == defaults[name]:
                continue
            reason = self.refuses.get(name)
            if reason is None and name in DISAGGREGATION:
                reason = "; remove it, or use --engine sim"
            given = option_name(name) if reason is None else f"{option_name(name)} {value}"
            raise InvalidInput(
                f"{given}: not supported by --engine {self.name}{reason or '; remove it'}"
            )


OWN_SCHEDULING = {
    "scheduling": ", which has its own step times; remove it, and start vLLM with "
    "--no-async-scheduling instead",
    "speculate": ", whose server accepts as many drafts as its model does; remove it, and give the "
    "server its own flags, such as --speculative-config of vLLM after --",
}
"""Why live engines refuse `--scheduling` and `--speculate`."""


OF_VLLM = dict.fromkeys(HEADROOM, f", {OTHER_SCHEDULER}")
"""Why engines without vLLM's scheduler refuse its settings."""


def _refuse_flags(flags: Sequence[str], kind: EngineKind) -> None:
    if not flags or "vllm_flags" in kind.takes:
        return
    first = Path(flags[0])
    if (first / "sweep.toml").is_file():
        raise InvalidInput(f"{first}: not a settings file; did you mean {first}/sweep.toml?")
    raise InvalidInput(
        f"{' '.join(flags)}: flags for vLLM, not supported by --engine {kind.name}; remove them "
        "(traces are given with --traces, a settings file ends in .toml)"
    )


def engine_kind(name: str) -> EngineKind:
    """Return the engine with this name or URL. Raise UnknownName or InvalidPlugin.

    An engine is imported only when it is needed: virtual time needs no HTTP client.
    """
    kind: EngineKind
    if name.startswith(("http://", "https://")):
        kind = load_path(URL_KIND)(name)
    else:
        kind = ENGINES.load(name)
    return kind


def resolve_engine(settings: SweepSettings) -> Resolved:
    kind = engine_kind(settings.machine.engine)
    kind.refuse_unsupported(settings)
    return kind.resolve(settings)
