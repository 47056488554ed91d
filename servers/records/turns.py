"""Records of turns.jsonl and engine.jsonl, which all writers encode and all readers decode.

Each field is annotated with its unit, its meaning and the condition under which it is null. The
tables in docs/reference/run-folder.md are generated from these annotations
(`make run-folder`). Times are seconds on the cell's clock, lengths are
tokens. A field that is `UNSET` is left out of the line; readers treat it as null.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import UNSET, Struct, UnsetType

from servers.records.fields import Blocks, Count, Scalar, Seconds, Tokens, meaning

FAILED_BEFORE = "without a first token"
NOT_REPORTED = "if not reported"
NOT_SPLIT = "if not reported live"
FIRST_TURN = "in a first turn"
NOT_RECORDED = "without `--messages`"
NOT_DISAGGREGATED = "without `--disaggregate`"
NOT_ADMISSION = "unless an admission"
NOT_PINNED = "unless `pinned`"


class PromptPrefix(Struct, gc=False):
    """The beginning of a prompt that several programs share."""

    id: str
    tokens: Tokens


class ChatMessage(Struct, gc=False):
    role: str
    content: str


class TurnRecord(Struct, kw_only=True, gc=False):
    """One turn that finished or failed: a line of turns.jsonl.

    The schedule sets the first fields; the engine sets the others when the turn ends.
    """

    program_id: Annotated[str, meaning("its program")]
    turn: Annotated[Count, meaning("its position in the program, from 0")]
    job_id: Annotated[str, meaning("root program; a sub-agent's is its parent's")]
    job_index: Annotated[
        Count | UnsetType,
        meaning(
            "position of the job in order of arrival, from 0",
            "in a fixed set of jobs",
        ),
    ] = UNSET
    job_turns: Annotated[
        Count | UnsetType,
        meaning(
            "turns of the whole job",
            "in a fixed set of jobs",
        ),
    ] = UNSET
    background: Annotated[
        bool | UnsetType,
        meaning("whether it is a request of `--background`", "if not"),
    ] = UNSET
    scheduled_at_s: Annotated[Seconds, meaning("when the turn was due")]
    sent_at_s: Annotated[
        Seconds, meaning("when it was sent; `sent_at_s - scheduled_at_s` is client lateness")
    ]
    kept_tokens: Annotated[
        Tokens | None, meaning("leading prompt tokens that repeat the previous turn's context")
    ] = None
    tools: Annotated[
        tuple[str, ...] | None, meaning("names of the tools that the answer calls, in order")
    ] = None
    gap_s: Annotated[
        Seconds | None,
        meaning("tool gap before this turn; 0 in a first turn"),
    ] = None
    gap_provenance: Annotated[
        str | None,
        meaning(
            "its origin: `measured`, `measured with waits for permission`, `inferred`, "
            "`synthesised` or `unstated`",
            FIRST_TURN,
        ),
    ] = None
    wait_s: Annotated[Seconds | None, meaning("wait for sub-agents to join, before the gap")] = None
    system: Annotated[
        PromptPrefix | UnsetType | None,
        meaning(
            "beginning of the prompt, shared with other programs: `{id, tokens}`",
            "after a first turn; if nothing is shared",
        ),
    ] = UNSET
    shared_tokens: Annotated[
        Tokens | UnsetType,
        meaning(
            "leading prompt tokens that other programs may have too, by block hashes",
            "if nothing is shared",
        ),
    ] = UNSET
    replica: Annotated[
        Count | UnsetType,
        meaning(
            "index of the server that served the turn, from 0",
            "with one replica in virtual time; if no router or event has the turn",
        ),
    ] = UNSET
    prefill_replica: Annotated[
        Count | UnsetType,
        meaning(
            "index of the engine that computed the prompt; prefill engines follow decode engines",
            NOT_DISAGGREGATED,
        ),
    ] = UNSET
    held_s: Annotated[
        Seconds | UnsetType,
        meaning(
            "how long routers held the turn back, part of `queue_s` and `decode_queue_s`; behind a "
            "router of another project until it arrived in the engine",
            "with one server; without `replica`",
        ),
    ] = UNSET
    first_token_at_s: Annotated[
        Seconds | None, meaning("when the first token arrived", FAILED_BEFORE)
    ] = None
    finished_at_s: Annotated[Seconds | None, meaning("when the last token arrived")] = None
    prompt_tokens: Annotated[Tokens | None, meaning("length of the prompt")] = None
    output_tokens: Annotated[Tokens | None, meaning("length of the answer")] = None
    counted: Annotated[
        bool | UnsetType,
        meaning(
            "whether `--tokenizer` counted a length that the server does not report",
            "if not",
        ),
    ] = UNSET
    device_hit_tokens: Annotated[
        Tokens | None,
        meaning("prompt tokens found in HBM at first admission", NOT_REPORTED),
    ] = None
    dram_hit_tokens: Annotated[Tokens | None, meaning("the same in DRAM", NOT_SPLIT)] = None
    ssd_hit_tokens: Annotated[Tokens | None, meaning("the same on SSD", NOT_SPLIT)] = None
    queue_s: Annotated[
        Seconds | None, meaning("from sending to the first admission", NOT_REPORTED)
    ] = None
    load_s: Annotated[
        Seconds | None,
        meaning("from the start of a reload until the turn runs", NOT_SPLIT),
    ] = None
    prefill_s: Annotated[Seconds | None, meaning("computing the prompt", NOT_REPORTED)] = None
    decode_queue_s: Annotated[
        Seconds | UnsetType,
        meaning(
            "from the end of the prompt until the transfer of its KV begins",
            NOT_DISAGGREGATED,
        ),
    ] = UNSET
    transfer_s: Annotated[
        Seconds | UnsetType,
        meaning(
            "from the start of the transfer until the turn runs on the decode engine",
            NOT_DISAGGREGATED,
        ),
    ] = UNSET
    transfer_tokens: Annotated[
        Tokens | UnsetType,
        meaning(
            "prompt tokens whose KV is transferred",
            NOT_DISAGGREGATED,
        ),
    ] = UNSET
    decode_s: Annotated[
        Seconds | None,
        meaning(
            "from the first to the last token, without `preempted_s` and `recompute_s`",
            FAILED_BEFORE,
        ),
    ] = None
    preempted_s: Annotated[
        Seconds | None, meaning("from preemptions to readmissions", NOT_SPLIT)
    ] = None
    recompute_s: Annotated[
        Seconds | None, meaning("recomputing KV that preemptions discarded", NOT_SPLIT)
    ] = None
    preemptions: Annotated[Count | None, meaning("number of preemptions", NOT_REPORTED)] = None
    pinned_hit: Annotated[
        bool | None,
        meaning("whether the program's pin was active when the turn arrived", NOT_REPORTED),
    ] = None
    refusals: Annotated[
        Count | UnsetType,
        meaning(
            "how often a full queue refused the turn (503 or 429)",
            "without a refusal",
        ),
    ] = UNSET
    refused_s: Annotated[
        Seconds | UnsetType,
        meaning(
            "time until it was sent for the last time, part of `queue_s`",
            "without a refusal",
        ),
    ] = UNSET
    messages: Annotated[
        list[ChatMessage] | UnsetType,
        meaning("messages that this prompt adds: list of `{role, content}`", NOT_RECORDED),
    ] = UNSET
    messages_repeated: Annotated[
        Count | UnsetType,
        meaning("messages of the prompt in earlier lines of the program", NOT_RECORDED),
    ] = UNSET
    answer: Annotated[str | UnsetType, meaning("text of the answer", NOT_RECORDED)] = UNSET
    command: Annotated[
        str | UnsetType | None,
        meaning("shell command that the answer calls", f"if there is none; {NOT_RECORDED}"),
    ] = UNSET
    error: Annotated[str | None, meaning("why the turn failed", "if the turn succeeded")] = None


class EventRecord(Struct, kw_only=True, gc=False):
    """One event of an engine: a line of engine.jsonl. Fields that an event lacks are left out."""

    t: Annotated[Seconds, meaning("time of the event")]
    event: Annotated[str, meaning("name of the event, below")]
    program_id: Annotated[str, meaning("its program")]
    turn: Annotated[
        Count,
        meaning("position of the turn in its program, from 0; with `replica`, of its turns there"),
    ]
    replica: Annotated[
        Count | UnsetType,
        meaning("index of the replica, from 0", "with one replica; live"),
    ] = UNSET
    prompt_length: Annotated[
        Tokens | UnsetType,
        meaning("prompt tokens, and tokens generated before a preemption", NOT_ADMISSION),
    ] = UNSET
    hit_length: Annotated[
        Tokens | UnsetType, meaning("tokens found in a cache at this admission", NOT_ADMISSION)
    ] = UNSET
    external_length: Annotated[
        Tokens | UnsetType,
        meaning(
            "tokens of `hit_length` from an offload tier",
            "without any; in virtual time",
        ),
    ] = UNSET
    ttl_s: Annotated[
        Seconds | UnsetType | None,
        meaning(
            "time to live of the pin",
            f"if only pressure ends it; {NOT_PINNED}",
        ),
    ] = UNSET
    blocks: Annotated[Blocks | UnsetType, meaning("size of the pin", NOT_PINNED)] = UNSET
    why: Annotated[
        dict[str, Scalar] | UnsetType, meaning("inputs of the policy's decision", NOT_PINNED)
    ] = UNSET
    reason: Annotated[
        str | UnsetType,
        meaning("why the pin ended, below", "unless `unpinned`"),
    ] = UNSET
    tier: Annotated[
        str | UnsetType,
        meaning(
            "where KV is read from: `dram`, `ssd` or a `prefill` engine",
            "unless `loading`; live",
        ),
    ] = UNSET
    tokens: Annotated[
        Tokens | UnsetType,
        meaning("tokens that are loaded", "unless `loading`"),
    ] = UNSET
