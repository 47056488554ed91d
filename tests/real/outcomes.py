"""Plays a random workload on an engine, and compares what two engines did."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from harness.replay.virtual import replay
from tests.lines import Line, into
from tests.real.plugin.random_worlds import World

SUMMARY = ("finished_programs", "failed_turns", "virtual_s", "steps")


class Outcome(NamedTuple):
    batches: list[Any]
    """What the engine recorded of each batch, if it does so."""
    events: list[str]
    turns: list[str]
    done: dict[str, object]
    engine: Any


def outcome(
    played: World,
    make: Callable[..., Any],
    *,
    oracle: bool = False,
    text: Callable[[list[Line]], list[str]] = lambda lines: list(map(repr, lines)),
    summary: tuple[str, ...] = SUMMARY,
) -> Outcome:
    """Run the workload. `make` takes `on_event` and `on_end`; `text` formats records for the
    comparison, and `summary` names the fields of `done.json` to compare."""
    turns: list[Line] = []
    events: list[Line] = []
    engines: list[Any] = []

    def made(**options: Any) -> Any:
        engines.append(make(on_event=into(events), **options))
        return engines[0]

    done = replay(played.programs, played.starts_s, None, made, into(turns), oracle=oracle)
    compared = {name: getattr(done, name) for name in summary}
    batches = getattr(engines[0], "batches", [])
    return Outcome(batches, text(events), text(turns), compared, engines[0])


def first_difference(a: Outcome, b: Outcome) -> str:
    for name in ("batches", "events", "turns"):
        ours, theirs = getattr(a, name), getattr(b, name)
        for number, (one, other) in enumerate(zip(ours, theirs, strict=False)):
            if one != other:
                return f"{name} {number}: {one} / {other}"
        if len(ours) != len(theirs):
            return f"{name}: {len(ours)} / {len(theirs)}"
    return "" if a.done == b.done else f"{a.done} / {b.done}"
