"""Options of the plug-in, and what it refuses before vLLM loads the model.

In: vLLM's configuration, of which `--additional-config '{"turnstile": {"policy": "continuum"}}'`
has the options, or else the JSON file that the environment variable `TURNSTILE_OPTIONS` names.
vLLM compiles a model again if its additional configuration has changed, but not for another file.
Out: `Options`, and the policy. Times in seconds.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

import vllm
from msgspec import Meta, Struct, ValidationError, convert
from vllm.v1.core.sched.async_scheduler import AsyncScheduler

from servers.basics.errors import InvalidInput
from servers.basics.nearest import did_you_mean
from servers.policies.base import Policy
from servers.variants import Variant, make_policy, variants
from servers.vllm.plugin.compatibility import check_scheduler
from servers.vllm.plugin.cost_curve import CostCurve
from servers.vllm.plugin.event_log import EventLog
from servers.vllm.plugin.initial_costs import initial_costs
from servers.vllm.plugin.learned_costs import LearnedCosts

KEY = "turnstile"
FILE = "TURNSTILE_OPTIONS"
Kind = TypeVar("Kind", bound=Struct)


class Options(Struct, frozen=True, forbid_unknown_fields=True):
    policy: str = "turnstile"
    """A name of `servers.variants`, or a policy of your own as my_module:MyPolicy; arguments may
    follow, as in `continuum(k=50)`."""
    costs: dict[str, Any] | str | None = None
    """A `CostCurve`, or the path of a JSON file with it; None to learn them from steps, beginning
    with a guess."""
    events: str | None = None
    """Path of the JSONL file to which engine events are appended."""
    idle_s: Annotated[float, Meta(gt=0)] | None = 3600.0
    """A program without turns for longer than this has ended; None: never."""
    conversations: bool = True
    """Whether a request that names no program continues the one whose prompt it repeats; if not,
    it is a program of its own, which leaves no pin."""

    def variant(self) -> Variant:
        try:
            chosen = variants(self.policy)
        except InvalidInput as error:
            reason = str(error).removeprefix("--policies ").removeprefix(f"{self.policy}: ")
            raise InvalidInput(f"policy {self.policy}: {reason}") from None
        reason = ""
        if len(chosen) != 1:
            reason = "a server runs one policy; name one"
        elif chosen[0].impossible:
            reason = f"{chosen[0].impossible}, so it runs in virtual time only (--engine sim)"
        elif chosen[0].limits:
            reason = (
                f"{chosen[0].limits[0][0]} is a setting of vLLM itself; remove it, and start vLLM "
                "with its flag"
            )
        if reason:
            raise InvalidInput(f"policy {self.policy}: {reason}")
        return chosen[0]

    def make_policy(self, vllm_config: Any, kv_tokens: int) -> tuple[Policy, LearnedCosts | None]:
        """Return the policy of an engine that holds `kv_tokens` tokens of KV, and its costs if they
        are to be learned."""
        learned = None
        if (curve := self._curve()) is None:
            learned = LearnedCosts(initial_costs(vllm_config))
            costs = learned.costs
        else:
            costs = curve.costs()
        return make_policy(self.variant(), replace(costs, kv_tokens=kv_tokens)), learned

    def _curve(self) -> CostCurve | None:
        if self.costs is None:
            return None
        if isinstance(self.costs, str):
            return _converted(_read(self.costs, "costs"), CostCurve, f"costs {self.costs}")
        return _converted(self.costs, CostCurve, "costs")


def read_options(vllm_config: Any, environment: Mapping[str, str] = os.environ) -> Options:
    """Raise InvalidInput, whose message names the option and the remedy."""
    additional = getattr(vllm_config, "additional_config", None)
    given = additional.get(KEY) if isinstance(additional, Mapping) else None
    path = environment.get(FILE)
    if given is not None and path:
        raise InvalidInput(
            f"options are given in {FILE}={path} and in --additional-config; remove one"
        )
    where = f"{FILE}={path}" if path else f"--additional-config: {KEY}"
    data = _read(path, FILE) if path else {} if given is None else given
    return _converted(data, Options, where)


def check(vllm_config: Any) -> Options:
    """Return the options. Raise InvalidInput or UnsupportedVllm if the plug-in cannot run with this
    vLLM and its configuration."""
    check_scheduler(AsyncScheduler, vllm.__version__)
    scheduling = vllm_config.scheduler_config.policy
    if scheduling != "fcfs":
        raise InvalidInput(
            f"--scheduling-policy is {scheduling}: use fcfs, since Turnstile's policy decides the "
            "order"
        )
    if vllm_config.cache_config.enable_prefix_caching is False:
        raise InvalidInput("prefix caching is off: start vLLM with --enable-prefix-caching")
    stages = vllm_config.parallel_config.pipeline_parallel_size
    if stages > 1 and not vllm_config.scheduler_config.async_scheduling:
        # The plug-in derives from vLLM's `AsyncScheduler`, which then would schedule the next token
        # of a turn before the last one is sampled.
        raise InvalidInput(
            f"--pipeline-parallel-size is {stages} without asynchronous scheduling: use model "
            "runner V2 (it needs Triton) and vLLM 0.32 or later, without --no-async-scheduling"
        )
    options = read_options(vllm_config)
    options.variant()
    if options._curve() is None:
        _check_estimate(vllm_config)
    if options.events is not None:
        _check_writable(options.events)
    return options


def _check_estimate(vllm_config: Any) -> None:
    try:
        initial_costs(vllm_config)
    except Exception as error:  # of a configuration with other fields than those of most models
        raise InvalidInput(
            f"the costs of this model cannot be estimated ({type(error).__name__}: {error}); give "
            "them as the option costs"
        ) from None


def _check_writable(events: str) -> None:
    try:
        EventLog(events).close()
    except OSError as error:
        raise InvalidInput(
            f"events is {events}: {error.strerror}; give a file in a folder that exists and can be "
            "written"
        ) from None


def _read(path: str, option: str) -> object:
    try:
        return json.loads(Path(path).read_text())
    except (OSError, ValueError) as error:
        raise InvalidInput(f"{option} is {path}: {error}; it must be a JSON file") from None


def _converted(data: object, kind: type[Kind], where: str) -> Kind:
    try:
        return convert(data, kind)
    except ValidationError as error:
        fields = kind.__struct_fields__
        unknown = [name for name in data if name not in fields] if isinstance(data, dict) else []
        hint = did_you_mean(str(unknown[0]), fields) if unknown else ""
        raise InvalidInput(f"{where}: {error}{hint} (fields: {', '.join(fields)})") from None
