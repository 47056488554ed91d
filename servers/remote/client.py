"""Client of `servers.remote.cell`, for environments without the engine's scheduler."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import asdict

from msgspec import convert

from servers.basics.errors import EngineError
from servers.basics.json_object import JsonObject
from servers.policies.base import Request
from servers.profiles import Profile
from servers.records.turns import EventRecord
from servers.sim import EngineUsage, Limits, Segment, Sequence, Submission, refuse_unfit

OnEvent = Callable[[EventRecord], None]


class EngineProcess:
    """A process that runs any number of cells sequentially."""

    def __init__(
        self,
        name: str,
        command: list[str],
        env: dict[str, str],
        modules: tempfile.TemporaryDirectory[str] | None = None,
    ) -> None:
        """Start the process. `name`: of the engine, for errors. `modules`: a folder of modules on
        its path, which is deleted at its end."""
        self._name, self._modules = name, modules
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(  # noqa: S603
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=env,
        )
        self.receive()

    def send(self, message: JsonObject, *, flush: bool = False) -> None:
        if self._process.stdin is None:
            raise EngineError(f"{self._name}'s process has no input")
        try:
            self._process.stdin.write(json.dumps(message, separators=(",", ":")) + "\n")
            if flush:
                self._process.stdin.flush()
        except BrokenPipeError:
            raise EngineError(self._exit_message()) from None

    def receive(self) -> JsonObject:
        line = self._process.stdout.readline() if self._process.stdout else ""
        if not line.endswith("\n"):
            raise EngineError(self._exit_message())
        message: JsonObject = json.loads(line)
        if "failed" in message:
            raise EngineError(f"{self._name} in virtual time: {message['failed']}")
        return message

    def close(self) -> None:
        """End the process by closing its input."""
        self._process.communicate()
        self._errors.close()
        if self._modules is not None:
            self._modules.cleanup()

    def _exit_message(self) -> str:
        code = self._process.wait()
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        last = lines[-1] if lines else "no output"
        return f"{self._name}'s process for virtual time ended with exit code {code}: {last}"


class RemoteEngine:
    """An engine in an `EngineProcess`, with the interface of `servers.sim.Engine`."""

    trees = 1
    """Number of trees of contents."""

    def __init__(
        self,
        process: EngineProcess,
        policy: str,
        profile: Profile,
        limits: Limits,
        *,
        on_end: Callable[[Sequence], None],
        on_event: OnEvent | None = None,
    ) -> None:
        self.profile = profile
        self.now_ps = self.steps = self.strides = 0
        self._step_tokens = limits.step_tokens
        self._process = process
        self._on_end = on_end
        self._on_event = on_event
        self._turns: dict[int, Sequence] = {}
        self._sent = 0
        self._segments: dict[Segment, int] = {}
        self._usage = EngineUsage(0.0, 0, 0, 0, 0)
        sizes = {"profile": asdict(profile), "limits": asdict(limits)}
        process.send({"policy": policy, **sizes, "events": on_event is not None})

    def submit(self, submission: Submission, at_ps: int) -> Sequence:
        refuse_unfit(submission, self.profile, self._step_tokens)
        self._sent += 1
        sequence = self._turns[self._sent] = Sequence(submission, at_ps)
        path = [
            (self._segments.setdefault(segment, len(self._segments)), segment.start, exit_depth)
            for segment, exit_depth in submission.path
        ]
        message = {name: getattr(submission, name) for name in SUBMITTED}
        self._process.send(
            {"do": "submit", "key": self._sent, "at_ps": at_ps, "path": path, **message}
        )
        return sequence

    def take_back(self, sequence: Sequence) -> None:
        """Forget a turn that has not arrived."""
        key = next(key for key, turn in self._turns.items() if turn is sequence)
        del self._turns[key]
        self._process.send({"do": "take_back", "key": key})

    def end_program(self, program_id: str) -> None:
        self._process.send({"do": "end_program", "program_id": program_id})

    def usage(self) -> EngineUsage:
        return self._usage

    def stop(self) -> None:
        self._process.send({"do": "stop"})

    def run(self, programs: Iterable[object] = ()) -> None:
        """Run until every submitted turn has ended, or until `stop`."""
        next_programs = iter(programs)
        while True:
            self._process.send({"do": "go"}, flush=True)
            message = self._process.receive()
            self.now_ps = message["now_ps"]
            for event in message["events"]:
                if self._on_event is not None:
                    self._on_event(convert(event, EventRecord))
            if "done" in message:
                self.steps, self.strides = message["steps"], message["strides"]
                return
            if "next" in message:
                next(next_programs, None)
            else:
                self._ended(message)

    def _ended(self, message: JsonObject) -> None:
        sequence = self._turns.pop(message["key"])
        sequence.view = Request(**message["view"])
        for name in RESULTS:
            setattr(sequence, name, message[name])
        self._usage = EngineUsage(*message["usage"])
        self._on_end(sequence)


SUBMITTED = ("program_id", "prompt_tokens", "output_tokens", "is_last", "tools", "future")
RESULTS = (
    "hits",
    "pinned_hit",
    "preemptions",
    "request_ps",
    "spent_ps",
    "first_token_ps",
    "finished_ps",
    "error",
)
