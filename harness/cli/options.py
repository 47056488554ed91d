"""The options that `bench` commands share: names, units, help and completion, each said once."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class OnError(StrEnum):
    STOP = "stop"
    CONTINUE = "continue"


class Prompts(StrEnum):
    TOKENS = "tokens"
    TEXT = "text"


class Sandbox(StrEnum):
    BUBBLEWRAP = "bubblewrap"
    CONTAINER = "container"
    NONE = "none"


class Overlong(StrEnum):
    DROP = "drop"
    REFUSE = "refuse"


def _policies(incomplete: str) -> list[str]:
    from harness.cli.catalogue import policy_names

    before, comma, last = incomplete.rpartition(",")
    return [before + comma + n for n in ["all", *policy_names()] if n.startswith(last)]


def _hardware(incomplete: str) -> list[str]:
    from harness.cli.catalogue import hardware_names

    return [name for name in hardware_names() if name.startswith(incomplete)]


def _models(incomplete: str) -> list[str]:
    from harness.cli.catalogue import model_names

    return [name for name in model_names() if name.startswith(incomplete)]


def _agents(incomplete: str) -> list[str]:
    from harness.load.agent_plan import AGENTS

    return [name for name in AGENTS.names() if name.startswith(incomplete)]


LOAD, MACHINE, RUN = "The load", "The machine", "The run"
SERVER = "A live server (vLLM, or a URL)"
AGENT = "Real agents on a live server, instead of a replay"

Jps = Annotated[
    str | None,
    typer.Option(
        "--jps",
        metavar="RATES",
        help="Jobs per second: 0.3, a list 0.1,0.3, a range 0.05..0.9 on the sources' grid, or "
        "0.1..0.5:0.1 with a step. Default: 0.05..0.9.",
        rich_help_panel=LOAD,
    ),
]
OneJps = Annotated[
    str | None,
    typer.Option("--jps", metavar="RATE", help="Jobs per second.", rich_help_panel=LOAD),
]
Policies = Annotated[
    str,
    typer.Option(
        "--policies",
        metavar="NAMES",
        help="A comma list of bench list policies, all, or a class of yours (my.module:MyPolicy), "
        "with arguments if it takes any: 'continuum(k=50)'. A + after one runs it over an offload "
        "tier, +native over vLLM's own.",
        autocompletion=_policies,
        rich_help_panel=LOAD,
    ),
]
OnePolicy = Annotated[
    str,
    typer.Option(
        "--policy",
        metavar="NAME",
        help="One policy of bench list policies, with arguments if it takes any.",
        autocompletion=_policies,
        show_default=False,
        rich_help_panel=LOAD,
    ),
]
Traces = Annotated[
    list[str] | None,
    typer.Option(
        "--traces",
        metavar="PATH|PACK",
        help="A trace file, a folder of them, or a pack (bench list packs); repeatable. "
        "Default: swe-bench.",
        rich_help_panel=LOAD,
    ),
]
Arrivals = Annotated[
    str,
    typer.Option(
        "--arrivals",
        metavar="PROCESS",
        help="poisson, gamma:BURSTINESS, constant, recorded, or closed:N (N jobs in flight); "
        "the last two take no --jps.",
        rich_help_panel=LOAD,
    ),
]
Programs = Annotated[
    int | None,
    typer.Option(
        "--programs",
        metavar="N",
        min=1,
        help="Use the first N jobs, repeating them where there are fewer. Default: all.",
        rich_help_panel=LOAD,
    ),
]
Seeds = Annotated[
    str,
    typer.Option(
        "--seeds",
        metavar="SEEDS",
        help="Draws of the arrivals, the same for every policy: 1, 1,2,3 or 1..5.",
        rich_help_panel=LOAD,
    ),
]
OverlongPrograms = Annotated[
    Overlong,
    typer.Option(
        "--overlong",
        help="Jobs that can never fit the context or the KV memory: leave them out and say which, "
        "or refuse the question.",
        rich_help_panel=LOAD,
    ),
]
Engine = Annotated[
    str,
    typer.Option(
        "--engine",
        metavar="NAME",
        help="sim: virtual time, no GPU needed. vllm: a vLLM of its own for each cell. "
        "vllm-virtual: vLLM's own scheduler in virtual time, to check sim. "
        "http://…: a server that runs already, with the scheduler that it has; "
        "TURNSTILE_API_KEY in the environment is its key.",
        rich_help_panel=MACHINE,
    ),
]
Hardware = Annotated[
    str | None,
    typer.Option(
        "--hardware",
        metavar="NAME|FILE",
        help="bench list hardware, or a file of bench profile. Default: b200; with vLLM the "
        "machine here.",
        autocompletion=_hardware,
        rich_help_panel=MACHINE,
    ),
]
Model = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="NAME",
        help="bench list models. With vLLM also tiny (built on the spot; default on a CPU), a "
        "model's folder, or a Hugging Face name. Default: llama-3.1-8b.",
        autocompletion=_models,
        rich_help_panel=MACHINE,
    ),
]
Gpus = Annotated[
    int | None,
    typer.Option(
        "--gpus",
        metavar="N",
        min=1,
        help="GPUs that hold one model together (tensor parallel). Default: the model's usual.",
        rich_help_panel=MACHINE,
    ),
]
OffloadGb = Annotated[
    float | None,
    typer.Option(
        "--offload-gb",
        metavar="GB",
        min=0,
        help="DRAM for the KV of policies that offload (lmcache, continuum+, …). Default, as the "
        "sources: 200 per H100, H200 or B200, else 100 per GPU; of a vLLM on a CPU 1.",
        rich_help_panel=MACHINE,
    ),
]
SsdGb = Annotated[
    float,
    typer.Option(
        "--ssd-gb", metavar="GB", min=0, help="SSD behind that DRAM.", rich_help_panel=MACHINE
    ),
]
MaxNumSeqs = Annotated[
    int,
    typer.Option(
        "--max-num-seqs", metavar="N", help="Turns running at once.", rich_help_panel=MACHINE
    ),
]
StepTokens = Annotated[
    int,
    typer.Option(
        "--step-tokens",
        metavar="TOKENS",
        help="Tokens that one engine step computes at most (prefill chunk).",
        rich_help_panel=MACHINE,
    ),
]
MaxModelLen = Annotated[
    int | None,
    typer.Option(
        "--max-model-len",
        metavar="TOKENS",
        min=1,
        help="Longest context. Default: the model's.",
        rich_help_panel=MACHINE,
    ),
]
KvBlocks = Annotated[
    int | None,
    typer.Option(
        "--kv-blocks",
        metavar="N",
        min=1,
        help="KV pool in blocks of 16 tokens (vLLM on a CPU: 32). Default: what the memory leaves.",
        rich_help_panel=MACHINE,
    ),
]
Baseline = Annotated[
    str | None,
    typer.Option(
        "--baseline",
        metavar="POLICY",
        help="What the others are held against. Default: fcfs, or else the first of --policies.",
        autocompletion=_policies,
        rich_help_panel=RUN,
    ),
]
Out = Annotated[
    Path | None,
    typer.Option(
        "--out",
        metavar="FOLDER",
        help="Run folder. Default: runs/, named after the question, so that the same command "
        "resumes.",
        rich_help_panel=RUN,
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(
        "--workers",
        metavar="N",
        help="Processes; changes nothing but the time it takes. Default: all cores.",
        rich_help_panel=RUN,
    ),
]
OnErrorOption = Annotated[
    OnError,
    typer.Option(
        "--on-error", help="When a cell fails: stop, or run the others.", rich_help_panel=RUN
    ),
]

Fresh = Annotated[
    bool,
    typer.Option(
        "--fresh",
        help="Run every cell, even one that is finished with the same settings in another run "
        "under runs/.",
        rich_help_panel=RUN,
    ),
]

VllmPython = Annotated[
    str | None,
    typer.Option(
        "--vllm-python",
        metavar="PATH",
        envvar="TURNSTILE_VLLM_PYTHON",
        help="Python of the environment that has vLLM. Default: this one, or .venv-vllm.",
        rich_help_panel=SERVER,
    ),
]
Image = Annotated[
    str | None,
    typer.Option(
        "--image",
        metavar="IMAGE",
        help="Run vLLM in a container of this image (vllm/vllm-openai:…), over the Docker API; "
        "--vllm-python is then the Python inside.",
        rich_help_panel=SERVER,
    ),
]
Mounts = Annotated[
    list[Path] | None,
    typer.Option(
        "--mount",
        metavar="FOLDER",
        help="Another folder that the container sees, read-only; repeatable.",
        rich_help_panel=SERVER,
    ),
]
Weights = Annotated[
    str,
    typer.Option(
        "--weights",
        metavar="KIND",
        help="dummy: nothing is read; random: small ones, for tiny; auto: random for tiny, "
        "a folder's own for a folder, else dummy.",
        rich_help_panel=SERVER,
    ),
]
CostsFile = Annotated[
    Path | None,
    typer.Option(
        "--costs",
        metavar="FILE",
        help="What a prefill costs, told to policies instead of a profile's: JSON with base_s, "
        "linear_s, quadratic_s, step_tokens.",
        rich_help_panel=SERVER,
    ),
]
Replicas = Annotated[
    int,
    typer.Option(
        "--replicas",
        metavar="N",
        min=1,
        help="Servers side by side; a job stays on one.",
        rich_help_panel=SERVER,
    ),
]
ReadyWithin = Annotated[
    float,
    typer.Option(
        "--ready-within-s",
        metavar="SECONDS",
        min=1,
        help="Give up on a server that takes longer to start.",
        rich_help_panel=SERVER,
    ),
]
TurnTimeout = Annotated[
    float,
    typer.Option(
        "--turn-timeout-s",
        metavar="SECONDS",
        min=0.001,
        help="A turn that takes longer has failed.",
        rich_help_panel=SERVER,
    ),
]
LostAfter = Annotated[
    float,
    typer.Option(
        "--lost-after-s",
        metavar="SECONDS",
        min=0.001,
        help="A server that answers nothing for so long is lost, and the cell has failed.",
        rich_help_panel=SERVER,
    ),
]
StuckAfter = Annotated[
    float,
    typer.Option(
        "--stuck-after-s",
        metavar="SECONDS",
        min=0.001,
        help="The same of a server that answers, while none of its turns under way goes on.",
        rich_help_panel=SERVER,
    ),
]
PromptsOption = Annotated[
    Prompts,
    typer.Option(
        "--prompts",
        help="tokens: random ids of the recorded lengths. text: the recorded messages verbatim, "
        "for traces that have them.",
        rich_help_panel=SERVER,
    ),
]
EventsFile = Annotated[
    Path | None,
    typer.Option(
        "--events",
        metavar="FILE",
        help="Of a server that runs already and is ours: the events that bench serve names.",
        rich_help_panel=SERVER,
    ),
]
VllmFlags = Annotated[
    list[str] | None,
    typer.Argument(metavar="-- VLLM_FLAGS", help="For vLLM itself.", show_default=False),
]

AgentName = Annotated[
    str | None,
    typer.Option(
        "--agent",
        metavar="NAME",
        help="mini-swe-agent or openhands: a process of it for each program.",
        autocompletion=_agents,
        rich_help_panel=AGENT,
    ),
]
AgentCommand = Annotated[
    str | None,
    typer.Option(
        "--agent-command",
        metavar="COMMAND",
        help="Any other agent, such as 'my-agent {task} --base-url {base_url}'; also {model}, "
        "{workspace}, {program_id}, {folder}. No shell reads it.",
        rich_help_panel=AGENT,
    ),
]
TasksFile = Annotated[
    Path | None,
    typer.Option(
        "--tasks",
        metavar="FILE",
        help="JSON lines, a task each: SWE-bench rows, or id and task, and a workspace to copy.",
        rich_help_panel=AGENT,
    ),
]
Guided = Annotated[
    bool,
    typer.Option(
        "--guided",
        help="Agents and tools are real, answers come from --traces, and the engine does the "
        "recorded work for each: no capable model is needed.",
        rich_help_panel=AGENT,
    ),
]
AgentPython = Annotated[
    str | None,
    typer.Option(
        "--agent-python",
        "--openhands-python",
        metavar="PATH",
        help="Python of the environment that has the agent. Default: .venv-agents or "
        ".venv-openhands.",
        rich_help_panel=AGENT,
    ),
]
AgentConfig = Annotated[
    Path | None,
    typer.Option(
        "--agent-config",
        metavar="FILE",
        exists=True,
        dir_okay=False,
        help="Settings of mini-swe-agent (YAML), over its own.",
        rich_help_panel=AGENT,
    ),
]
TaskLimit = Annotated[
    float,
    typer.Option(
        "--task-limit-s",
        metavar="SECONDS",
        min=0.001,
        help="A program that takes longer is ended and has failed.",
        rich_help_panel=AGENT,
    ),
]
SandboxOption = Annotated[
    Sandbox,
    typer.Option(
        "--sandbox",
        help="bubblewrap: the whole agent in one. container: mini-swe-agent's commands in the "
        "task's image. none: on this machine.",
        rich_help_panel=AGENT,
    ),
]
AgentNetwork = Annotated[
    bool,
    typer.Option(
        "--agent-network", help="Let the sandbox reach the network.", rich_help_panel=AGENT
    ),
]
AgentReads = Annotated[
    list[Path] | None,
    typer.Option(
        "--agent-reads",
        metavar="PATH",
        exists=True,
        help="Another path that the sandbox shows, read-only; repeatable.",
        rich_help_panel=AGENT,
    ),
]
AgentProcesses = Annotated[
    int,
    typer.Option(
        "--agent-processes",
        metavar="N",
        min=8,
        help="Processes and threads of one program.",
        rich_help_panel=AGENT,
    ),
]
AgentMemory = Annotated[
    float,
    typer.Option(
        "--agent-memory-gb",
        metavar="GB",
        min=0.1,
        help="Memory of one program.",
        rich_help_panel=AGENT,
    ),
]
AgentDisk = Annotated[
    float,
    typer.Option(
        "--agent-disk-gb",
        metavar="GB",
        min=0.1,
        help="Files of one program, those of its task included.",
        rich_help_panel=AGENT,
    ),
]
Unconfined = Annotated[
    bool,
    typer.Option(
        "--i-know-this-runs-model-commands-on-my-machine",
        help="What --sandbox none asks for.",
        rich_help_panel=AGENT,
    ),
]
