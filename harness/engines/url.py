"""The engine for a running server: `--engine http://127.0.0.1:8000`.

The server has its own scheduler, so there is one variant, which the user names. The prefix cache of
the server persists between cells, so each cell uses different token ids. Texts are the same in each
cell, with a cache salt per cell if the server is vLLM. The cache of an SGLang is emptied instead.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.cells.job import Job
from harness.engines.base import OF_VLLM, OWN_SCHEDULING, EngineKind, Resolved
from harness.engines.live_engine import LiveEngine
from harness.load.settings import SweepSettings
from harness.load.workload import Longest
from harness.replay.dynamo import Frontend, is_dynamo
from harness.replay.identity import SessionEnd, session_ends
from harness.replay.live_server import OPENAI, LiveServer, is_vllm, served_models
from harness.replay.sglang import SGLANG_APIS, flush_cache, is_sglang
from servers.basics.errors import InvalidVariant, Unavailable, UnknownName
from servers.basics.json_object import JsonObject
from servers.basics.redact import server_url
from servers.basics.registry import is_path
from servers.basics.text import MAX_CHARACTERS, brief, has_control, one_line
from servers.policies.base import Policy
from servers.records.done import DoneRecord
from servers.records.settings import EngineSettings, ServerRecord
from servers.variants import Variant, split, variant
from servers.vllm.launch.server import ServerInfo, cache_config
from servers.vllm.models.model_folder import vocabulary_of
from traces.token_counts import by_tokenizer

MAX_BYTES = 1 << 24
"""Limit of the size of each response."""


def describe(base_url: str) -> ServerInfo:
    """Return the server's configuration. Raises Unavailable if it is not a vLLM server."""
    from harness.replay.openai_client import fetch

    def get(path: str) -> bytes:
        return fetch(base_url + path, 10, MAX_BYTES)

    try:
        model = json.loads(get("/v1/models"))["data"][0]
        cache = cache_config(get("/metrics").decode())
        return ServerInfo(
            model=model["id"],
            version=json.loads(get("/version"))["version"],
            device=f"at {base_url}",
            kv_blocks=int(cache["num_gpu_blocks"]),
            block_size=int(cache["block_size"]),
            max_model_len=model["max_model_len"],
            vocabulary=vocabulary_of(model["id"]),
            cache_config=cache,
            flags=(),
            policy=None,
            costs_from=None,
        )
    except (OSError, LookupError, ValueError, TypeError) as error:
        reason = one_line(f"{type(error).__name__}: {error}")
        raise Unavailable(
            f"--url {base_url}: not a vLLM server that publishes its configuration ({reason})"
        ) from None


AS_SERVED = "as-served"


@dataclass(frozen=True, slots=True)
class UrlEngine(LiveEngine):
    model: str
    models: int
    """Number of models that the server lists; 1 if --model names one."""
    longest: Longest
    is_vllm: bool
    """Whether the server accepts `vllm_xargs`. Other servers may reject unknown fields."""
    is_sglang: bool = False
    """Whether turns of token ids go to SGLang's own API, and its cache is emptied before a cell."""
    session_ends: tuple[SessionEnd, ...] = ()
    """How the server learns that a program has ended."""
    is_dynamo: bool = False
    """Whether the server is a frontend of Dynamo, which rejects the fields that vLLM knows."""
    tokenizer: Path | None = None
    """Counts the tokens of texts that the server does not report."""
    hardware: str = "unknown"

    def describe(self) -> str:
        note = f" (first of {self.models}; choose with --model)" if self.models > 1 else ""
        return (
            f"engine {self.kind.name}: a running server, {self.model}{note}; its scheduler and "
            "machine are unknown"
        )

    def settings(self, _variant: Variant | None = None) -> EngineSettings:
        return EngineSettings(
            engine=self.kind.name,
            hardware=self.hardware,
            model=self.model,
            server=ServerRecord(
                turn_timeout_s=self.server.turn_timeout_s, prompts=self.server.prompts
            ),
        )

    def serve(self, job: Job) -> DoneRecord:
        nonce = os.urandom(8).hex()
        seed = int.from_bytes(hashlib.sha256(f"{job.name} {nonce}".encode()).digest()[:8])
        server = LiveServer(
            self.kind.name,
            self.server.events,
            session_ends=self.session_ends,
            apis=SGLANG_APIS if self.is_sglang else OPENAI,
            dynamo=Frontend(has_sessions=True) if self.is_dynamo else None,
            tagged=self.is_vllm,
        )
        if self.is_sglang:
            job.on_stage("emptying the cache")
            flush_cache(server.root)
        service = self.service(
            *([server], self.model, vocabulary_of(self.model), seed),
            cache_salt=nonce if self.is_vllm else None,
            counter=None if self.tokenizer is None else by_tokenizer(self.tokenizer),
        )
        done = self.replay(job, service)
        done.prompt_seed = seed
        return done


def url_engine(settings: SweepSettings) -> Resolved:
    url = server_url(settings.machine.engine, "--engine")
    served = served_models(url, "--engine")
    model = _served_model(served, settings.machine.model, url)
    longest = model.get("max_model_len") or model.get("context_window") or None  # Dynamo: 0
    if settings.server.events is not None and not settings.server.events.is_file():
        raise Unavailable(
            f"--events {settings.server.events}: no such file; use the path from bench serve"
        )
    engine = UrlEngine(
        server=settings.server,
        kind=url_kind(url),
        model=model["id"],
        models=len(served) if settings.machine.model is None else 1,
        longest=Longest(
            settings.machine.max_model_len or (longest if isinstance(longest, int) else None),
            f"the {longest} that {url} accepts",
        ),
        is_vllm=is_vllm(model),
        is_sglang=is_sglang(model),
        session_ends=session_ends(url),
        is_dynamo=is_dynamo(model),
        tokenizer=settings.load.reading.tokenizer,
    )
    return (_as_served(settings.policies),), engine, ()


def _served_model(served: Sequence[JsonObject], name: str | None, url: str) -> JsonObject:
    if not served:
        raise Unavailable(f"--engine {url}: /v1/models lists no model; load one")
    for model in served:
        if name in (None, model.get("id")):
            _check_name(model.get("id"), url)
            return model
    names = one_line(", ".join(str(model.get("id")) for model in served))
    raise Unavailable(f"--model {name}: {url} serves {names}")


def _check_name(name: object, url: str) -> None:
    """Check that a run folder accepts the name (`servers.records`)."""
    if not isinstance(name, str) or not 0 < len(name) <= MAX_CHARACTERS or has_control(name):
        raise Unavailable(
            f"--engine {url}: /v1/models lists a model named {brief(name)}; a name must have 1 to "
            f"{MAX_CHARACTERS} characters without control characters"
        )


def _as_served(policies: str) -> Variant:
    name = AS_SERVED if policies.strip() == "all" else policies.strip()
    if len(split(name)) > 1:
        raise Unavailable(
            f"--policies {policies}: a running server has one scheduler; give one name, "
            "or use --engine vllm"
        )
    policy: type[Policy] = Policy
    limits: tuple[tuple[str, object], ...] = ()
    with contextlib.suppress(UnknownName, InvalidVariant):
        if not is_path(name):
            known = variant(name)
            if known.impossible:
                raise Unavailable(
                    f"--policies {policies}: {known.impossible}, so it runs in virtual time only; "
                    "name the server's scheduler"
                )
            name, policy, limits = known.name, known.policy, known.limits
    if limits:
        raise InvalidVariant(
            f"--policies {policies}: a running server has its own {limits[0][0]}; remove it here, "
            "and give it to bench serve"
        )
    return Variant(
        name=name,
        policy=policy,
        offload=None,
        description="named by the user" if name != AS_SERVED else "the server's own scheduler",
        source="not checked",
    )


def url_kind(url: str) -> EngineKind:
    several = (
        "; for several servers, start bench gateway URL1 URL2 --router NAME, and give its URL as "
        "--engine"
    )
    own = ", whose server has its own {}; remove it here, and give it to bench serve"
    return EngineKind(
        url,
        url_engine,
        takes=("turn_timeout_s", "lost_after_s", "stuck_after_s", "prompts", "events"),
        refuses={
            **OWN_SCHEDULING,
            **dict.fromkeys(("replicas", "router"), several),
            **dict.fromkeys(("admission", *OF_VLLM), own.format("rule")),
            "kv_cache_dtype": own.format("format"),
        },
        is_remote=True,
    )
