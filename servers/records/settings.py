"""The settings that sweep.json and each cell.json record alike."""

from __future__ import annotations

from typing import Annotated

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
    meaning,
)

SHA256 = (
    "hash of code that is not part of Turnstile, and of all modules outside `site-packages` that"
)
Numbers = dict[str, Scalar]
"""Settings that pages show by name."""


class RouterRecord(Record, kw_only=True, frozen=True):
    """The router in front of several replicas."""

    name: Name
    router: Annotated[str | None, meaning("class", only="our routers and those of users")] = None
    version: Annotated[str | None, meaning("version", only="routers of other projects")] = None
    source: Annotated[str | None, meaning("publication or code it follows")] = None
    sha256: Annotated[str | None, meaning(f"{SHA256} it imports", only="routers of users")] = None


class SplitRecord(Record, kw_only=True, frozen=True):
    """Separate engines for prompts and for answers."""

    name: Name
    prefill: Annotated[Count | None, meaning("engines that compute prompts")] = None
    decode: Annotated[Count | None, meaning("engines that decode")] = None


class TierRecord(Record, kw_only=True, frozen=True):
    """An offload tier."""

    kind: Annotated[Name | None, meaning("connector of vLLM", only="live cells")] = None
    dram_gb: Annotated[Number | None, meaning("DRAM in units of 10⁹ bytes")] = None
    ssd_gb: Annotated[Number | None, meaning("SSD in units of 10⁹ bytes")] = None
    chunk_tokens: Annotated[Tokens | None, meaning("size of a chunk", only="virtual time")] = None


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

    max_num_seqs: Annotated[Count | None, meaning("turns of a step")] = None
    step_tokens: Annotated[Tokens | None, meaning("tokens of a step")] = None
    admission: Annotated[Name | None, meaning("rule of admission", only="vLLM and sim")] = None


class TransferRecord(Record, kw_only=True, frozen=True):
    """The link of a prefill engine."""

    bytes_per_s: Number
    latency_s: Seconds


class ServerRecord(Record, kw_only=True, frozen=True):
    """Versions and settings of live servers."""

    vllm: Annotated[str | None, meaning("version of vLLM")] = None
    torch: Annotated[str | None, meaning("version of PyTorch")] = None
    sglang: Annotated[str | None, meaning("version of SGLang")] = None
    dynamo: Annotated[str | None, meaning("version of Dynamo")] = None
    image: Annotated[str | None, meaning("container image")] = None
    weights: Annotated[str | None, meaning("`--weights`")] = None
    gpus: Annotated[Count | None, meaning("`--gpus`")] = None
    replicas: Annotated[Count | None, meaning("servers")] = None
    disaggregate: Annotated[str | None, meaning("split of the workers")] = None
    kv_gb_per_s: Annotated[Number | None, meaning("link between workers")] = None
    kv_blocks: Annotated[Count | None, meaning("`--kv-blocks`")] = None
    max_model_len: Annotated[Tokens | None, meaning("`--max-model-len`")] = None
    flags: Annotated[tuple[str, ...], meaning("further flags")] = ()
    turn_timeout_s: Annotated[Seconds | None, meaning("`--turn-timeout-s`")] = None
    prompts: Annotated[Name | None, meaning("`text` or `tokens`")] = None
    answers: Annotated[Name | None, meaning("`recorded`, unless generated")] = None


class AgentRecord(Record, kw_only=True, frozen=True):
    """Real agents."""

    name: Printable | None = None
    version: Printable | None = None
    guided: Annotated[bool, meaning("whether they get the answers of recorded programs")] = False
    tasks_sha256: Annotated[str | None, meaning("hash of the tasks")] = None
    task_limit_s: Annotated[Seconds | None, meaning("limit of a task")] = None
    reads: Annotated[tuple[str, ...], meaning("paths readable in the sandbox")] = ()
    config: Annotated[str | None, meaning("text of `--agent-config`, with keys as `***`")] = None
    sandbox: Annotated[Numbers | None, meaning("kind, network and limits")] = None


class BackgroundRecord(Record, kw_only=True, frozen=True):
    """Requests beside the jobs."""

    name: Annotated[Printable, meaning("name of the file")]
    requests_per_s: Annotated[Rate, meaning("their rate")]
    requests: Annotated[Count, meaning("requests in the file")]
    trace_sha256: Annotated[str | None, meaning("hash of the file")] = None
    left_out: Annotated[Count, meaning("requests that do not fit")] = 0


class LeftOutProgram(Record, frozen=True):
    """A program that does not fit, and the reason."""

    program_id: str
    reason: str


class WorkloadRecord(Record, kw_only=True, frozen=True):
    """The programs of the jobs."""

    name: Annotated[Printable | None, meaning("names of the trace files or the pack")] = None
    programs: Annotated[Count | None, meaning("number of programs")] = None
    turns: Annotated[Count | None, meaning("number of turns", only="replays")] = None
    trace_sha256: Annotated[
        Scalar,
        meaning(
            "hash of the files, with `--columns` and the contents of `--tokenizer` and of the "
            "recipe of `--synthesise-gaps`"
        ),
    ] = None
    gap_provenance: Annotated[
        dict[Name, Count], meaning("number of tool gaps by the origin of their length")
    ] = field(default_factory=dict)
    shared_prefix_tokens: Annotated[
        Tokens | None,
        meaning("prefixes of first prompts, except the first program with each prefix"),
    ] = None
    sub_agents: Annotated[Count, meaning("programs that are sub-agents")] = 0
    inferred_token_programs: Annotated[
        Count, meaning("programs of files in which token counts are inferred")
    ] = 0
    distinct_programs: Annotated[
        Count | None, meaning("programs that are repeated under new ids", only="repeated programs")
    ] = None
    recipe: Annotated[
        Name | None,
        meaning(
            "recipe from which a stream draws its programs, which are not those counted here",
            only="streams of fresh programs",
        ),
    ] = None
    about: Annotated[str | None, meaning("one line about it", only="packs")] = None
    private: Annotated[
        bool, meaning("whether the traces are a person's sessions, whose paths reports do not name")
    ] = False
    keeps_names: Annotated[bool, meaning("whether `--keep-names` keeps their ids and tools")] = (
        False
    )
    means: Annotated[
        dict[str, Number],
        meaning(
            "of jobs without their sub-agents: `turns`, `new_tokens_per_later_turn`, `tool_gap_s` "
            "after turns that call a tool, `pause_share`: the share of the time of all gaps that "
            "follows turns without a tool"
        ),
    ] = field(default_factory=dict)
    left_out: Annotated[tuple[LeftOutProgram, ...], meaning("programs that do not fit")] = ()


class EngineSettings(Record, kw_only=True, frozen=True):
    """The settings of an engine: of all cells of a sweep, or of one cell."""

    engine: Annotated[
        Name | None,
        meaning("`sim`, `vllm`, `vllm-virtual`, `sglang`, `dynamo-mocker`, a plug-in, or a URL"),
    ] = None
    hardware: Name | None = None
    model: Name | None = None
    gpus: Annotated[
        Count | None, meaning("GPUs of all replicas", only="machines whose GPUs are known")
    ] = None
    gpu: Annotated[
        Numbers | None,
        meaning("contents of the GPU file (`servers.profiles.Hardware`)", only="GPU files"),
    ] = None
    profile: Annotated[
        ProfileRecord, meaning("step times", only="virtual time and `dynamo-mocker`")
    ] = ProfileRecord()
    replicas: Annotated[Count | None, meaning("replicas", only="several, in virtual time")] = None
    transfer: Annotated[
        TransferRecord | None, meaning("link of a prefill engine", only="disaggregation")
    ] = None
    limits: Annotated[LimitsRecord, meaning("limits of a step")] = LimitsRecord()
    scheduling: Annotated[Name | None, meaning("`sync` or `async`", only="virtual time")] = None
    kv_cache_dtype: Annotated[
        Name | None, meaning("format of the KV cache", only="those that are not `auto`")
    ] = None
    server: Annotated[ServerRecord, meaning("servers", only="live cells")] = ServerRecord()
    costs: Annotated[
        dict[str, Scalar | Numbers] | None,
        meaning("costs that the policy gets", only="cells of vLLM"),
    ] = None
    profile_with_offload: Annotated[
        ProfileRecord, meaning("profile of variants with a tier", only="sweeps")
    ] = ProfileRecord()
    profile_notes: Annotated[
        tuple[str, ...],
        meaning("origin, caveats and errors of the profile, in sentences", only="sweeps"),
    ] = ()


class RunSettings(EngineSettings, kw_only=True, frozen=True):
    """The settings of the engine and of the load."""

    arrivals: Annotated[Name | None, meaning("arrivals as on the command line")] = None
    steady_state: Annotated[
        bool,
        meaning(
            "true if the jobs are a stream that ends when its steady state was measured "
            "([Statistics](../design/statistics.md#steady-state))",
            only="streams",
        ),
    ] = False
    agent: Annotated[AgentRecord | None, meaning("agents", only="real agents")] = None
    background: Annotated[
        BackgroundRecord | None, meaning("requests beside the jobs", only="`--background`")
    ] = None
    workload: Annotated[WorkloadRecord, meaning("programs of the jobs")] = WorkloadRecord()
    turnstile_version: Annotated[Scalar, meaning("version")] = None
    code_sha256: Annotated[Scalar, meaning("hash of the sources that affect a cell")] = None
