"""One cell: a policy and a profile put together, replayed, its turns and events kept."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from harness.pool import Tick
from harness.question import Cell, Question
from harness.replay import replay
from harness.run_folder import CellFolder
from servers.profiles import costs
from servers.variants import make_policy

TICK_S = 0.5


@dataclass(frozen=True, slots=True)
class Work:
    """What all cells of a sweep share."""

    question: Question
    folder: Path


def run_cell(work: Work, cell: Cell, tick: Tick) -> None:
    question = work.question
    variant = question.variant(cell.variant)
    profile = question.profile_of(variant)
    step_tokens = question.limits.step_tokens
    policy = make_policy(variant, costs(profile, step_tokens=step_tokens, offload=variant.offload))
    programs = question.workload.programs
    starts_s, in_flight = question.arrivals.draw(programs, cell.jps, cell.seed)
    turns, tick_at_s = 0, time.monotonic() + TICK_S

    def on_turn(line: dict[str, object]) -> None:
        nonlocal turns, tick_at_s
        out.turns.append(line)
        turns += 1
        if time.monotonic() >= tick_at_s:
            tick(turns)
            tick_at_s = time.monotonic() + TICK_S

    with CellFolder(work.folder / cell.name, question.cell_json(cell)) as out:
        done = replay(
            programs,
            starts_s if in_flight is None else None,
            in_flight,
            policy=policy,
            bound=variant.bound,
            profile=profile,
            limits=question.limits,
            offload=question.offload if variant.offload else None,
            on_turn=on_turn,
            on_event=out.events.append,
        )
        out.finish(done)
