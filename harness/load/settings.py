"""The settings of a sweep: options of `bench` with type, help, panel and default.

`harness.cli.options` converts them to command-line options, and `harness.load.settings_file` reads
them from a TOML file. Other commands select some of them. None means that the default depends on
other settings, as stated in the help.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Annotated, ClassVar

from harness.load.option import Option
from servers.admission import MAX_NUM_SEQS, STEP_TOKENS, Admission
from servers.profiles.cpu_time import Scheduling, StepTimes
from servers.profiles.kv_cache_dtype import KvCacheDtype
from servers.profiles.layout import Layout

DEFAULT_SEEDS = "1..3"
"""Of a search for capacities."""
LOAD, MACHINE, RUN = "The load", "The machine", "The run"
READING = "How traces are read"
SERVER = "A live server (vLLM, SGLang, or a URL)"
AGENT = "Real agents on a live server, instead of a replay"


DISAGGREGATION = ("disaggregate", "transfer_gb_per_s", "transfer_latency_s")
"""Settings of engines in virtual time with separate prefill and decode engines."""
SERVED = (
    *("gpus", "max_model_len", "max_num_seqs", "step_tokens", "admission", "long_prefill"),
    *("long_prefill_adaptive", "watermark", "kv_cache_dtype", "offload_gb", "ssd_gb"),
)
"""Settings of a machine that `bench serve` takes."""


class Keep(StrEnum):
    TURNS = "turns"
    SHOWN = "shown"
    NONE = "none"


class OnError(StrEnum):
    STOP = "stop"
    CONTINUE = "continue"


class Prompts(StrEnum):
    TOKENS = "tokens"
    TEXT = "text"


class Answers(StrEnum):
    GENERATED = "generated"
    RECORDED = "recorded"


class Sandbox(StrEnum):
    BUBBLEWRAP = "bubblewrap"
    CONTAINER = "container"
    NONE = "none"


class Overlong(StrEnum):
    DROP = "drop"
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True)
class Reading:
    """Assumptions about traces for information that their files lack."""

    PANEL: ClassVar = READING

    columns: Annotated[
        str | None,
        Option(
            "Column map of CSV and Parquet traces: program=session_id,start_ms=ts,"
            "prompt_tokens=in,output_tokens=out. Default: columns named like the fields.",
            "FIELD=COLUMN,…",
        ),
    ] = None
    tokenizer: Annotated[
        Path | None,
        Option(
            "A model's tokenizer.json, to count tokens where a file records only text, or the "
            "server of --engine URL reports none. Default: tokens are estimated from characters, "
            "and turns for which the server reports none fail.",
            "FILE",
        ),
    ] = None
    synthesise_gaps: Annotated[
        str | None,
        Option(
            "Draw the tool times that a file does not record, by tool, from a recipe (bench list "
            "packs) or a file of bench traces fit. Default: such files are rejected.",
            "RECIPE",
        ),
    ] = None
    keep_names: Annotated[
        bool,
        Option(
            "Keep the ids of sessions and the names of tools in histories of Claude Code, Codex "
            "and Gemini CLI. Default: sessions and tools that are not well known are numbered."
        ),
    ] = False


NO_ASSUMPTIONS = Reading()
"""Assumes nothing."""


@dataclass(frozen=True, slots=True)
class Load:
    """Which programs run, and when they arrive."""

    PANEL: ClassVar = LOAD

    traces: Annotated[
        tuple[str, ...],
        Option(
            "A trace file, a folder of them, or a pack (bench list packs); repeatable. "
            "Default: swe-bench.",
            "PATH|PACK",
        ),
    ] = ()
    reading: Reading = NO_ASSUMPTIONS
    programs: Annotated[
        int | None,
        Option(
            "Use the first N jobs; with --once, repeat them if there are fewer. Default: all; a "
            "recipe draws new jobs for each seed.",
            "N",
            min=1,
        ),
    ] = None
    arrivals: Annotated[
        str | None,
        Option(
            "poisson, gamma:BURSTINESS, constant, or day:PROFILE, whose rate follows the hours of "
            "a day (office, or a file with 24 relative rates; --jps is their mean); recorded; "
            "closed:N (a fixed set of jobs, N in flight); agents, or agents:SECONDS with a mean "
            "think time between the jobs of an agent. The last three without --jps. Default: "
            "poisson; agents for recorded sessions without --jps, --horizon and --burst.",
            "PROCESS",
        ),
    ] = None
    agents: Annotated[
        str | None,
        Option(
            "Agents in flight, each of which starts a new job when its last one ends: 40, a list "
            "8,16,32, or a range 10..50:10. Reports how many agents each policy sustains, and what "
            "these need. Implies --arrivals agents.",
            "NUMBERS",
        ),
    ] = None
    scenario: Annotated[
        str | None,
        Option(
            "Run --agents under the rules of a published load, agentx or inferencex-agentx-mvp; "
            "--horizon replaces its window. The report shows interactivity against tokens per "
            "second and GPU.",
            "NAME",
        ),
    ] = None
    horizon: Annotated[
        str | None,
        Option(
            "How long jobs arrive at a rate in virtual time, from an empty machine: 8h or 7d, or "
            "24h,5000 for at most 5,000 jobs. All jobs but the burst's are measured, and a rate is "
            "sustained if they meet the SLO. steady: jobs arrive until a steady state after a "
            "burst has been measured. Default: 24h,5000.",
            "TIME[,JOBS]",
        ),
    ] = None
    burst: Annotated[
        str | None,
        Option(
            "Jobs that arrive together at the beginning of the --horizon, and are not measured: "
            "50, or a list such as 0,25,50,100, for a figure of each policy's capacity against the "
            "burst. Default: none.",
            "JOBS",
        ),
    ] = None
    background: Annotated[
        str | None,
        Option(
            "Serve the requests of a trace without sessions alongside the jobs, as single turns at "
            "this many requests per second (Poisson): mooncake.jsonl@2. JCTs and capacities "
            "exclude them; the report has their latencies.",
            "FILE@RATE",
        ),
    ] = None
    background_columns: Annotated[
        str | None,
        Option("Column map of --background, as --columns.", "FIELD=COLUMN,…"),
    ] = None
    once: Annotated[
        bool,
        Option(
            "Run a fixed set of jobs until all have finished, as recorded arrivals, closed loops "
            "and live servers always do. Otherwise jobs arrive for a --horizon, or agents start "
            "them until a steady state has been measured."
        ),
    ] = False
    overlong: Annotated[
        Overlong,
        Option(
            "Jobs that exceed the longest context or the KV memory: drop and list them, or refuse "
            "to start."
        ),
    ] = Overlong.DROP

    @property
    def process(self) -> str:
        """The arrival process: `agents` if their number is given. `harness.sweep.resolve` chooses
        another one for recorded sessions."""
        arrivals = self.arrivals or "poisson"
        chosen = self.agents is not None or self.scenario is not None
        implied = chosen and arrivals == "poisson"
        return "agents" if implied else arrivals


@dataclass(frozen=True, slots=True)
class Machine:
    """The engine, its model, and its memory."""

    PANEL: ClassVar = MACHINE

    engine: Annotated[
        str,
        Option(
            "sim: virtual time, no GPU needed. vllm: starts a vLLM server for each cell. "
            "vllm-virtual: vLLM's own scheduler in virtual time, to check sim. sglang: starts an "
            "SGLang server for each cell, with SGLang's own scheduler. "
            "sglang-sim: virtual time with SGLang's rules, no SGLang needed. "
            "sglang-virtual: SGLang's own scheduler in virtual time, to check sglang-sim. "
            "dynamo-mocker: NVIDIA Dynamo's routers, live, with mock workers. "
            "http://…: a running server with its own scheduler; TURNSTILE_API_KEY is its API key.",
            "NAME",
        ),
    ] = "sim"
    hardware: Annotated[
        str | None,
        Option(
            "A name from bench list hardware, a TOML file that describes a GPU, or a file from "
            "bench profile. In virtual time also several, with commas. Default: a100-80g; with "
            "vLLM, this machine.",
            "NAME|FILE",
            is_list=True,
        ),
    ] = None
    model: Annotated[
        str | None,
        Option(
            "A name from bench list models, a config.json, a model's folder, or the Hugging Face "
            "id of a cached model. In virtual time also several, with commas. With vLLM also tiny "
            "(created locally; the default on a CPU) and any Hugging Face id. Default: "
            "llama-3.1-8b.",
            "NAME|PATH|ID",
            is_list=True,
        ),
    ] = None
    step_times: Annotated[
        StepTimes,
        Option(
            "tables: measured on the GPU, or analytic if no operator tables cover it and the "
            "model. analytic: from published peaks."
        ),
    ] = StepTimes.TABLES
    gpus: Annotated[
        int | None,
        Option(
            "GPUs that share one model. Default: the model's usual number.",
            "N",
            min=1,
        ),
    ] = None
    layout: Annotated[
        Layout,
        Option(
            "How they share it. tp: tensor parallel. pp: each GPU has some of the layers (vLLM's "
            "--pipeline-parallel-size). dp-attn: each GPU has a scheduler and KV of its own, and "
            "all share the experts (vLLM's --data-parallel-size with --enable-expert-parallel); "
            "--router distributes the turns over them. Virtual time, and pp with vLLM.",
            opt_in=True,
        ),
    ] = Layout.TP
    offload_gb: Annotated[
        float | None,
        Option(
            "DRAM for the KV of policies that offload (lmcache, continuum+, …). Default, as in the "
            "papers: 200 per H100, H200 or B200, else 100 per GPU; 1 for vLLM on a CPU.",
            "GB",
            min=0,
        ),
    ] = None
    ssd_gb: Annotated[float, Option("Size of an SSD tier behind the DRAM.", "GB", min=0)] = 0.0
    max_num_seqs: Annotated[int, Option("Limit of concurrently running turns.", "N")] = MAX_NUM_SEQS
    step_tokens: Annotated[
        int,
        Option("Most tokens per engine step (vLLM's --max-num-batched-tokens).", "TOKENS"),
    ] = STEP_TOKENS
    admission: Annotated[
        Admission,
        Option(
            "How much of a waiting turn's prompt must fit into free KV memory before the turn is "
            "admitted: all of it, or its first chunk (as in vLLM before March 2026)."
        ),
    ] = Admission.WHOLE_PROMPT
    long_prefill: Annotated[
        int,
        Option(
            "Most prompt tokens that a turn gets of a step while other turns run or wait (vLLM's "
            "--long-prefill-token-threshold). 0: no cap. Also an argument of each policy: "
            "'fcfs(long_prefill=512)'.",
            "TOKENS",
            min=0,
        ),
    ] = 0
    long_prefill_adaptive: Annotated[
        bool,
        Option(
            "Raise --long-prefill to an equal share of --step-tokens among the turns that run and "
            "wait."
        ),
    ] = False
    watermark: Annotated[
        float,
        Option(
            "Share of the KV blocks that the admission of a turn leaves free while another turn "
            "runs (vLLM's --watermark).",
            "SHARE",
            min=0,
        ),
    ] = 0.0
    speculate: Annotated[
        str | None,
        Option(
            "Speculative decoding in virtual time: METHOD:DRAFTS with the share of drafts that are "
            "accepted if those before them were, or one rate per position as vLLM logs them: "
            "mtp:3,accept=0.8 or eagle3:3,accept=0.9,0.7,0.5. Methods: ngram, eagle, eagle3, mtp. "
            "draft=0.05 is the time of one draft as a share of a step. Default: none.",
            "METHOD:DRAFTS,…",
        ),
    ] = None
    scheduling: Annotated[
        Scheduling,
        Option(
            "CPU time between steps in virtual time. async: vLLM since 0.14, which schedules a"
            " step while the GPU computes the previous one. sync: vLLM 0.10.2, in which the GPU"
            " waits, as published in the papers."
        ),
    ] = Scheduling.ASYNC
    kv_cache_dtype: Annotated[
        KvCacheDtype,
        Option(
            "Format of the KV cache. auto: 16 bits, or FP8 where the checkpoint declares it. fp8: "
            "half the bytes per token."
        ),
    ] = KvCacheDtype.AUTO
    max_model_len: Annotated[
        int | None, Option("Longest context. Default: the model's.", "TOKENS", min=1)
    ] = None
    kv_blocks: Annotated[
        int | None,
        Option(
            "Size of the KV cache in blocks of 16 tokens (vLLM on a CPU: 32). Default: the free "
            "memory.",
            "N",
            min=1,
        ),
    ] = None


@dataclass(frozen=True, slots=True)
class Server:
    """Settings of live engines (`--engine vllm`, `--engine sglang`, `--engine URL`)."""

    PANEL: ClassVar = SERVER

    vllm_flags: Annotated[
        tuple[str, ...],
        Option(
            "Flags that are passed unchanged to vLLM, SGLang, or each mocker worker of Dynamo.",
            "-- VLLM_FLAGS",
            positional=True,
        ),
    ] = ()
    vllm_python: Annotated[
        str | None,
        Option(
            "Python interpreter of the environment with vLLM. Default: the current one if it "
            "has vLLM, else the one in .venv-vllm.",
            "PATH",
            envvar="TURNSTILE_VLLM_PYTHON",
        ),
    ] = None
    image: Annotated[
        str | None,
        Option(
            "Run vLLM in a container of this image (vllm/vllm-openai:…), over the Docker API; "
            "--vllm-python is then the Python inside.",
            "IMAGE",
        ),
    ] = None
    mount: Annotated[
        tuple[Path, ...],
        Option("Mount a folder read-only in the container; repeatable.", "FOLDER"),
    ] = ()
    weights: Annotated[
        str,
        Option(
            "dummy: no weights are read; random: small weights, for tiny; auto: random for tiny, "
            "the stored weights for a model folder, else dummy.",
            "KIND",
        ),
    ] = "auto"
    costs: Annotated[
        Path | None,
        Option(
            "Costs for policies, instead of costs from a profile: JSON with base_s, linear_s, "
            "quadratic_s, step_tokens, and optionally decode_step.",
            "FILE",
        ),
    ] = None
    replicas: Annotated[
        int,
        Option(
            "Servers of the same model. --router distributes the turns over them.",
            "N",
            min=1,
            panel=MACHINE,
        ),
    ] = 1
    disaggregate: Annotated[
        str | None,
        Option(
            "Prefill and decode engines, such as 1P1D or 2P6D, instead of --replicas that do both. "
            "A list compares splits with the same number of engines; none stands for "
            "as many replicas. In virtual time; one split also with --engine dynamo-mocker.",
            "SPLITS",
            panel=MACHINE,
        ),
    ] = None
    transfer_gb_per_s: Annotated[
        float | None,
        Option(
            "Bandwidth from a prefill engine of --disaggregate to a decode engine, in 10⁹ bytes. "
            "Default: the links of its GPUs (NVLink, else PCIe).",
            "GB/S",
            panel=MACHINE,
        ),
    ] = None
    transfer_latency_s: Annotated[
        float,
        Option(
            "Time before the first byte of each such transfer.", "SECONDS", min=0, panel=MACHINE
        ),
    ] = 0.0
    router: Annotated[
        str | None,
        Option(
            "Comma-separated names from bench list routers, or your classes, optionally with "
            "arguments, for several --replicas; each policy runs behind each router. With --engine "
            "vllm also routers of other projects, such as vllm-router:consistent_hash or, with "
            "--prompts text, sglang-router:manual; with dynamo-mocker Dynamo's. Default: "
            "sticky; dynamo:kv with dynamo-mocker; in bench serve none, so that it prints the URLs "
            "of all servers.",
            "NAMES",
            panel=MACHINE,
        ),
    ] = None
    ready_within_s: Annotated[
        float, Option("Longest time for a server to start.", "SECONDS", min=1)
    ] = 900.0
    turn_timeout_s: Annotated[
        float, Option("Fail a turn that takes longer.", "SECONDS", min=0.001)
    ] = 3600.0
    lost_after_s: Annotated[
        float,
        Option("Fail the cell if the server does not respond for this long.", "SECONDS", min=0.001),
    ] = 60.0
    stuck_after_s: Annotated[
        float,
        Option(
            "Fail the cell if the server responds but no running turn makes progress for this "
            "long.",
            "SECONDS",
            min=0.001,
        ),
    ] = 900.0
    prompts: Annotated[
        Prompts,
        Option(
            "tokens: random token ids of the recorded lengths. text: the recorded messages, for "
            "traces that have them."
        ),
    ] = Prompts.TOKENS
    answers: Annotated[
        Answers,
        Option(
            "generated: the model's tokens, as many as were recorded. recorded: vLLM computes the "
            "recorded answers token for token, so that later prompts, which contain them, find "
            "their KV. With --prompts text."
        ),
    ] = Answers.GENERATED
    events: Annotated[
        Path | None,
        Option("Event log of a server of bench serve, which prints its path.", "FILE"),
    ] = None


@dataclass(frozen=True, slots=True)
class Agents:
    PANEL: ClassVar = AGENT

    agent: Annotated[
        str | None, Option("mini-swe-agent or openhands; one process per program.", "NAME")
    ] = None
    agent_command: Annotated[
        str | None,
        Option(
            "Command line of another agent, for example 'my-agent {task} --base-url {base_url}'. "
            "Other placeholders: {model}, {workspace}, {program_id}, {folder}. No shell is used.",
            "COMMAND",
        ),
    ] = None
    tasks: Annotated[
        Path | None,
        Option(
            "JSON lines: SWE-bench rows, or objects with id, task and optionally a workspace to "
            "copy.",
            "FILE",
        ),
    ] = None
    guided: Annotated[
        bool,
        Option(
            "Take the model's answers from --traces, while the engine does the recorded work for "
            "each. Agents and tools are real; no capable model is needed."
        ),
    ] = False
    agent_python: Annotated[
        str | None,
        Option(
            "Python interpreter of the environment with the agent. Default: the one in "
            ".venv-agents or .venv-openhands.",
            "PATH",
        ),
    ] = None
    agent_config: Annotated[
        Path | None,
        Option(
            "YAML file that overrides settings of mini-swe-agent.",
            "FILE",
            exists=True,
            dir_okay=False,
        ),
    ] = None
    task_limit_s: Annotated[
        float, Option("Stop and fail a program that takes longer.", "SECONDS", min=0.001)
    ] = 900.0
    sandbox: Annotated[
        Sandbox,
        Option(
            "bubblewrap: runs the whole agent. container: runs mini-swe-agent's commands in the "
            "task's image. none: no sandbox on this machine."
        ),
    ] = Sandbox.BUBBLEWRAP
    agent_network: Annotated[bool, Option("Let the sandbox reach the network.")] = False
    agent_reads: Annotated[
        tuple[Path, ...],
        Option("Path that is readable in the sandbox; repeatable.", "PATH", exists=True),
    ] = ()
    agent_processes: Annotated[
        int, Option("Maximum number of processes and threads per program.", "N", min=8)
    ] = 256
    agent_memory_gb: Annotated[float, Option("Memory of one program.", "GB", min=0.1)] = 4.0
    agent_disk_gb: Annotated[
        float,
        Option("Disk space of one program, including files of its task.", "GB", min=0.1),
    ] = 10.0
    i_know_this_runs_model_commands_on_my_machine: Annotated[
        bool, Option("Required by --sandbox none.", in_file=False)
    ] = False

    @property
    def flag(self) -> str:
        """The command-line option that selects the agent, as error messages name it."""
        return f"--agent {self.agent}" if self.agent_command is None else "--agent-command"


@dataclass(frozen=True, slots=True)
class SweepSettings:
    """Everything that determines the results of a sweep."""

    PANEL: ClassVar = LOAD

    jps: Annotated[
        str | None,
        Option(
            "Jobs per second: 0.3, a list 0.1,0.3, a range 0.05..0.9 on the papers' grid, "
            "0.1..0.5:0.1 with a step, or auto: rates around the baseline's capacity. Default: "
            "auto; none for agents; for a fixed set of jobs 0.05..0.9.",
            "RATES",
        ),
    ] = None
    slo: Annotated[
        str | None,
        Option(
            "Limits that a sustained load must meet, in quotes: of the JCT, such as 'mean<=2x'"
            " (twice the mean on an idle machine) or 'p95<=300s', and of turns, such as"
            " 'ttft_p95<=5s', first_ttft_p95, tpot_p95<=50ms, and speed_p90>=30 (90% of the turns"
            " get 30 output tokens/s, from sending to the last token). Default: mean<=2x, and for"
            " agents ttft_p95<=5s.",
            "LIMITS",
        ),
    ] = None
    no_capacity: Annotated[
        bool,
        Option(
            "Run the rates of --jps only; do not search for the highest rate that each policy "
            "sustains."
        ),
    ] = False
    policies: Annotated[
        str,
        Option(
            "Comma-separated names from bench list policies, all, or your classes "
            "(my.module:MyPolicy), optionally with arguments: 'continuum(k=50)'. A final + adds "
            "an offload tier, +native vLLM's own.",
            "NAMES",
        ),
    ] = "all"
    seeds: Annotated[
        str | None,
        Option(
            "Seeds of the arrivals, which are the same for every policy: 1, 1,2,3 or 1..5. "
            "Default: 1..3, and more as --until says; for a fixed set of jobs 1.",
            "SEEDS",
        ),
    ] = None
    until: Annotated[
        str | None,
        Option(
            "Add seeds, up to 24, until the 95% interval of each capacity ratio is within plus or "
            "minus this share, such as 5%; or until each policy is separated from the best one or "
            "equal to it within 3%, in about this time on four fast cores, such as 5min, or "
            "however long it takes (separated). Default, without seeds and loads: 1min.",
            "SHARE|TIME|separated",
            panel=RUN,
            in_file=False,
        ),
    ] = None
    baseline: Annotated[
        str | None,
        Option(
            "The policy that the others are compared with. Default: fcfs, with several replicas "
            "fcfs@sticky, else the first one.",
            "POLICY",
            panel=RUN,
        ),
    ] = None
    aa: Annotated[
        bool,
        Option(
            "Measure the baseline twice, the second time as NAME#2: the difference is the"
            " measurement noise. For live engines.",
            panel=RUN,
        ),
    ] = False
    repeats: Annotated[
        int,
        Option(
            "Run each cell N times, so that intervals of one seed cover the machine's variation. "
            "For live engines.",
            "N",
            panel=RUN,
            min=1,
        ),
    ] = 1
    price: Annotated[
        str | None,
        Option(
            "USD per GPU and hour: 2.5, or by hardware h100=2.5,a100-80g=1.5. Default: the price "
            "in the GPU file, or a list price (bench list hardware).",
            "USD",
            panel=MACHINE,
        ),
    ] = None
    api_price: Annotated[
        str | None,
        Option(
            "Prices of an API in USD per million tokens: 0.5,5,25. The report compares what the "
            "jobs cost there, with earlier turns of the same job as cached input.",
            "CACHED,INPUT,OUTPUT",
            panel=MACHINE,
        ),
    ] = None
    load: Load = field(default_factory=Load)
    machine: Machine = field(default_factory=Machine)
    server: Server = field(default_factory=Server)
    agents: Agents = field(default_factory=Agents)


@dataclass(frozen=True, slots=True)
class Execution:
    """Where and how a sweep runs, which does not affect its results."""

    PANEL: ClassVar = RUN

    out: Annotated[
        Path | None,
        Option(
            "Run folder. Default: a folder in runs/ named after the settings. The same command "
            "resumes.",
            "FOLDER",
        ),
    ] = None
    workers: Annotated[int | None, Option("Parallel processes. Default: all cores.", "N")] = None
    keep: Annotated[
        Keep | None,
        Option(
            "Which cells in virtual time keep their turns; others keep only numbers. shown: those "
            "that the report can draw, with the first seed, at the rates of its table. Default: "
            "shown if capacities are searched, else turns."
        ),
    ] = None
    on_error: Annotated[OnError, Option("Stop when a cell fails, or run the others.")] = (
        OnError.CONTINUE
    )
    fresh: Annotated[
        bool,
        Option(
            "Do not reuse finished cells of other runs under runs/. Finished cells in --out are "
            "kept."
        ),
    ] = False
    shard: Annotated[
        str | None,
        Option(
            "Run the K-th of N shares of the cells, such as 3/16, into an --out that all shards "
            "share. bench report FOLDER writes the report.",
            "K/N",
            in_file=False,
        ),
    ] = None
    cluster: Annotated[
        str | None,
        Option(
            "Run cells as tasks of a Ray cluster: ray (this machine, or this Ray job's cluster), "
            "HOST:6379 on one of its nodes, or ray://HOST:10001. --workers limits the cells at a "
            "time.",
            "ADDRESS",
            in_file=False,
        ),
    ] = None
