"""The settings that sweep.json and each cell.json record alike."""

from __future__ import annotations

from msgspec import field

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
    """Its class; absent for routers of other projects."""
    version: str | None = None
    """Of a router of another project."""
    source: str | None = None
    """Publication or code it follows."""
    sha256: str | None = None
    """Hash of a router of users and of the modules outside `site-packages` that it imports."""


class SplitRecord(Record, kw_only=True, frozen=True):
    """Separate engines for prompts and for answers."""

    name: Name
    prefill: Count | None = None
    """Engines that compute prompts."""
    decode: Count | None = None
    """Engines that decode."""


class TierRecord(Record, kw_only=True, frozen=True):
    """An offload tier."""

    kind: Name | None = None
    """Connector of vLLM. Only in live cells."""
    dram_gb: Number | None = None
    """DRAM in units of 10⁹ bytes."""
    ssd_gb: Number | None = None
    """SSD in units of 10⁹ bytes."""
    chunk_tokens: Tokens | None = None
    """Size of a chunk. Only in virtual time."""


class WindowTimesRecord(Record, kw_only=True, frozen=True):
    """Step times of layers with a sliding window."""

    tokens: Count
    context_ps: Count
    pair_ps: Count


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
    dram_bytes_per_s: Number | None = None
    ssd_bytes_per_s: Number | None = None
    kv_groups: tuple[Count | None, ...] = (None,)
    load_ps: Integer | None = None
    load_token_ps: Integer | None = None
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
    """Rule of admission; SGLang and servers at a URL have their own."""


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
    """Split of the workers, such as 1P1D."""
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
    """Paths readable in the sandbox."""
    config: str | None = None
    """Text of `--agent-config`, with keys as `***`."""
    sandbox: Numbers | None = None
    """Kind, network and limits."""


class BackgroundRecord(Record, kw_only=True, frozen=True):
    """Requests beside the jobs."""

    name: Printable
    """Name of the file."""
    requests_per_s: Rate
    requests: Count
    """Requests in the file."""
    trace_sha256: str | None = None
    left_out: Count = 0
    """Requests that do not fit."""


class LeftOutProgram(Record, frozen=True):
    """A program that does not fit, and the reason."""

    program_id: str
    reason: str


class WorkloadRecord(Record, kw_only=True, frozen=True):
    """The programs of the jobs."""

    name: Printable | None = None
    """Names of the trace files or the pack."""
    programs: Count | None = None
    turns: Count | None = None
    """Absent if real agents decide it."""
    trace_sha256: Scalar = None
    """Hash of the files, with `--columns` and the contents of `--tokenizer` and of the recipe of
    `--synthesise-gaps`."""
    gap_provenance: dict[Name, Count] = field(default_factory=dict)
    """Number of tool gaps by the origin of their length."""
    shared_prefix_tokens: Tokens | None = None
    """Prefixes of first prompts, except the first program with each prefix."""
    sub_agents: Count = 0
    inferred_token_programs: Count = 0
    """Programs of files in which token counts are inferred."""
    distinct_programs: Count | None = None
    """Their number if they are repeated under new ids."""
    recipe: Name | None = None
    """Recipe from which a stream draws its programs, which are then not those counted here."""
    about: str | None = None
    """One line about a pack."""
    private: bool = False
    """Whether the traces are a person's sessions, whose paths reports do not name."""
    keeps_names: bool = False
    """Whether `--keep-names` keeps their ids and tools."""
    means: dict[str, Number] = field(default_factory=dict)
    """Of jobs without their sub-agents: `turns`, `new_tokens_per_later_turn`, `tool_gap_s` after
    turns that call a tool, `pause_share`: the share of the time of all gaps that follows turns
    without a tool."""
    left_out: tuple[LeftOutProgram, ...] = ()
    """Programs that do not fit."""


class EngineSettings(Record, kw_only=True, frozen=True):
    """The settings of an engine: of all cells of a sweep, or of one cell."""

    engine: Name | None = None
    """`sim`, `vllm`, `vllm-virtual`, `sglang`, `dynamo-mocker`, a plug-in, or a URL."""
    virtual_time: Name | None = None
    """What its time is called; absent for live engines."""
    hardware: Name | None = None
    model: Name | None = None
    gpus: Count | None = None
    """GPUs of all replicas; absent on a CPU and if unknown."""
    gpu: Numbers | None = None
    """Contents of the GPU file (`servers.profiles.Hardware`). Only with a GPU file."""
    profile: ProfileRecord = ProfileRecord()
    """Step times and KV memory: the fields of `servers.profiles.Profile`. Only in virtual time and
    `dynamo-mocker`."""
    replicas: Count | None = None
    """Their number in virtual time, if there are several."""
    transfer: TransferRecord | None = None
    """The link of a prefill engine. Only with disaggregation."""
    limits: LimitsRecord = LimitsRecord()
    scheduling: Name | None = None
    """`sync` or `async`. Only in virtual time."""
    kv_cache_dtype: Name | None = None
    """Format of the KV cache; absent if `auto`."""
    server: ServerRecord = ServerRecord()
    """Versions of the software of live servers, and options that were given."""
    costs: dict[str, Scalar | Numbers] | None = None
    """Costs that the policy gets. Only in cells of vLLM."""
    profile_with_offload: ProfileRecord = ProfileRecord()
    """Profile of variants with a tier. Only in sweep.json."""
    profile_notes: tuple[str, ...] = ()
    """Origin, caveats and errors of the profile, in sentences. Only in sweep.json."""


class RunSettings(EngineSettings, kw_only=True, frozen=True):
    """The settings of the engine and of the load."""

    arrivals: Name | None = None
    """Arrivals as on the command line."""
    steady_state: bool = False
    """Whether the jobs are a stream that ends when its steady state was measured."""
    agent: AgentRecord | None = None
    background: BackgroundRecord | None = None
    """Requests beside the jobs. Only with `--background`."""
    workload: WorkloadRecord = WorkloadRecord()
    turnstile_version: Scalar = None
    code_sha256: Scalar = None
    """Hash of the sources that affect a cell."""
