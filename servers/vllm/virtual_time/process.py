"""`VirtualVllm` in a process of its own, under the interpreter of the environment that has vLLM.

    python -m servers.vllm.virtual_time.process

In, one JSON object a line: `open` (policy, profile, limits) starts an engine, then `submit` and
`end_program`, and `run`. Out: `ended` for each turn, after which it takes more submissions until
`go`, and `done`; or `failed`, one line for people. Ends when its input does, so that it outlives
nobody. Whatever vLLM prints goes to stderr.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import asdict
from typing import IO, Any

from msgspec import to_builtins

from servers.errors import UnsupportedVllm
from servers.policies.base import Future
from servers.profiles import Profile, costs
from servers.records import EventRecord
from servers.sim import Limits, Segment, Submission
from servers.sim import Sequence as Served
from servers.variants import make_policy, variants
from servers.vllm.virtual_time.engine import VirtualVllm

Message = dict[str, Any]


class Cell:
    """One engine, and what the other side calls its turns and segments."""

    def __init__(self, asked: Message, say: Callable[[Message], None]) -> None:
        profile, limits = Profile(**asked["profile"]), Limits(**asked["limits"])
        known = costs(profile, step_tokens=limits.step_tokens, offload=False)
        policy = make_policy(variants(asked["policy"])[0], known)
        self._say = say
        self._events: list[EventRecord] = []
        on_event = self._events.append if asked["events"] else None
        self.engine = VirtualVllm(policy, profile, limits, on_end=self._ended, on_event=on_event)
        self._segments: dict[int, Segment] = {}
        self._keys: dict[Served, int] = {}

    def submit(self, asked: Message) -> None:
        path = tuple(
            (self._segments.setdefault(number, Segment(start)), leave)
            for number, start, leave in asked["path"]
        )
        future = asked["future"]
        submission = Submission(
            asked["program_id"],
            path,
            asked["prompt_tokens"],
            asked["output_tokens"],
            asked["is_last"],
            tuple(asked["tools"]),
            None if future is None else Future(*future),
        )
        self._keys[self.engine.submit(submission, asked["at_ps"])] = asked["key"]

    def report(self, kind: str, **fields: Any) -> None:
        events, self._events[:] = to_builtins(self._events), []
        self._say({kind: True, "now_ps": self.engine.now_ps, "events": events, **fields})

    def _ended(self, served: Served) -> None:
        self.report(
            "ended",
            key=self._keys.pop(served),
            view=asdict(served.view),
            hits=served.hits,
            pinned_hit=served.pinned_hit,
            preemptions=served.preemptions,
            spent_ps=served.spent_ps,
            first_token_ps=served.first_token_ps,
            finished_ps=served.finished_ps,
            error=served.error,
            usage=self.engine.usage(),
        )
        self.take_until_go()

    def take_until_go(self) -> None:
        for line in sys.stdin:
            asked = json.loads(line)
            match asked["do"]:
                case "submit":
                    self.submit(asked)
                case "end_program":
                    self.engine.end_program(asked["program_id"])
                case "go":
                    return
        sys.exit(0)


def serve(say: Callable[[Message], None]) -> None:
    for line in sys.stdin:
        try:
            cell = Cell(json.loads(line), say)
            cell.take_until_go()
            cell.engine.run()
            cell.report("done", steps=cell.engine.steps, strides=cell.engine.strides)
        except UnsupportedVllm as refused:
            say({"failed": str(refused)})
        except Exception as error:  # a policy's, most likely: the next cell may be another's
            traceback.print_exc()
            say({"failed": f"{type(error).__name__}: {error}"})


def main() -> None:
    out: IO[str] = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def say(message: Message) -> None:
        out.write(json.dumps(message, separators=(",", ":")) + "\n")
        out.flush()

    say({"ready": True})
    serve(say)


if __name__ == "__main__":
    main()
