"""The options that `bench sweep` and `bench run` share, said once: a command decorated with `asks`
gets them, read into an `SweepSettings`, as its first argument."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, get_type_hints

from harness.cli import options as opt
from harness.load.settings import Agents, Server, SweepSettings


def _asked(
    *,
    traces: opt.Traces = None,
    programs: opt.Programs = None,
    arrivals: opt.Arrivals = "poisson",
    overlong: opt.OverlongPrograms = opt.Overlong.DROP,
    engine: opt.Engine = "sim",
    hardware: opt.Hardware = None,
    model: opt.Model = None,
    gpus: opt.Gpus = None,
    offload_gb: opt.OffloadGb = None,
    ssd_gb: opt.SsdGb = 0.0,
    max_num_seqs: opt.MaxNumSeqs = 256,
    step_tokens: opt.StepTokens = 2048,
    max_model_len: opt.MaxModelLen = None,
    kv_blocks: opt.KvBlocks = None,
    vllm_python: opt.VllmPython = None,
    image: opt.Image = None,
    mount: opt.Mounts = None,
    weights: opt.Weights = "auto",
    costs: opt.CostsFile = None,
    replicas: opt.Replicas = 1,
    ready_within_s: opt.ReadyWithin = 900.0,
    turn_timeout_s: opt.TurnTimeout = 3600.0,
    lost_after_s: opt.LostAfter = 60.0,
    stuck_after_s: opt.StuckAfter = 900.0,
    prompts: opt.PromptsOption = opt.Prompts.TOKENS,
    events: opt.EventsFile = None,
    agent: opt.AgentName = None,
    agent_command: opt.AgentCommand = None,
    tasks: opt.TasksFile = None,
    guided: opt.Guided = False,
    agent_python: opt.AgentPython = None,
    agent_config: opt.AgentConfig = None,
    task_limit_s: opt.TaskLimit = 900.0,
    sandbox: opt.SandboxOption = opt.Sandbox.BUBBLEWRAP,
    agent_network: opt.AgentNetwork = False,
    agent_reads: opt.AgentReads = None,
    agent_processes: opt.AgentProcesses = 256,
    agent_memory_gb: opt.AgentMemory = 4.0,
    agent_disk_gb: opt.AgentDisk = 10.0,
    i_know_this_runs_model_commands_on_my_machine: opt.Unconfined = False,
    flags: opt.VllmFlags = None,
) -> SweepSettings:
    return SweepSettings(
        traces=tuple(traces or ()),
        engine=engine,
        hardware=hardware,
        model=model,
        gpus=gpus,
        programs=programs,
        arrivals=arrivals,
        offload_gb=offload_gb,
        ssd_gb=ssd_gb,
        max_num_seqs=max_num_seqs,
        step_tokens=step_tokens,
        max_model_len=max_model_len,
        kv_blocks=kv_blocks,
        refuse_overlong=overlong is opt.Overlong.REFUSE,
        server=Server(
            vllm_python=vllm_python,
            image=image,
            mounts=tuple(mount or ()),
            weights=weights,
            costs=costs,
            replicas=replicas,
            flags=tuple(flags or ()),
            ready_within_s=ready_within_s,
            turn_timeout_s=turn_timeout_s,
            lost_after_s=lost_after_s,
            stuck_after_s=stuck_after_s,
            text=prompts is opt.Prompts.TEXT,
            events=events,
        ),
        agent=Agents(
            name=agent,
            command=agent_command,
            tasks=tasks,
            guided=guided,
            python=agent_python,
            config=agent_config,
            sandbox=sandbox.value,
            unconfined=i_know_this_runs_model_commands_on_my_machine,
            network=agent_network,
            readable=tuple(agent_reads or ()),
            task_limit_s=task_limit_s,
            processes=agent_processes,
            memory_gb=agent_memory_gb,
            disk_gb=agent_disk_gb,
        ),
    )


def asks(command: Callable[..., None]) -> Callable[..., None]:
    shared, own = inspect.signature(_asked).parameters, inspect.signature(command).parameters

    @wraps(command)
    def with_options(**given: Any) -> None:
        settings = _asked(**{name: given.pop(name) for name in shared})
        command(settings, **given)

    parameters = [*list(own.values())[1:], *shared.values()]
    hints = {
        **get_type_hints(_asked, include_extras=True),
        **get_type_hints(
            command, include_extras=True, localns={"SweepSettings": SweepSettings, "Path": Path}
        ),
    }
    del with_options.__wrapped__  # or its options would be read
    with_options.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [p.replace(kind=p.KEYWORD_ONLY, annotation=hints[p.name]) for p in parameters]
    )
    with_options.__annotations__ = {p.name: hints[p.name] for p in parameters}
    return with_options
