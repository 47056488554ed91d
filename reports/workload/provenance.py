"""Describes where the numbers of a page come from: measured, inferred or synthesised."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from servers.basics.phrasing import listed
from traces import Program, TraceSet
from traces.formats.about import STATED
from traces.formats.registry import abouts
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
