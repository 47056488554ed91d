"""Replay programs against `tests.live.server` from a synchronous test."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from harness.replay.live import replay_live
from harness.replay.live_server import LiveServer, Service
from servers.records.done import DoneRecord
from tests.lines import Line, into
from tests.live import simulated_time
from tests.live.server import Server, serving
from traces import Fork, Program, Turn
from traces.token_counts import TokenCounter


def program(id: str, turns: int = 2, gap_s: float = 0.0, fork: Fork | None = None) -> Program:
    """Return a program whose turns add 10 prompt tokens and have answers of 6 tokens."""
    all_turns = [Turn(10 + 16 * i, 6, 16 * i, ("ls",), None, gap_s) for i in range(turns)]
    return Program(id, tuple(all_turns), fork=fork)


def replayed(
    programs: Sequence[Program],
    server: Server,
    *,
    starts_s: Sequence[float] | None = None,
    in_flight: int | None = None,
    turn_timeout_s: float = 30.0,
    text: bool = False,
    api_key: str | None = None,
    background: Iterable[tuple[Program, int]] = (),
    replays_answers: bool = False,
    counter: TokenCounter | None = None,
) -> tuple[dict[tuple[object, object], Line], DoneRecord]:
    """Replay in simulated time; return records by (program, turn), and done.json. By default all
    start at once."""
    roots = sum(p.fork is None for p in programs)
    if starts_s is None and in_flight is None:
        starts_s = [0.0] * roots
    lines: list[Line] = []

    async def replay() -> DoneRecord:
        async with serving(server) as url:
            return await replay_live(
                programs,
                starts_s,
                in_flight,
                Service(
                    [LiveServer(url)],
                    "m",
                    range(2**31),
                    seed=0,
                    turn_timeout_s=turn_timeout_s,
                    text=text,
                    replays_answers=replays_answers,
                    counter=counter,
                ),
                on_turn=into(lines),
                api_key=api_key,
                background=background,
            )

    done = simulated_time.run(replay())
    return {(line["program_id"], line["turn"]): line for line in lines}, done
