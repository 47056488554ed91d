"""Builds the sentences that summarise a trace: the headline, the tiles and the findings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from reports.page.tiles import Tile
from reports.workload.compared import Compared
from reports.workload.provenance import counts, is_drawn, of_lengths
from servers.basics.phrasing import counted, seconds, share
from traces import TraceSet
from traces.synthesis.figures import value_of
from traces.synthesis.fitted import FittedQuantity
from traces.synthesis.nearest import LIKE

FEW_JOBS = 20
"""With fewer jobs, quantiles such as P99 come from one or two of them."""
NEW = "new tokens per later turn"


def headline(compared: Compared) -> str:
    figures, tools = compared.trace.figures, compared.statistics.all_tools
    turns = figures["turns"].mean
    if NEW in figures:
        adds = f"each adding a median of {value_of(figures[NEW], 'p50'):,.0f} tokens"
        jobs = f"Jobs of {_turns(turns)} on average, {adds}"
    else:
        length = value_of(figures["first prompt"], "p50")
        jobs = f"Single requests with a median prompt of {length:,.0f} tokens"
    if tools.calls:
        took = f"tools take a median of {seconds(tools.p50_s)}, and {seconds(tools.p99_s)} at P99"
        jobs += f"; {took}"
    return f"{jobs}. {_nearest(compared)}"


def _turns(mean: float) -> str:
    return f"{mean:.0f} turns" if mean >= 10 else f"{mean:.1f} turns"


def _nearest(compared: Compared) -> str:
    first = compared.packs[0]
    if first.distance is None:
        return "Recipes describe jobs with several turns, so none is near."
    if first.distance > LIKE:
        return f"No recipe is close; the nearest is {first.name}."
    return f"Nearest recipe: {first.name}."


def basis(compared: Compared, loaded: TraceSet) -> str:
    """State where the numbers come from."""
    gaps = counts(compared.statistics.gap_provenance)
    return f"Times between turns: {gaps}. {of_lengths(loaded)}"


def tiles(compared: Compared) -> list[Tile]:
    figures, stats = compared.trace.figures, compared.statistics
    agents = len(compared.trace.sub_agents)
    found = [
        Tile(
            f"{len(compared.trace.jobs):,}",
            "jobs",
            f"with {counted(agents, 'sub-agent')}" if agents else "without sub-agents",
        ),
        Tile(f"{figures['turns'].mean:.1f}", "turns per job", _spread(figures["turns"])),
        _tile("output tokens", "output tokens per turn", figures),
        Tile(
            f"{compared.trace.reuse.bound:.1%}",
            "of prompts could be cache hits",
            "if the cache forgets nothing",
        ),
    ]
    if NEW in figures:
        found.insert(2, _tile(NEW, "new tokens per later turn", figures))
    tools = stats.all_tools
    if tools.calls:
        tail = f"P99 {seconds(tools.p99_s)}, mean {seconds(tools.mean_s)}"
        tail += ", with sub-agents" if agents else ""
        found.append(Tile(seconds(tools.p50_s), "median tool time", tail))
    return found


def _tile(quantity: str, what: str, figures: Mapping[str, FittedQuantity]) -> Tile:
    figure = figures[quantity]
    return Tile(f"{value_of(figure, 'p50'):,.0f}", f"{what}, median", _spread(figure, median=False))


def _spread(figure: FittedQuantity, *, median: bool = True) -> str:
    first = f"median {value_of(figure, 'p50'):,.0f}" if median else f"mean {figure.mean:,.0f}"
    return f"{first}, P99 {value_of(figure, 'p99'):,.0f}"


def findings(compared: Compared) -> Iterator[str]:
    """Yield findings that the figures do not show."""
    stats = compared.statistics
    jobs, agents = compared.trace.jobs, compared.trace.sub_agents
    if agents:
        parents = {agent.fork.program_id for agent in agents if agent.fork}
        awaited = sum(a.fork is not None and a.fork.joined_before_turn is not None for a in agents)
        turns = sum(len(agent.turns) for agent in agents) / len(agents)
        yield (
            f"Sub-agents: {len(agents):,}, started by {counted(len(parents), 'program')};"
            f" {turns:.1f} turns each on average; the parent waits for {awaited:,} of them."
            f" Figures and means of turns and tokens cover the {counted(len(jobs), 'job')} without"
            " them."
        )
    if stats.pause_s.mean:
        yield (
            "Pauses after a turn that called no tool, while a person thinks:"
            f" {stats.pause_s.count:,}, {seconds(stats.pause_s.mean)} on average. They are not tool"
            " times."
        )
    slowest = stats.all_tools.slowest_tenth_share
    if slowest:
        yield f"The slowest tenth of the tool calls takes {share(slowest)} of all tool time."


def caveats(compared: Compared, loaded: TraceSet) -> Iterator[str]:
    gaps = compared.statistics.gap_provenance
    unmeasured = {name: n for name, n in gaps.items() if name != "measured"}
    if is_drawn(loaded):
        yield "This workload is synthesised from statistics: no job of it ran."
    elif unmeasured:
        origins = counts(unmeasured).removeprefix("all ")
        yield (
            f"{sum(unmeasured.values()):,} of {sum(gaps.values()):,} times between turns are not"
            f" measured tool times ({origins}): do not quote them as such."
        )
    jobs = len(compared.trace.jobs)
    if jobs < FEW_JOBS:
        yield f"Only {counted(jobs, 'job')}: the P99 of turns comes from the longest one or two."
    if loaded.rejections:
        yield f"{counted(len(loaded.rejections), 'file')} could not be read (bench traces inspect)."
    if loaded.repairs:
        repairs = counted(len(loaded.repairs), "repair")
        yield f"{repairs} while reading (bench traces inspect lists them)."
