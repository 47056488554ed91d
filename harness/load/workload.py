"""Choose the programs that a sweep replays from packs and files.

In: paths or pack names, the number of jobs, the longest context that fits. Out: a `Workload`, with
the programs that were left out and the reasons. A job is left out with all its sub-agents.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import traces
from harness.load.arrivals import choose_programs, root_ids, roots
from harness.load.settings import Load, Machine, Overlong
from servers.basics.errors import DoesNotFit, InvalidInput
from servers.basics.text import one_line
from servers.profiles.files import is_file
from servers.records.settings import LeftOutProgram, WorkloadRecord
from traces import Note, Program, Turn
from traces.reuse import SharedPrompts
from traces.stored import packed
from traces.synthesis.known import description

DEFAULT_PACK = "swe-bench"
MAX_NAMED_FILES = 3
"""Limit of file names in the name of a workload."""


def more_memory(machine: Machine) -> str:
    """Return how to make room for longer contexts, by the option that limits them now: a given
    context is never longer than the memory, and given or measured blocks do not depend on the
    GPUs."""
    if machine.max_model_len is not None:
        return "increase --max-model-len"
    if machine.kv_blocks is not None or is_file(machine.hardware or ""):
        return "increase --kv-blocks"
    return "use more --gpus, or --hardware with more memory"


class Longest(NamedTuple):
    """The longest context of a machine."""

    tokens: int | None
    """None if unknown."""
    limit: str
    """The exceeded limit, for errors."""
    remedy: str = "choose shorter programs"

    @classmethod
    def of(
        cls, tokens: int | None, model: str, model_limit: int | None, where: str, remedy: str
    ) -> Longest:
        """The model's limit, which no machine can extend, or that of what holds the KV cache.
        `where`: words for it after the model. `remedy`: `more_memory` of the machine."""
        if tokens is not None and tokens == model_limit:
            longer = "choose a model with a longer context, or shorter programs"
            return cls(tokens, f"the {tokens} that {model} accepts on any GPU", longer)
        return cls(tokens, f"the {tokens} that {model}{where} can hold here", remedy)


@dataclass(frozen=True, slots=True)
class FreshPrograms:
    """A stream draws its programs from a recipe instead of repeating the workload's programs."""

    recipe: str
    longest: Longest
    refuse: bool
    """Whether a program that exceeds `longest` fails the cell instead of being left out."""


class _Means:
    def __init__(self) -> None:
        self.jobs = self.turns = self.later = self.new_tokens = self.calls = 0
        self.gaps_s = self.pauses_s = 0.0

    def add(self, turns: Sequence[Turn]) -> None:
        self.jobs += bool(turns)
        self.turns += len(turns)
        self.later += max(len(turns) - 1, 0)
        self.new_tokens += sum(turn.new_tokens for turn in turns[1:])
        gaps_s = [turn.tool_gap_s for turn in turns[:-1] if turn.tools]
        self.calls += len(gaps_s)
        self.gaps_s += sum(gaps_s)
        self.pauses_s += sum(turn.tool_gap_s for turn in turns[:-1] if not turn.tools)

    def means(self) -> dict[str, float]:
        parts = {
            "turns": (self.turns, self.jobs),
            "new_tokens_per_later_turn": (self.new_tokens, self.later),
            "tool_gap_s": (self.gaps_s, self.calls),
            "pause_share": (self.pauses_s, self.pauses_s and self.pauses_s + self.gaps_s),
        }
        return {name: round(total / n, 4) for name, (total, n) in parts.items() if n}


class Counts(NamedTuple):
    gap_provenance: dict[str, int]
    """Number of tool gaps by provenance."""
    inferred_token_programs: int
    """Number of programs of files in which token counts are inferred."""
    sub_agents: int
    shared_prefix_tokens: int
    """Sum of the tokens that first prompts share with prefixes of earlier programs in the list."""
    means: dict[str, float]
    """Of jobs without their sub-agents: turns, and of their turns the tokens that are new in later
    ones, the gap after a tool, and the share of all gaps that follows turns without a tool."""


def count(programs: Iterable[Program]) -> Counts:
    """Count gaps and prefixes. A million turns take seconds."""
    gaps: Counter[str] = Counter()
    earlier, jobs = SharedPrompts(), _Means()
    inferred = sub_agents = shared = 0
    for program in programs:
        turns = tuple(program.turns)
        gaps.update(turn.gap_provenance.value for turn in turns[:-1])
        if program.fork is None:
            jobs.add(turns)
        shared += earlier.add(program.first_prefixes)
        inferred += program.inferred_tokens
        sub_agents += program.fork is not None
    return Counts(dict(sorted(gaps.items())), inferred, sub_agents, shared, jobs.means())


@dataclass(frozen=True, slots=True)
class Workload:
    name: str
    programs: tuple[Program, ...]
    trace_sha256: str
    left_out: tuple[LeftOutProgram, ...]
    rejected_files: tuple[Note, ...] = ()
    repairs: tuple[Note, ...] = ()
    distinct_programs: int | None = None
    """Number of programs if they are repeated under new ids; None if they are not."""
    fresh: FreshPrograms | None = None
    """The recipe of a stream; None if the stream repeats the programs."""
    about: str | None = None
    """One line about a pack; None for other sources."""
    is_private: bool = False
    """Whether it was read from a person's history, so that the run does not name its folders."""
    keeps_names: bool = False
    """Whether the history keeps the ids of its sessions and the names of its tools."""
    formats: tuple[str, ...] = ()
    """Of the files that were read."""
    counts: Counts | None = None
    """Of packed programs; None if they are counted when they are asked for."""

    def packed(self) -> Workload:
        """Return a copy with packed turns. A replay unpacks the turns of running programs."""
        counts = self.counts or count(self.programs)
        return replace(self, programs=packed(self.programs), counts=counts)

    @property
    def turns(self) -> int:
        """Number of turns; 0 if unknown, because real agents have not run yet."""
        return sum(len(program.turns) for program in self.programs)

    def record(self) -> WorkloadRecord:
        counts = self.counts or count(self.programs)
        return WorkloadRecord(
            name=self.name,
            programs=len(self.programs),
            turns=self.turns or None,
            trace_sha256=self.trace_sha256,
            gap_provenance=counts.gap_provenance,
            shared_prefix_tokens=counts.shared_prefix_tokens,
            sub_agents=counts.sub_agents,
            inferred_token_programs=counts.inferred_token_programs,
            distinct_programs=self.distinct_programs,
            recipe=None if self.fresh is None else self.fresh.recipe,
            about=self.about,
            private=self.is_private,
            keeps_names=self.keeps_names,
            means=counts.means,
            left_out=self.left_out,
        )


def are_recorded(load: Load) -> bool:
    """Return whether sessions are read from files, not only drawn from built-in recipes."""
    return any(source not in traces.RECIPES for source in load.traces)


def load_workload(
    load: Load, longest: Longest, *, messages: bool = False, stream: bool = False
) -> Workload:
    """Read the traces and choose their jobs. Raises InvalidInput, or DoesNotFit if none fits.

    `messages` keeps conversations. `stream`: the jobs are those that a stream repeats, so none is
    repeated here; a pack of a recipe without a number of jobs is drawn fresh.
    """
    sources, jobs, reading = load.traces or (DEFAULT_PACK,), load.programs, load.reading
    refuse = load.overlong is Overlong.REFUSE
    loaded = traces.read_traces(
        sources,
        messages=messages,
        columns=reading.columns,
        tokenizer=reading.tokenizer,
        synthesise_gaps=reading.synthesise_gaps,
        keep_names=reading.keep_names,
    )
    fitting, left_out = leave_out_overlong(loaded.programs, longest)
    if left_out and (refuse or not fitting):
        more = f" (and {len(left_out) - 1} more do not fit)" if len(left_out) > 1 else ""
        error = InvalidInput if fitting else DoesNotFit
        raise error(f"{left_out[0].reason}{more}; {longest.remedy}")
    fresh = None
    if stream:
        if jobs is None:
            fresh = _fresh(sources, longest, refuse)
        else:
            jobs = min(jobs, len(roots(fitting)))
    programs = fitting if jobs is None else tuple(choose_programs(fitting, jobs))
    repeats = jobs is not None and len(roots(fitting)) < jobs
    return Workload(
        workload_name(sources, loaded),
        programs,
        loaded.sha256,
        left_out,
        loaded.rejections,
        loaded.repairs,
        len(fitting) if repeats else None,
        fresh,
        description(sources[0]) if len(sources) == 1 and sources[0] in traces.packs() else None,
        loaded.is_private,
        loaded.keeps_names,
        tuple(sorted({*loaded.formats.values()})),
    )


def _fresh(sources: Sequence[str], longest: Longest, refuse: bool) -> FreshPrograms | None:
    """Return the recipe of a pack; None for other sources and for several sources."""
    if len(sources) != 1 or sources[0] not in traces.packs() or sources[0] not in traces.RECIPES:
        return None
    return FreshPrograms(sources[0], longest, refuse)


def sessions(formats: Iterable[str]) -> str:
    """Return a name for private histories, whose folder would reveal what a person works on."""
    return f"{'+'.join(sorted(set(formats)))} sessions"


def workload_name(sources: Sequence[str], loaded: traces.TraceSet) -> str:
    """Return a name without folders, and for private histories also without the names of files."""
    if loaded.is_private:
        return sessions(loaded.formats.values())
    names = [one_line(Path(source).name) for source in sources]
    more = len(names) - MAX_NAMED_FILES
    return "+".join(names[:MAX_NAMED_FILES]) + (f" and {more} more" if more > 0 else "")


def leave_out_overlong(
    programs: Sequence[Program], longest: Longest
) -> tuple[tuple[Program, ...], tuple[LeftOutProgram, ...]]:
    """Return the programs that fit, and the others with the reasons."""
    if longest.tokens is None:
        return tuple(programs), ()
    too_long: dict[str, str] = {}
    root_of = root_ids(programs)
    cause: dict[str, str] = {}
    for program in programs:
        for number, turn in enumerate(program.turns):
            if turn.context_tokens > longest.tokens:
                too_long[program.id] = (
                    f"program {program.id}, turn {number}: {turn.prompt_tokens} prompt + "
                    f"{turn.output_tokens} output tokens are more than {longest.limit}"
                )
                cause.setdefault(root_of[program.id], program.id)
                break
    left_out = tuple(
        LeftOutProgram(
            p.id, too_long.get(p.id) or f"program {p.id}: left out with {cause[root_of[p.id]]}"
        )
        for p in programs
        if root_of[p.id] in cause
    )
    return tuple(p for p in programs if root_of[p.id] not in cause), left_out
