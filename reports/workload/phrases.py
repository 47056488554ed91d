"""Builds the sentences that summarise a trace: the headline, the tiles, the findings,
and what was measured, inferred or synthesised."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from reports.page.tiles import Tile
from reports.workload.compared import Compared
from servers.basics.phrasing import counted, listed, seconds, share
from traces import Program, TraceSet
from traces.formats.about import STATED
from traces.formats.registry import abouts
from traces.synthesis.figures import value_of
from traces.synthesis.fitted import FittedQuantity
from traces.synthesis.nearest import LIKE
from traces.synthesis.recipes import SOURCE

PACKS = "Each recipe's line shows 100 synthesised jobs."


def is_drawn(loaded: TraceSet) -> bool:
    """Return whether all programs are drawn from recipes."""
    return all(program.source.startswith(f"{SOURCE} ") for program in loaded.programs)


def of_names(loaded: TraceSet) -> str:
    """Return a sentence on the names of files, folders and tools on the page."""
    if loaded.keeps_names:
        return (
            "The page names none of them and no folder, but names their tools, since --keep-names"
            " was given."
        )
    if loaded.is_private:
        return (
            "The page names none of them and no folder, and numbers tools that are not well known."
        )
    return "The page names the given files and folders, but not the folders that contain them."


def of_lengths(loaded: TraceSet) -> str:
    if is_drawn(loaded):
        return "Token counts: synthesised, drawn from a recipe."
    if loaded.count_basis:
        return f"Token counts: inferred where none is recorded ({loaded.count_basis})."
    if loaded.inferred_counts:
        how = "see bench traces inspect"
        return f"Token counts: measured, but {loaded.inferred_counts:,} inferred ({how})."
    if marked := sum(program.inferred_tokens for program in loaded.programs):
        return (
            f"Token counts: some or all of {marked:,} of {len(loaded.programs):,} programs are"
            " inferred, according to their file; the others are measured."
        )
    return "Token counts: measured, since the trace records them."


def of_turns(loaded: TraceSet) -> str:
    return "Turns: synthesised, drawn from a recipe." if is_drawn(loaded) else "Turns: measured."


def of_starts(loaded: TraceSet) -> str:
    return f"Starts: {'synthesised' if is_drawn(loaded) else 'measured'}."


def of_gaps(programs: Sequence[Program], *, after_tools: bool) -> str:
    """Return where the gaps after tools, or all other gaps, come from."""
    found = Counter(
        turn.gap_provenance.value
        for program in programs
        for turn in program.turns[:-1]
        if bool(turn.tools) == after_tools
    )
    return counts(found)


def counts(by_provenance: Mapping[str, int]) -> str:
    """Return `all measured`, or the number of each."""
    if len(by_provenance) == 1:
        return f"all {next(iter(by_provenance))}"
    return listed([f"{n:,} {name}" for name, n in sorted(by_provenance.items())]) or "none"


def of_repeats(loaded: TraceSet) -> str:
    """Return a sentence on where the repeated part of prompts comes from."""
    if is_drawn(loaded):
        return "Repeats: synthesised, drawn from a recipe."
    declared = abouts()
    known = [declared[name].repeats for name in loaded.formats.values() if name in declared]
    how = sorted({"as the trace states them" if each == STATED else each for each in known})
    return f"Repeats: {listed(how) or 'as the trace states them'}."


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
        yield "This workload is synthesised from statistics: none of its jobs ran."
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
