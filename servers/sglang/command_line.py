"""The command line and the environment of an SGLang server.

In: a `ServerConfig` without what only vLLM has, a scheduler, and the model to load. Out: flags and
environment variables. The user's flags come last, so that they take precedence.
"""

from __future__ import annotations

import os

from servers.profiles.kv_cache_dtype import KvCacheDtype
from servers.sglang.schedulers import SglangScheduler
from servers.vllm.launch.command_line import GPU_BLOCK_TOKENS, ServerConfig, tensor_parallel
from servers.vllm.models.model_folder import ResolvedModel

_LOOPBACK_ONLY = (
    "the server always listens on 127.0.0.1; to reach it from elsewhere use bench gateway --listen"
)
_USE = "use {} instead, so that limits and reports agree with the engine"
_VARIANT = "give it as a variant, such as --policies {}"
REFUSED_FLAGS = {
    "--host": _LOOPBACK_ONLY,
    "--port": "a free port is chosen; remove it",
    "--api-key": "other users can see command lines; remove it, since only this machine has access",
    "--admin-api-key": "the cache is flushed before each cell; remove it",
    "--config": "its flags would not be checked; give them one by one",
    "--model-path": _USE.format("--model"),
    "--model": _USE.format("--model before the --"),
    "--served-model-name": "clients are given Turnstile's name of the model; remove it",
    "--load-format": _USE.format("--weights"),
    "--max-running-requests": _USE.format("--max-num-seqs"),
    "--chunked-prefill-size": _USE.format("--step-tokens"),
    "--max-total-tokens": _USE.format("--kv-blocks"),
    "--context-length": _USE.format("--max-model-len"),
    "--kv-cache-dtype": _USE.format("--kv-cache-dtype before the --"),
    "--tensor-parallel-size": _USE.format("--gpus"),
    "--tp-size": _USE.format("--gpus"),
    "--data-parallel-size": _USE.format("--replicas"),
    "--dp-size": _USE.format("--replicas"),
    "--schedule-policy": _VARIANT.format("lpm"),
    "--radix-eviction-policy": _VARIANT.format("'fcfs(eviction=slru)'"),
    "--disable-radix-cache": _VARIANT.format("'fcfs(radix_cache=false)'"),
    "--enable-session-radix-cache": _VARIANT.format("'fcfs(sessions=true)'"),
}
"""Flags of SGLang that are refused, and what to do instead."""


def flags(
    config: ServerConfig, scheduler: SglangScheduler, model: ResolvedModel, port: int
) -> tuple[str, ...]:
    chosen = [
        *("--model-path", model.path, "--served-model-name", model.name, *model.flags),
        *("--host", "127.0.0.1", "--port", str(port), "--log-level-http", "warning"),
        *("--tp-size", str(tensor_parallel(config))),
        *("--max-running-requests", str(config.max_num_seqs)),
        *("--chunked-prefill-size", str(config.step_tokens)),
        # Times in the queue and loads; cached tokens of chats; new ids only in each event.
        *("--enable-metrics", "--enable-cache-report", "--incremental-streaming-output"),
        *scheduler.flags(),
    ]
    if config.kv_cache_dtype != KvCacheDtype.AUTO:
        chosen += ["--kv-cache-dtype", "fp8_e4m3"]
    if config.kv_blocks is not None:
        chosen += ["--max-total-tokens", str(config.kv_blocks * GPU_BLOCK_TOKENS)]
    if (context := longest_context(config, model)) is not None:
        chosen += ["--context-length", str(context)]
    return (*chosen, *config.flags)


def longest_context(config: ServerConfig, model: ResolvedModel) -> int | None:
    """Return the configured context length, or the longest one for the model and the KV pool, in
    tokens; None to use SGLang's default."""
    if config.max_model_len is not None or config.kv_blocks is None or model.max_context is None:
        return config.max_model_len
    return min(model.max_context, config.kv_blocks * GPU_BLOCK_TOKENS)


def environment(config: ServerConfig, model: ResolvedModel) -> dict[str, str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("TURNSTILE_")}
    if os.path.isabs(model.path):
        env["HF_HUB_OFFLINE"] = "1"
    return {**env, **config.env}
