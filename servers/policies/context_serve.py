"""ContextServe: pin fast tools, free slow ones, else Continuum's TTL (execution note §10.4).

FAST: every tool of the command is on a list of quick ones; the KV is pinned for 3.0 s. SLOW: one
tool is on a list of slow ones; the KV is freed at once. UNCERTAIN: "Continuum CDF TTL", which is
read as the paper's cost model (`ttl_model`), not as the fork's 2 s threshold, since the fork has no
CDF. The queue and the preemption are the fork's (`continuum_preview`); only whole blocks are held.

Departs from the note:
- its lists hold more than it prints (ls, cat, pwd, git status; make, pip install, docker build,
  pytest), and match arguments. A policy sees first words only, so `git` is UNCERTAIN, and all of
  pip, docker and npm are SLOW; the other entries were added here;
- its layers 2a (Bayesian, Normal-Inverse-Gamma with Thompson sampling) and 2b (XGBoost over 25
  features) are left out, because it gives no priors, quantile, features or trained model.
  UNCERTAIN goes straight to layer 3.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from servers.basics.compiled_core import mypyc_attr
from servers.policies.base import FREE, SHELL_PREAMBLE, Costs, Need, Request, Retention, pin
from servers.policies.continuum_preview import ContinuumPreview
from servers.policies.estimates.ttl_model import TtlModel

FAST_TTL_S = 3.0

# fmt: off
FAST_TOOLS = frozenset({
    "ls", "cat", "pwd", "head", "tail", "wc", "echo", "printf", "which", "whoami", "hostname", "id",
    "date", "dirname", "basename", "realpath", "readlink", "stat", "file", "env", "printenv",
    "uname", "nl", "cut", "mkdir", "touch",
})
SLOW_TOOLS = frozenset({
    "make", "pip", "docker", "pytest", "pip3", "conda", "apt", "apt-get", "npm", "yarn", "pnpm",
    "cargo", "cmake", "ninja", "mvn", "gradle", "bazel", "tox", "nox", "podman",
})
# fmt: on


def speed_of(tools: tuple[str, ...]) -> Literal["fast", "slow", "uncertain"]:
    if any(tool in SLOW_TOOLS for tool in tools):
        return "slow"
    known = all(tool in FAST_TOOLS or tool in SHELL_PREAMBLE for tool in tools)
    return "fast" if tools and known else "uncertain"


@mypyc_attr(allow_interpreted_subclasses=True)
class ContextServe(ContinuumPreview):
    """KV is kept for 3 s after fast tools, freed after slow ones, else as continuum."""

    name = "context-serve"
    source = "execution note §10.4"
    needs: ClassVar[tuple[Need, ...]] = ("tool names", "ends of programs")
    checked: ClassVar[str] = "no: no code is public"

    def __init__(self, costs: Costs) -> None:
        super().__init__(costs)
        self.model = TtlModel(costs)

    def arrived(self, request: Request, now_s: float) -> None:
        self.model.arrived(request, now_s)

    def scheduled(self, request: Request, now_s: float, cached_tokens: int) -> None:
        self.model.scheduled(request, now_s)

    def finished(self, request: Request, now_s: float) -> Retention:
        self.model.observe_finish(request, now_s)
        if request.ends_program:
            return FREE
        speed = speed_of(request.tools)
        if speed == "uncertain":
            return self.model.retention(request)
        ttl_s = FAST_TTL_S if speed == "fast" else 0.0
        return pin(ttl_s, tool=request.tool, speed=speed)

    def program_ended(self, program_id: str, now_s: float) -> None:
        self.model.program_ended(program_id)
