"""Client of `servers.vllm.virtual_time.process`, for environments without vLLM."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path

from msgspec import convert

from servers.basics.errors import EngineError
from servers.basics.json_object import JsonObject
from servers.policies.base import Request
from servers.profiles import Profile
from servers.records.turns import EventRecord
from servers.sim import EngineUsage, Limits, Segment, Sequence, Submission, refuse_unfit
from servers.vllm.launch.find_vllm import ROOT
from servers.vllm.launch.policy_module import link_modules
from servers.vllm.models.model_folder import set_compile_cache

QUIET = {
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
}
OnEvent = Callable[[EventRecord], None]


def environment() -> dict[str, str]:
    """Return the environment to run a module of Turnstile with vLLM's interpreter: Turnstile's
    sources on the path, and settings that silence vLLM."""
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    env = {**os.environ, **QUIET, "PYTHONPATH": os.pathsep.join(paths)}
    set_compile_cache(env)
    return env


class VllmProcess:
    """A process that runs any number of cells sequentially."""

    def __init__(self, python: str, policy_module: Path | None = None) -> None:
        """Start the process. `policy_module` is the file or folder of an external policy, which may
        be missing in vLLM's environment."""
        env = environment()
        self._modules = None
        if policy_module is not None:
            self._modules = tempfile.TemporaryDirectory(prefix="turnstile-")
            links = link_modules(Path(self._modules.name), policy_module)
            env["PYTHONPATH"] += os.pathsep + str(links)
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(  # noqa: S603
            [python, "-m", "servers.vllm.virtual_time.process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=env,
        )
        self.receive()

    def send(self, message: JsonObject, *, flush: bool = False) -> None:
        if self._process.stdin is None:
            raise EngineError("vLLM's process has no input")
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
            raise EngineError(f"vLLM in virtual time: {message['failed']}")
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
        return f"vLLM's process for virtual time ended with exit code {code}: {last}"


class RemoteVllm:
    """vLLM in a `VllmProcess`, with the interface of `servers.sim.Engine`."""

    trees = 1
    """Number of trees of contents."""

    def __init__(
        self,
        process: VllmProcess,
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
    "spent_ps",
    "first_token_ps",
    "finished_ps",
    "error",
)
