"""Records of turns.jsonl and engine.jsonl, which all writers encode and all readers decode.

The tables in docs/reference/run-folder.md are generated from the docstrings of the fields
(`make run-folder`). Times are seconds on the cell's clock, lengths are tokens. A field that is
`UNSET` is left out of the line; readers treat it as null.
"""

from __future__ import annotations

from msgspec import UNSET, Struct, UnsetType

from servers.records.fields import Blocks, Count, Scalar, Seconds, Tokens


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

    program_id: str
    """Its program."""
    turn: Count
    """Its position in the program, from 0."""
    job_id: str
    """Root program; a sub-agent's is its parent's."""
    job_index: Count | UnsetType = UNSET
    """Position of the job in order of arrival, from 0. Only in streams."""
    job_turns: Count | UnsetType = UNSET
    """Turns of the whole job. Only in streams."""
    background: bool | UnsetType = UNSET
    """Whether it is a request of `--background`. Absent if not."""
    scheduled_at_s: Seconds
    """When the turn was due."""
    sent_at_s: Seconds
    """When it was sent; `sent_at_s - scheduled_at_s` is client lateness."""
    kept_tokens: Tokens | None = None
    """Leading prompt tokens that repeat the previous turn's context."""
    tools: tuple[str, ...] | None = None
    """Names of the tools that the answer calls, in order."""
    gap_s: Seconds | None = None
    """Tool gap before this turn; 0 in a first turn."""
    gap_provenance: str | None = None
    """Its origin: `measured`, `measured with waits for permission`, `inferred`, `synthesised` or
    `unstated`. Null in a first turn."""
    wait_s: Seconds | None = None
    """Wait for sub-agents to join, before the gap."""
    system: PromptPrefix | UnsetType | None = UNSET
    """Beginning of the prompt, shared with other programs: `{id, tokens}`. Null after a first turn,
    and if nothing is shared."""
    shared_tokens: Tokens | UnsetType = UNSET
    """Leading prompt tokens that other programs may have too, by block hashes. Absent if none."""
    replica: Count | UnsetType = UNSET
    """Index of the server that served the turn, from 0. Absent with one replica in virtual time,
    and if no router or event has the turn."""
    prefill_replica: Count | UnsetType = UNSET
    """Index of the engine that computed the prompt; prefill engines follow decode engines. Only
    with `--disaggregate`."""
    held_s: Seconds | UnsetType = UNSET
    """How long routers held the turn back, part of `queue_s` and `decode_queue_s`; behind a router
    of another project until it arrived in the engine. Absent with one server, and without
    `replica`."""
    first_token_at_s: Seconds | None = None
    """When the first token arrived. Null if the turn failed before."""
    finished_at_s: Seconds | None = None
    """When the last token arrived."""
    prompt_tokens: Tokens | None = None
    """Length of the prompt."""
    output_tokens: Tokens | None = None
    """Length of the answer."""
    counted: bool | UnsetType = UNSET
    """Whether `--tokenizer` counted a length that the server does not report. Absent if not."""
    device_hit_tokens: Tokens | None = None
    """Prompt tokens found in HBM at first admission. Null if not reported."""
    dram_hit_tokens: Tokens | None = None
    """The same in DRAM. Null if not reported live."""
    ssd_hit_tokens: Tokens | None = None
    """The same on SSD. Null if not reported live."""
    queue_s: Seconds | None = None
    """From sending to the first admission. Null if not reported."""
    load_s: Seconds | None = None
    """From the start of a reload until the turn runs. Null if not reported live."""
    prefill_s: Seconds | None = None
    """Computing the prompt; in virtual time with its time in the API server. Null if not
    reported."""
    decode_queue_s: Seconds | UnsetType = UNSET
    """From the end of the prompt until the transfer of its KV begins. Only with
    `--disaggregate`."""
    transfer_s: Seconds | UnsetType = UNSET
    """From the start of the transfer until the turn runs on the decode engine. Only with
    `--disaggregate`."""
    transfer_tokens: Tokens | UnsetType = UNSET
    """Prompt tokens whose KV is transferred. Only with `--disaggregate`."""
    decode_s: Seconds | None = None
    """From the first to the last token, without `preempted_s` and `recompute_s`. Null if the turn
    failed before the first."""
    preempted_s: Seconds | None = None
    """From preemptions to readmissions. Null if not reported live."""
    recompute_s: Seconds | None = None
    """Recomputing KV that preemptions discarded. Null if not reported live."""
    preemptions: Count | None = None
    """Number of preemptions. Null if not reported."""
    pinned_hit: bool | None = None
    """Whether the program's pin was active when the turn arrived. Null if not reported."""
    refusals: Count | UnsetType = UNSET
    """How often a full queue refused the turn (503 or 429). Only with refusals."""
    refused_s: Seconds | UnsetType = UNSET
    """Time until it was sent for the last time, part of `queue_s`. Only with refusals."""
    messages: list[ChatMessage] | UnsetType = UNSET
    """Messages that this prompt adds: list of `{role, content}`. Only with `--messages`."""
    messages_repeated: Count | UnsetType = UNSET
    """Messages of the prompt in earlier lines of the program. Only with `--messages`."""
    answer: str | UnsetType = UNSET
    """Text of the answer. Only with `--messages`."""
    command: str | UnsetType | None = UNSET
    """Shell command that the answer calls. Null if there is none. Only with `--messages`."""
    error: str | None = None
    """Why the turn failed. Null if it succeeded."""


class EventRecord(Struct, kw_only=True, gc=False):
    """One event of an engine: a line of engine.jsonl. Fields that an event lacks are left out."""

    t: Seconds
    """Time of the event."""
    event: str
    """Name of the event, below."""
    program_id: str
    """Its program."""
    turn: Count
    """Position of the turn in its program, from 0; with `replica`, of its turns there."""
    replica: Count | UnsetType = UNSET
    """Index of the replica, from 0. Absent with one replica, and live."""
    prompt_length: Tokens | UnsetType = UNSET
    """Prompt tokens, and tokens generated before a preemption. Only of an admission."""
    hit_length: Tokens | UnsetType = UNSET
    """Tokens found in a cache at this admission. Only of an admission."""
    external_length: Tokens | UnsetType = UNSET
    """Tokens of `hit_length` from an offload tier. Absent without any, and in virtual time."""
    ttl_s: Seconds | UnsetType | None = UNSET
    """Time to live of the pin. Null if only pressure ends it. Only of `pinned`."""
    blocks: Blocks | UnsetType = UNSET
    """Size of the pin. Only of `pinned`."""
    why: dict[str, Scalar] | UnsetType = UNSET
    """Inputs of the policy's decision. Only of `pinned`."""
    reason: str | UnsetType = UNSET
    """Why the pin ended, below. Only of `unpinned`."""
    tier: str | UnsetType = UNSET
    """Where KV is read from: `dram`, `ssd` or a `prefill` engine. Only of `loading`, and not
    live."""
    tokens: Tokens | UnsetType = UNSET
    """Tokens that are loaded. Only of `loading`."""
