"""Profiles of GPUs that are not at hand, from the operator tables of the package
`aiconfigurator-core` (NVIDIA, Apache-2.0; extra `silicon`).

In: names of a machine and a model of `bench list`. Out: a `FromTables` profile. The package has
times of single operators, measured with a version of vLLM, and sums them up to a step on a CPU; it
needs no GPU and no network. Times in seconds, lengths in tokens.
"""

from __future__ import annotations

import logging
import time
from importlib import metadata
from typing import Any, Protocol

from servers.errors import InvalidInput, LibraryUnavailable, UnknownProfile
from servers.profiles import Profile, analytic_profile, hardware, model
from servers.profiles.from_tables import FromTables, MixedTime, Tables, fitted_to_tables
from servers.profiles.measured import DecodeTimes, PrefillTimes
from servers.profiles.roofline import gpus_for

PACKAGE = "aiconfigurator-core"
SYSTEMS = {
    "a100-80g": "a100_sxm",
    "h100": "h100_sxm",
    "h200": "h200_sxm",
    "b200": "b200_sxm",
    "l40s": "l40s",
}
"""Names of machines in the package. It has no tables of vLLM for the others of `HARDWARE`."""
MODELS = {
    "llama-3.1-8b": "meta-llama/Meta-Llama-3.1-8B",
    "llama-3.1-70b": "meta-llama/Meta-Llama-3.1-70B",
}
"""Names of models in the package, which contains their config.json; it would download others."""

LENGTHS = (512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
CACHED = (0, 1024, 4096, 16384, 32768, 65536, 130560)
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
CONTEXTS = (128, 512, 2048, 8192, 32768, 131072)
CHUNKS, CHUNKS_AFTER = (256, 1024, 4096), (0, 8192, 32768)
MIXED_BATCHES, MIXED_CONTEXTS = (1, 8, 32, 128), (512, 8192)


class StepTimes(Protocol):
    """Seconds of a single step, without the CPU time between steps."""

    def prefill_s(self, tokens: int, cached_tokens: int) -> float: ...

    def decode_s(self, batch: int, context: int) -> float: ...

    def mixed_s(self, tokens: int, cached_tokens: int, batch: int, context: int) -> float: ...


class OperatorTables:
    """Tables of the package for one machine, model and number of GPUs."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        """An `EngineHandle` of the package: milliseconds, and prompts with their cached tokens."""

    def prefill_s(self, tokens: int, cached_tokens: int) -> float:
        ms: float = self._engine.predict_prefill_latency(1, tokens + cached_tokens, cached_tokens)
        return ms / 1000

    def decode_s(self, batch: int, context: int) -> float:
        ms: float = self._engine.decode_step_latency(batch, context, 2)
        return ms / 1000

    def mixed_s(self, tokens: int, cached_tokens: int, batch: int, context: int) -> float:
        """Composed of what the chunk and the decodes share, the attention of the chunk, which is a
        prefill's time without its shared part, and that of the decodes. The package's own sum has
        one length for both, and divides the chunk's attention by the number of chunks."""
        _, shared, _, decodes = self._engine.mixed_step_breakdown(tokens, batch, context, 2)
        _, alone, _, _ = self._engine.mixed_step_breakdown(tokens, 0, context, 2)
        attention_s = self.prefill_s(tokens, cached_tokens) - alone / 1000
        return float(attention_s + (shared + decodes) / 1000)


def open_tables(
    hardware_name: str, model_name: str, gpus: int, engine_version: str | None
) -> tuple[OperatorTables, Tables]:
    """Raises UnknownProfile or InvalidInput for what the tables do not cover, and
    LibraryUnavailable without the package."""
    hardware(hardware_name), model(model_name)
    for option, name, known in (
        ("hardware", hardware_name, SYSTEMS),
        ("model", model_name, MODELS),
    ):
        if name not in known:
            raise UnknownProfile(
                f"--{option} {name}: {PACKAGE} has no operator tables for it; "
                f"they cover {', '.join(known)}"
            )
    try:
        from aiconfigurator_core.sdk.engine import EngineHandle
        from aiconfigurator_core.sdk.perf_database import get_version_slots
    except ModuleNotFoundError:
        raise LibraryUnavailable(
            f"--from aiconfigurator: needs {PACKAGE}; pip install 'turnstile-bench[silicon]'"
        ) from None
    # The package warns of low-quality rows in tables that these models do not use.
    logging.getLogger("aiconfigurator_core").setLevel(logging.ERROR)
    system = SYSTEMS[hardware_name]
    slots = get_version_slots(system, "vllm")
    version = slots["current"] if engine_version is None else engine_version
    if version not in slots.values():
        raise InvalidInput(
            f"--backend-version {version}: {PACKAGE} has tables of vLLM "
            f"{' and '.join(sorted(slots.values()))} for {hardware_name}"
        )
    engine = EngineHandle.compile(
        MODELS[model_name], system, "vllm", backend_version=version, tp_size=gpus
    )
    package = f"{PACKAGE} {metadata.version(PACKAGE)}"
    return OperatorTables(engine), Tables(package=package, system=system, engine_version=version)


def profile_from_tables(
    hardware_name: str,
    model_name: str,
    *,
    gpus: int | None = None,
    max_model_len: int | None = None,
    kv_blocks: int | None = None,
    step_tokens: int,
    engine_version: str | None = None,
) -> FromTables:
    """Memory and links are those of the analytic profile, whose errors this raises too."""
    n = gpus_for(hardware_name, model_name, gpus)
    analytic = analytic_profile(
        hardware_name, model_name, gpus=n, max_model_len=max_model_len, kv_blocks=kv_blocks
    )
    times, tables = open_tables(hardware_name, model_name, n, engine_version)
    return fit(times, tables, analytic, gpus=n, step_tokens=step_tokens)


def fit(
    times: StepTimes, tables: Tables, analytic: Profile, *, gpus: int, step_tokens: int
) -> FromTables:
    """Evaluates the grid, as far as the KV memory holds it, and fits the step formula."""
    room = analytic.kv_blocks * analytic.block_tokens
    longest = min(analytic.max_model_len, room)
    prefill = tuple(
        PrefillTimes(tokens=n, cached_tokens=cached, seconds=(times.prefill_s(n, cached),))
        for cached in CACHED
        for n in LENGTHS
        if n + cached <= longest
    )
    decode = tuple(
        DecodeTimes(batch=b, context=context, seconds=(times.decode_s(b, context),))
        for b in BATCHES
        for context in CONTEXTS
        if context <= longest and b * context <= room
    )
    mixed = tuple(
        MixedTime(
            tokens=n,
            cached_tokens=cached,
            batch=b,
            context=context,
            seconds=times.mixed_s(n, cached, b, context),
        )
        for n in CHUNKS
        for cached in CHUNKS_AFTER
        for b in MIXED_BATCHES
        for context in MIXED_CONTEXTS
        if max(n + cached, context) <= longest and n + cached + b * context <= room
    )
    return FromTables.model_validate(
        {
            "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "made_by": f"turnstile-bench {metadata.version('turnstile-bench')}",
            "machine": analytic.hardware,
            "engine": f"vLLM {tables.engine_version}",
            "flags": (),
            "model": analytic.model,
            "gpus": gpus,
            "kv_blocks": analytic.kv_blocks,
            "block_tokens": analytic.block_tokens,
            "max_model_len": analytic.max_model_len,
            "kv_bytes_per_token": analytic.kv_bytes_per_token,
            "step_tokens": step_tokens,
            "prefill": prefill,
            "decode": decode,
            "mixed": mixed,
            "reload": None,
            "left_out": (),
            "tables": tables,
            "host_bytes_per_s": analytic.dram_bytes_per_s,
            **fitted_to_tables(prefill, decode, mixed),
        }
    )
