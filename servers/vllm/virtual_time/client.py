"""The other end of `servers.vllm.virtual_time.process`: vLLM's scheduler in virtual time as an
engine of
`harness.replay.virtual`, from an environment that lacks vLLM."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from msgspec import convert

from servers.errors import VirtualVllmFailed
from servers.policies.base import Request
from servers.profiles import Profile
from servers.records import EventRecord
from servers.sim import Limits, Segment, Submission, Usage, refuse_unfit
from servers.sim import Sequence as Served
from servers.vllm.launch.find_vllm import ROOT
from servers.vllm.launch.policy_module import link_modules
from servers.vllm.models.model_folder import keep_compiled

QUIET = {
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
}
OnEvent = Callable[[EventRecord], None]


def environment() -> dict[str, str]:
    """For a module of ours under vLLM's Python: it finds our sources, and vLLM keeps quiet."""
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    env = {**os.environ, **QUIET, "PYTHONPATH": os.pathsep.join(paths)}
    keep_compiled(env)
    return env


class VllmProcess:
    """One process, for any number of cells one after the other."""

    def __init__(self, python: str, policy_module: Path | None = None) -> None:
        """`policy_module`: file or folder of a policy from outside, which vLLM's environment may
        lack."""
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

    def send(self, message: dict[str, Any], *, flush: bool = False) -> None:
        if self._process.stdin is None:
            raise VirtualVllmFailed("vLLM's process takes no input")
        try:
            self._process.stdin.write(json.dumps(message, separators=(",", ":")) + "\n")
            if flush:
                self._process.stdin.flush()
        except BrokenPipeError:
            raise VirtualVllmFailed(self._death()) from None

    def receive(self) -> dict[str, Any]:
        line = self._process.stdout.readline() if self._process.stdout else ""
        if not line.endswith("\n"):
            raise VirtualVllmFailed(self._death())
        said: dict[str, Any] = json.loads(line)
        if "failed" in said:
            raise VirtualVllmFailed(f"vLLM in virtual time: {said['failed']}")
        return said

    def close(self) -> None:
        """Its input's end is its own."""
        self._process.communicate()
        self._errors.close()
        if self._modules is not None:
            self._modules.cleanup()

    def _death(self) -> str:
        code = self._process.wait()
        self._errors.seek(0)
        said = self._errors.read().decode(errors="replace").strip().splitlines()
        last = said[-1] if said else "it said nothing"
        return f"vLLM's process for virtual time ended with exit code {code}: {last}"


class RemoteVllm:
    """As `servers.sim.Engine`."""

    def __init__(
        self,
        process: VllmProcess,
        policy: str,
        profile: Profile,
        limits: Limits,
        *,
        on_end: Callable[[Served], None],
        on_event: OnEvent | None = None,
    ) -> None:
        self.profile = profile
        self.now_ps = self.steps = self.strides = 0
        self._process = process
        self._on_end = on_end
        self._on_event = on_event
        self._turns: dict[int, Served] = {}
        self._sent = 0
        self._segments: dict[Segment, int] = {}
        self._usage = Usage(0.0, 0, 0, 0, 0)
        sizes = {"profile": asdict(profile), "limits": asdict(limits)}
        process.send({"policy": policy, **sizes, "events": on_event is not None})

    def submit(self, submission: Submission, at_ps: int) -> Served:
        refuse_unfit(submission, self.profile)
        self._sent += 1
        served = self._turns[self._sent] = Served(submission, at_ps)
        path = [
            (self._segments.setdefault(segment, len(self._segments)), segment.start, leave)
            for segment, leave in submission.path
        ]
        said = {name: getattr(submission, name) for name in SAID}
        self._process.send(
            {"do": "submit", "key": self._sent, "at_ps": at_ps, "path": path, **said}
        )
        return served

    def end_program(self, program_id: str) -> None:
        self._process.send({"do": "end_program", "program_id": program_id})

    def usage(self) -> Usage:
        return self._usage

    def run(self, programs: Iterable[object] = ()) -> None:
        """It is told of all programs at once."""
        for _ in programs:
            pass
        while True:
            self._process.send({"do": "go"}, flush=True)
            said = self._process.receive()
            self.now_ps = said["now_ps"]
            for event in said["events"]:
                if self._on_event is not None:
                    self._on_event(convert(event, EventRecord))
            if "done" in said:
                self.steps, self.strides = said["steps"], said["strides"]
                return
            self._ended(said)

    def _ended(self, said: dict[str, Any]) -> None:
        served = self._turns.pop(said["key"])
        served.view = Request(**said["view"])
        for name in RESULTS:
            setattr(served, name, said[name])
        self._usage = Usage(*said["usage"])
        self._on_end(served)


SAID = ("program_id", "prompt_tokens", "output_tokens", "is_last", "tools", "future")
RESULTS = (
    "hits",
    "pinned_hit",
    "preemptions",
    "spent_ps",
    "first_token_ps",
    "finished_ps",
    "error",
)
