"""Computes when the turns of programs start and end, for formats with absolute times.

In: programs, which record gaps but not the durations of generations. Out: the start and the end of
each turn, in seconds, with durations from `estimated_api_s`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from traces.formats.shared.timed_calls import estimated_api_s
from traces.lenient import Repairs
from traces.program import Program

ASSUMED_START = "a program without a recorded start: it starts at 0 s, with the first one"
PLACED_BY_TIME = (
    "{} places sub-agents by time: which turns start and await one, and the gaps around it, follow "
    "from assumed times"
)
PAUSES = "{} does not tell a pause without a tool from a tool: it is read as a tool"
ESTIMATED = (
    "programs do not record how long a generation took: 1.27 s + 14.9 ms per output token + "
    "14.7 µs per prompt token are assumed"
)


@dataclass(frozen=True, slots=True)
class StartAndEnd:
    start_s: float
    end_s: float


def pauses(program: Program) -> int:
    """Return the number of gaps that follow a turn without a tool."""
    return sum(not turn.tools and turn.tool_gap_s > 0 for turn in program.turns[:-1])


def sub_agents(programs: Sequence[Program]) -> dict[str, list[Program]]:
    """Return the sub-agents of each program that has some."""
    found: dict[str, list[Program]] = {}
    for program in programs:
        if program.fork is not None:
            found.setdefault(program.fork.program_id, []).append(program)
    return found


def jobs(programs: Sequence[Program]) -> dict[str, list[Program]]:
    """Return the programs of each job, by the id of its root, which is the first."""
    children = sub_agents(programs)
    found: dict[str, list[Program]] = {}
    for root in (program for program in programs if program.fork is None):
        job = found[root.id] = [root]
        for program in job:  # which grows
            job += children.get(program.id, ())
    return found


def timeline(programs: Sequence[Program], losses: Repairs) -> dict[str, list[StartAndEnd]]:
    """Return the times of the turns of each program, by its id."""
    children = sub_agents(programs)
    times: dict[str, list[StartAndEnd]] = {}
    for root in programs:
        if root.fork is None:
            if root.recorded_start_s is None:
                losses.add(ASSUMED_START)
            _place(root, children, times)
    losses.add(ESTIMATED)
    return times


def _place(
    root: Program, children: Mapping[str, Sequence[Program]], times: dict[str, list[StartAndEnd]]
) -> None:
    """Set the times of a job. A turn waits for the sub-agents that are joined before it, so these
    are placed first."""
    times[root.id] = []
    active = [root]
    while active:
        program = active[-1]
        own = children.get(program.id, ())
        placed = times[program.id]
        waiting = next((child for child in own if _must_precede(child, program, times)), None)
        if waiting is not None:
            times[waiting.id] = []
            active.append(waiting)
        elif len(placed) < len(program.turns):
            turn = program.turns[len(placed)]
            start_s = _start_s(program, own, times)
            duration_s = estimated_api_s(turn.prompt_tokens, turn.output_tokens)
            placed.append(StartAndEnd(start_s, start_s + duration_s))
        else:
            active.pop()


def _must_precede(child: Program, program: Program, times: Mapping[str, list[StartAndEnd]]) -> bool:
    """Return whether a sub-agent must be placed before the next turn of its parent."""
    assert child.fork is not None  # noqa: S101 (for the type checker)
    turn = len(times[program.id])
    last = turn == len(program.turns)
    return child.id not in times and (last or child.fork.joined_before_turn == turn)


def _start_s(
    program: Program, children: Sequence[Program], times: Mapping[str, list[StartAndEnd]]
) -> float:
    """Return the start of a program's next turn."""
    placed = times[program.id]
    if placed:
        ends_s = [placed[-1].end_s]
        ends_s += (
            times[child.id][-1].end_s
            for child in children
            if child.fork is not None and child.fork.joined_before_turn == len(placed)
        )
        return max(ends_s) + program.turns[len(placed) - 1].tool_gap_s
    if program.fork is not None:
        return times[program.fork.program_id][program.fork.after_turn].end_s + program.fork.delay_s
    return program.recorded_start_s or 0.0
