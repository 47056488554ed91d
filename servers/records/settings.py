"""The settings that sweep.json and each cell.json record alike."""

from __future__ import annotations

from typing import ClassVar

from msgspec import field

from servers.basics.phrasing import counted, time_span
from servers.records.fields import (
    Count,
    Integer,
    Name,
    Number,
    Printable,
    Rate,
    Record,
    Scalar,
    Seconds,
    Tokens,
)

Numbers = dict[str, Scalar]
"""Settings that pages show by name."""


class RouterRecord(Record, kw_only=True, frozen=True):
    """The router in front of several replicas."""

    name: Name
    router: str | None = None
    """Class of one of our routers."""
    version: str | None = None
    source: str | None = None
    sha256: str | None = None
    """Hash of a user's router and its imports."""


class SplitRecord(Record, kw_only=True, frozen=True):
    """Separate engines for prompts and for answers."""

    name: Name
    prefill: Count | None = None
    decode: Count | None = None


class OffloadRecord(Record, kw_only=True, frozen=True):
    """The offload tier, with sizes in 10⁹ bytes."""

    kind: Name | None = None
    """vLLM's connector in live cells."""
    dram_gb: Number | None = None
    ssd_gb: Number | None = None
    chunk_tokens: Tokens | None = None


class WindowTimesRecord(Record, kw_only=True, frozen=True):
    """Step times of layers with a sliding window, or with chunks."""

    tokens: Count
    context_ps: Count
    pair_ps: Count
    chunked: bool = False


class ProfileRecord(Record, kw_only=True, frozen=True):
    """The step times and the KV memory of a machine: the fields of `servers.profiles.Profile`."""

    hardware: Name | None = None
    model: Name | None = None
    provenance: Name | None = None
    kv_blocks: Count | None = None
    block_tokens: Count | None = None
    max_model_len: Count | None = None
    kv_bytes_per_token: Integer | None = None
    base_ps: Count | None = None
    weights_ps: Integer | None = None
    token_ps: Integer | None = None
    sequence_ps: Integer | None = None
    context_ps: Integer | None = None
    pair_ps: Integer | None = None
    request_ps: Integer | None = None
    request_token_ps: Integer = 0
    dram_bytes_per_s: Number | None = None
    ssd_bytes_per_s: Number | None = None
    kv_groups: tuple[Integer | None, ...] = (None,)
    block_lengths: tuple[Count, Count] = (1, 1)
    load_ps: Integer | None = None
    load_token_ps: Integer | None = None
    graph_tokens: Integer = 0
    schedules_ahead: bool = False
    window: WindowTimesRecord | None = None
    knots: tuple[tuple[Count, Count], ...] | None = None
    decode_ps: Integer | None = None
    prefill_ps: Integer | None = None
    mean_context_ps: Integer | None = None


class LimitsRecord(Record, kw_only=True, frozen=True):
    """The limits of a step."""

    max_num_seqs: Count | None = None
    step_tokens: Tokens | None = None
    admission: Name | None = None
    """Absent for SGLang and servers at a URL."""
    long_prefill: Tokens | None = None
    """Most tokens of one turn in a step."""
    long_prefill_adaptive: bool | None = None
    """Whether the cap is at least an equal share of the step."""
    watermark: Number | None = None
    """Share of the KV blocks that admissions leave free."""
    speculate: Name | None = None


class TransferRecord(Record, kw_only=True, frozen=True):
    """The link of a prefill engine."""

    bytes_per_s: Number
    latency_s: Seconds


class ServerRecord(Record, kw_only=True, frozen=True):
    """The versions of the software of live servers, and options that were given."""

    vllm: str | None = None
    torch: str | None = None
    sglang: str | None = None
    dynamo: str | None = None
    image: str | None = None
    weights: str | None = None
    gpus: Count | None = None
    replicas: Count | None = None
    disaggregate: str | None = None
    kv_gb_per_s: Number | None = None
    """Bandwidth from prefill to decode workers."""
    kv_blocks: Count | None = None
    max_model_len: Tokens | None = None
    flags: tuple[str, ...] = ()
    turn_timeout_s: Seconds | None = None
    prompts: Name | None = None
    """`text` or `tokens`."""
    answers: Name | None = None
    """`recorded`, or absent if the model generates them."""


class AgentRecord(Record, kw_only=True, frozen=True):
    """Real agents."""

    name: Printable | None = None
    version: Printable | None = None
    guided: bool = False
    """Whether they get the answers of recorded programs."""
    tasks_sha256: str | None = None
    task_limit_s: Seconds | None = None
    reads: tuple[str, ...] = ()
    config: str | None = None
    """Text of `--agent-config`, with keys as `***`."""
    sandbox: Numbers | None = None


class BackgroundRecord(Record, kw_only=True, frozen=True):
    """Requests alongside the jobs."""

    name: Printable
    requests_per_s: Rate
    requests: Count
    trace_sha256: str | None = None
    left_out: Count = 0


class LeftOutProgram(Record, frozen=True):
    """A program that does not fit, and the reason."""

    program_id: str
    reason: str


class WorkloadRecord(Record, kw_only=True, frozen=True):
    """The programs of the jobs."""

    name: Printable | None = None
    programs: Count | None = None
    turns: Count | None = None
    """Absent if real agents decide it."""
    trace_sha256: Scalar = None
    """Hash of the files and of how they are read."""
    gap_provenance: dict[Name, Count] = field(default_factory=dict)
    """Tool gaps by the origin of their length."""
    shared_prefix_tokens: Tokens | None = None
    """Shared prefixes of first prompts, except for the first program with each."""
    sub_agents: Count = 0
    inferred_token_programs: Count = 0
    """Programs of files in which token counts are inferred."""
    distinct_programs: Count | None = None
    """Their number if they are repeated under new ids."""
    recipe: Name | None = None
    """Recipe of a stream."""
    about: str | None = None
    private: bool = False
    """Whether the traces are a person's sessions."""
    keeps_names: bool = False
    """Whether `--keep-names` keeps their ids and tools."""
    means: dict[str, Number] = field(default_factory=dict)
    """Of jobs without sub-agents. `pause_share`: share of gap time after turns without a tool."""
    left_out: tuple[LeftOutProgram, ...] = ()


class EngineSettings(Record, kw_only=True, frozen=True):
    """The settings of an engine: of all cells of a sweep, or of one cell."""

    engine: Name | None = None
    """`sim`, `vllm`, `vllm-virtual`, `sglang`, `sglang-sim`, `sglang-virtual`, `dynamo-mocker`, a
    plug-in, or a URL."""
    virtual_time: Name | None = None
    """Name of its clock. Only in virtual time."""
    hardware: Name | None = None
    model: Name | None = None
    gpus: Count | None = None
    """GPUs of all replicas; absent on a CPU and if unknown."""
    gpu: Numbers | None = None
    """Contents of the GPU file (`servers.profiles.Hardware`)."""
    profile: ProfileRecord = ProfileRecord()
    """`servers.profiles.Profile`. Only in virtual time and `dynamo-mocker`."""
    replicas: Count | None = None
    """Their number in virtual time, if there are several; or the ranks of `dp-attn`."""
    layout: Name | None = None
    """`dp-attn` or `pp`, if GPUs do not share the model by tensor parallelism."""
    transfer: TransferRecord | None = None
    """The link of a prefill engine. Only with disaggregation."""
    limits: LimitsRecord = LimitsRecord()
    scheduling: Name | None = None
    """`sync` or `async`. Only in virtual time."""
    kv_cache_dtype: Name | None = None
    """Format of the KV cache."""
    server: ServerRecord = ServerRecord()
    """Versions of live servers, and options that were given."""
    costs: dict[str, Scalar | Numbers] | None = None
    """Costs that the policy gets. Only in cells of vLLM."""
    profile_with_offload: ProfileRecord = ProfileRecord()
    """Profile of variants with a tier. Only in sweep.json."""
    profile_notes: tuple[str, ...] = ()
    """Origin, caveats and errors of the profile, in sentences. Only in sweep.json."""

    @property
    def replica_count(self) -> int:
        """Number of replicas in virtual time, or of live servers."""
        return self.replicas or self.server.replicas or 1


class HorizonRecord(Record, kw_only=True, frozen=True, omit_defaults=True):
    """For how long jobs arrive in a cell, from an empty machine."""

    seconds: Seconds
    """Length of the time in which jobs arrive."""
    jobs: Count | None = None
    """The most jobs that arrive."""
    burst: Count = 0
    """Jobs that arrive together at the beginning, and are not measured."""

    @property
    def in_words(self) -> str:
        """Such as `24 h (at most 5,000 jobs) after a burst of 50 jobs`."""
        most = "" if self.jobs is None else f" (at most {counted(self.jobs, 'job')})"
        burst = f" after a burst of {counted(self.burst, 'job')}" if self.burst else ""
        return f"{time_span(self.seconds)}{most}{burst}"


class ScenarioRecord(Record, kw_only=True, frozen=True):
    """The rules of a published load scenario."""

    name: Name
    window_s: Seconds
    """For how long requests are measured after the warm-up."""
    start: tuple[Number, Number]
    """Shares of the recorded time between which first jobs start."""
    warm_up_requests: Count
    """Warm-up requests per agent, after the one of each program."""
    job_idle_s: Seconds | None = None
    """Longest time without a request of a job; it then continues earlier."""
    system_idle_s: Seconds = 10.0
    """Longest time without a request of any job."""
    published_seed: ClassVar[int] = 42


class RunSettings(EngineSettings, kw_only=True, frozen=True):
    """The settings of the engine and of the load."""

    arrivals: Name | None = None
    """Arrivals as on the command line."""
    steady_state: bool = False
    """Whether the jobs are a stream."""
    horizon: HorizonRecord | None = None
    """When the measured jobs arrive."""
    scenario: ScenarioRecord | None = None
    """Only with `--scenario`."""
    agent: AgentRecord | None = None
    background: BackgroundRecord | None = None
    """Requests alongside the jobs. Only with `--background`."""
    workload: WorkloadRecord = WorkloadRecord()
    turnstile_version: Scalar = None
    code_sha256: Scalar = None
    """Hash of the sources that affect a cell."""
