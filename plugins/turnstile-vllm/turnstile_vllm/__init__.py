"""A scheduler for vLLM that runs the scheduling policies of Turnstile.

    pip install turnstile-vllm
    vllm serve MODEL --scheduler-cls turnstile_vllm.Scheduler

`Scheduler` is the scheduler class, `ProgramHeaders` the middleware, and `register` the entry point
that vLLM calls in all of its processes, most of which need none of the rest.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

SOURCE = "servers"
"""The package that has these modules in Turnstile."""


class OwnPolicies(MetaPathFinder, Loader):
    """Lets a policy of the user import `servers.policies.base`, as in Turnstile, where no other
    package has that name."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(fullname, self) if fullname.partition(".")[0] == SOURCE else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = import_module(__name__ + spec.name.removeprefix(SOURCE))
        spec.loader_state = module.__spec__  # which Python replaces after this
        return module

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__ = module.__spec__.loader_state


def __getattr__(name: str) -> Any:
    # The front end checks the policy after `register`, and the engine loads `Scheduler`.
    if name in ("Scheduler", "register") and find_spec(SOURCE) is None:
        # First, since the path of an alias leads to the sources, which must not load twice.
        sys.meta_path.insert(0, OwnPolicies())
    if name == "Scheduler":
        from servers.vllm.plugin.scheduler import TurnstileScheduler

        return TurnstileScheduler
    if name in ("ProgramHeaders", "register"):
        from servers.vllm.plugin import api_server

        return getattr(api_server, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
