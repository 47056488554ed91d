"""Runs the cells of a `servers.remote.client`, in the interpreter of an engine's environment.

In, one JSON object per line: policy, profile and limits start an engine, and `go` runs it. Out:
`next` when the engine takes the next program, whose first turn the client then submits, and `ended`
for each turn. After both the process reads `submit`, `take_back`, `end_program` and `stop` messages
until the next `go`. At the end `done`, or `failed` with an error message of one line. The process
ends at the end of its input, so that it does not outlive its client. All output of the engine's
packages goes to stderr.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable, Collection, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from msgspec import to_builtins

from servers.basics.errors import EngineError, UnsupportedVllm
from servers.basics.json_object import JsonObject
from servers.policies.base import Future
from servers.policies.user_code import NeverReturned, call_limit, raised_in
from servers.profiles import Profile, profile_of
from servers.records.turns import EventRecord
from servers.remote.stepped import SteppedEngine
from servers.sim import Limits, Segment, Sequence, Submission
from servers.variants import Variant

Send = Callable[[JsonObject], None]
Make = Callable[[Variant, Profile, Limits], Callable[..., SteppedEngine]]
"""Returns the class of an engine, with all arguments but `on_end` and `on_event`."""


class CellEngine:
    """One engine, and the client's keys for its turns and segments."""

    def __init__(self, message: JsonObject, variant: Variant, make: Make, send: Send) -> None:
        profile, limits = profile_of(message["profile"]), Limits(**message["limits"])
        self._send = send
        self._events: list[EventRecord] = []
        on_event = self._events.append if message["events"] else None
        engine = make(variant, profile, limits)
        self.engine = engine(on_end=self._ended, on_event=on_event)
        self._segments: dict[int, Segment] = {}
        self._keys: dict[Sequence, int] = {}

    def submit(self, message: JsonObject) -> None:
        path = tuple(
            (self._segments.setdefault(number, Segment(start)), exit_depth)
            for number, start, exit_depth in message["path"]
        )
        future = message["future"]
        submission = Submission(
            message["program_id"],
            path,
            message["prompt_tokens"],
            message["output_tokens"],
            message["is_last"],
            tuple(message["tools"]),
            None if future is None else Future(*future),
        )
        self._keys[self.engine.submit(submission, message["at_ps"])] = message["key"]

    def take_back(self, key: int) -> None:
        sequence = next(turn for turn, number in self._keys.items() if number == key)
        del self._keys[sequence]
        self.engine.take_back(sequence)

    def report(self, kind: str, **fields: Any) -> None:
        events, self._events[:] = to_builtins(self._events), []
        self._send({kind: True, "now_ps": self.engine.now_ps, "events": events, **fields})

    def _ended(self, sequence: Sequence) -> None:
        self.report(
            "ended",
            key=self._keys.pop(sequence),
            view=asdict(sequence.view),
            hits=sequence.hits,
            pinned_hit=sequence.pinned_hit,
            preemptions=sequence.preemptions,
            request_ps=sequence.request_ps,
            spent_ps=sequence.spent_ps,
            first_token_ps=sequence.first_token_ps,
            finished_ps=sequence.finished_ps,
            error=sequence.error,
            usage=self.engine.usage(),
        )
        self.read_until_go()

    def programs(self) -> Iterator[None]:
        while True:
            self.report("next")
            self.read_until_go()
            yield

    def read_until_go(self) -> None:
        for line in sys.stdin:
            message = json.loads(line)
            match message["do"]:
                case "submit":
                    self.submit(message)
                case "take_back":
                    self.take_back(message["key"])
                case "end_program":
                    self.engine.end_program(message["program_id"])
                case "stop":
                    self.engine.stop()
                case "go":
                    return
        sys.exit(0)


def serve(read: Callable[[str], list[Variant]], make: Make, send: Send) -> None:
    """Run cells until the end of the input. `read`: returns the variant of a policy's text."""
    for line in sys.stdin:
        run_cell(line, read, make, send)


def run_cell(line: str, read: Callable[[str], list[Variant]], make: Make, send: Send) -> None:
    roots: Collection[Path] = ()
    try:
        message = json.loads(line)
        variant = read(message["policy"])[0]
        roots = variant.user_code
        cell = CellEngine(message, variant, make, send)
        with call_limit(roots):
            cell.read_until_go()
            cell.engine.run(cell.programs())
        cell.report("done", steps=cell.engine.steps, strides=cell.engine.strides)
    except (EngineError, UnsupportedVllm, NeverReturned) as error:
        send({"failed": str(error)})
    except Exception as error:  # probably from the policy; the next cell may have another
        traceback.print_exc()
        send({"failed": raised_in(error, roots) or f"{type(error).__name__}: {error}"})


def client_stream() -> Send:
    """Redirect all other output to stderr, and return the function that sends to the client."""
    out: IO[str] = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def send(message: JsonObject) -> None:
        out.write(json.dumps(message, separators=(",", ":")) + "\n")
        out.flush()

    return send
