"""Profiles of GPUs that are not at hand, from the operator tables of the package
`aiconfigurator-core` (NVIDIA, Apache-2.0; extra `silicon`), or of its successor `aisimulate`.

In: names of a machine and a model of `bench list`. Out: a `FromTables` profile. The package has
times of single operators, measured with a version of vLLM, and sums them up to a step on a CPU; it
needs no GPU and no network. Times in seconds, lengths in tokens.
"""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module, metadata
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, Protocol

from servers.admission import STEP_TOKENS
from servers.basics.errors import InvalidInput, Unavailable, UnknownProfile
from servers.basics.json_object import JsonObject
from servers.profiles import Model, Profile, analytic_profile, hardware, model
from servers.profiles.from_tables import FromTables, MixedTime, Tables, fitted_to_tables
from servers.profiles.kv_budget import gpus_for
from servers.profiles.kv_cache_dtype import KvCacheDtype
from servers.profiles.layout import Layout
from servers.profiles.machines.gpus import OPERATOR_TABLES
from servers.profiles.measured import DecodeTimes, PrefillTimes
from servers.profiles.models.quantization import quantization_of


class Package(NamedTuple):
    """A Python package with operator tables."""

    name: str
    module: str
    install: str
    """What `pip install` takes."""

    @property
    def installed(self) -> str:
        """Name and version."""
        return f"{self.name} {metadata.version(self.name)}"

    @property
    def remedy(self) -> str:
        return f"needs {self.name}; pip install {self.install}"


AICONFIGURATOR = Package("aiconfigurator-core", "aiconfigurator_core", "'turnstile-bench[silicon]'")
PACKAGES = {
    "aiconfigurator": AICONFIGURATOR,
    "aisimulate": Package("aisimulate", "aisimulate_core", "'aisimulate>=0.13,<0.14'"),
}
"""Packages by their names for `--from`. They have the same interface."""
SAME_OPERATORS = {
    "MistralForCausalLM": "LlamaForCausalLM",
    "Mistral3ForConditionalGeneration": "LlamaForCausalLM",
}
"""Architectures that the package does not know, and those with the same operators for text."""
WINDOWS = ("GptOssForCausalLM", "Gemma4ForConditionalGeneration")
"""Architectures whose sliding windows are in the package's operators. It computes the attention of
others without them, as if all layers attended to all tokens."""

LENGTHS = (512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
CACHED = (0, 1024, 4096, 16384, 32768, 65536, 130560)
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
CONTEXTS = (128, 512, 2048, 8192, 32768, 131072)
CHUNKS, CHUNKS_AFTER = (256, 1024, 4096), (0, 8192, 32768)
MIXED_BATCHES, MIXED_CONTEXTS = (1, 8, 32, 128), (512, 8192)


class StepSeconds(Protocol):
    """Seconds of a single step, without the CPU time between steps."""

    def prefill_s(self, tokens: int, cached_tokens: int) -> float: ...

    def decode_s(self, batch: int, context: int) -> float: ...

    def mixed_s(self, tokens: int, cached_tokens: int, batch: int, context: int) -> float: ...


class OperatorTables:
    """Tables of the package for one machine, model and number of GPUs."""

    def __init__(
        self, engine: Any, what: str = "this model", package: Package = AICONFIGURATOR
    ) -> None:
        self._engine = engine
        """An `EngineHandle` of the package: milliseconds, and prompts with their cached tokens."""
        self._what, self._package = what, package

    def prefill_s(self, tokens: int, cached_tokens: int) -> float:
        """Raises UnknownProfile if an operator was not measured, as the next two do."""
        with _covered(self._what, self._package):
            ms: float = self._engine.predict_prefill_latency(
                1, tokens + cached_tokens, cached_tokens
            )
        return ms / 1000

    def decode_s(self, batch: int, context: int) -> float:
        with _covered(self._what, self._package):
            ms: float = self._engine.decode_step_latency(batch, context, 2)
        return ms / 1000

    def mixed_s(self, tokens: int, cached_tokens: int, batch: int, context: int) -> float:
        """Add the time that the chunk and the decodes share, the attention of the chunk (the time
        of a prefill without its shared part), and the attention of the decodes. The package's own
        sum has one length for both, and divides the chunk's attention by the number of chunks."""
        with _covered(self._what, self._package):
            _, shared, _, decodes = self._engine.mixed_step_breakdown(tokens, batch, context, 2)
            _, alone, _, _ = self._engine.mixed_step_breakdown(tokens, 0, context, 2)
        attention_s = self.prefill_s(tokens, cached_tokens) - alone / 1000
        return float(attention_s + (shared + decodes) / 1000)


@contextmanager
def _covered(what: str, package: Package) -> Iterator[None]:
    """Raise UnknownProfile for what the package raises if it lacks an operator: errors of several
    classes, with a path of its own at the end of their text."""
    try:
        yield
    except (RuntimeError, ValueError) as error:
        reason = re.split(r": tried| \(no site|\. Supported|\n", str(error))[0]
        raise UnknownProfile(
            f"{what}: {package.name} has no operator tables for it ({reason.rstrip('. ')[:200]}); "
            "choose other --gpus or another --model, or leave out --from for the analytic profile"
        ) from None


def open_tables(
    hardware_name: str,
    model_name: str,
    gpus: int,
    engine_version: str | None,
    formats: Mapping[str, str] | None = None,
    package: Package = AICONFIGURATOR,
    layout: Layout = Layout.TP,
) -> tuple[OperatorTables, Tables]:
    """`formats` replaces formats of the model's config by the package's names of both. With
    `dp-attn`, steps are those of a rank while all ranks compute equal batches. Raises
    UnknownProfile or InvalidInput for what the tables do not cover, and Unavailable without
    the package."""
    hardware(hardware_name)
    llm = model(model_name)
    if hardware_name not in OPERATOR_TABLES:
        raise UnknownProfile(
            f"--hardware {hardware_name}: {package.name} has no operator tables for it; "
            f"they cover {', '.join(OPERATOR_TABLES)}"
        )
    try:
        engines = import_module(f"{package.module}.sdk.engine")
        database = import_module(f"{package.module}.sdk.perf_database")
    except ModuleNotFoundError:
        raise Unavailable(f"--from: {package.remedy}") from None
    # The package warns of low-quality rows in tables that these models do not use.
    logging.getLogger(package.module).setLevel(logging.ERROR)
    system = OPERATOR_TABLES[hardware_name]
    slots: Mapping[str, str] = database.get_version_slots(system, "vllm")
    version = slots["current"] if engine_version is None else engine_version
    if version not in slots.values():
        raise InvalidInput(
            f"--backend-version {version}: {package.name} has tables of vLLM "
            f"{' and '.join(sorted(slots.values()))} for {hardware_name}"
        )
    what = f"--model {model_name} on {gpus} x {hardware_name}"
    if reason := _not_measured(llm):
        raise UnknownProfile(
            f"{what}: {package.name} {reason}; leave out --from for the analytic profile, or "
            "choose another --model"
        )
    divided = {"tp_size": gpus} if layout is Layout.TP else {"attention_dp_size": gpus}
    whole = layout is Layout.DP_ATTN or _whole_experts(llm, gpus)
    with _covered(what, package), TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(_config(llm)))
        engine = engines.EngineHandle.compile(
            folder,
            system,
            "vllm",
            backend_version=version,
            **divided,
            moe_tp_size=1 if whole else gpus,
            moe_ep_size=gpus if whole else 1,
            **{**_kv_cache(llm), **_products(llm), **(formats or {})},
        )
    _refuse_unsupported_layers(llm, what, package)
    return OperatorTables(engine, what, package), Tables(
        package=package.installed, system=system, engine_version=version
    )


def _not_measured(llm: Model) -> str:
    """Return what the package estimates in steps of the model, or nothing."""
    if llm.states is not None and llm.states.inside:
        return "measured the convolution of Mamba 2, but not its scan"
    if llm.indexer is not None:
        return "did not measure sparse attention of prompts after 129 to 65,535 cached tokens"
    return ""


def _refuse_unsupported_layers(llm: Model, what: str, package: Package) -> None:
    windows = [kind for kind in llm.kinds if kind.window is not None]
    architecture = next(iter(llm.config.get("architectures") or [llm.architecture]))
    if windows and architecture not in WINDOWS:
        ignored = "chunks" if windows[0].chunked else "sliding window"
        raise UnknownProfile(
            f"{what}: {package.name} ignores the {ignored} of {windows[0].window} tokens of "
            f"{architecture}; leave out --from for the analytic profile, or choose another --model"
        )


def _config(llm: Model) -> JsonObject:
    """Return a config.json that the package can read; it would download other models'. It
    has the text part of a model that also reads images."""
    config = {**llm.config, **llm.config.get("text_config", {})}
    architectures = llm.config.get("architectures") or [""]
    return {**config, "architectures": [SAME_OPERATORS.get(each, each) for each in architectures]}


def _whole_experts(llm: Model, gpus: int) -> bool:
    """Return whether each GPU has whole experts (--enable-expert-parallel). By default vLLM divides
    each expert among the GPUs, which it refuses if the parts are not whole blocks of the weights'
    quantisation."""
    blocks = _scale_blocks(llm)
    width = llm.config.get("moe_intermediate_size")
    if width is None and llm.experts:
        width = llm.config.get("intermediate_size")
    return bool(blocks and width and width % (gpus * blocks[0]))


def _kv_cache(llm: Model) -> dict[str, str]:
    """Return the format of the KV cache. The package would assume 8 bits for weights in FP8, which
    vLLM does only if the checkpoint says so."""
    eight_bits = all(kind.entry_bytes == 1 for kind in llm.kinds)
    return {"kvcache_quant_mode": "fp8" if eight_bits else "bfloat16"}


def _products(llm: Model) -> dict[str, str]:
    """Return the format whose times stand for those of the model's matrix products outside experts,
    if the times of its own cannot be used.

    The package measured FP8 products with scales of blocks without CUDA graphs, as no others
    (`use_cuda_graph` in its collector/vllm/collect_gemm.py). So each takes at least as long as a
    CPU takes to launch it: 55 µs on H100 and H200, 151 µs on B200 and 282 µs on L40S. vLLM replays
    graphs in decodes. FP8 products with a single scale read as many bytes, and quantise activations
    in each step too. Latent attention was measured as a whole, with graphs, in its own format."""
    latent = "kv_lora_rank" in llm.config
    return {"gemm_quant_mode": "fp8"} if _scale_blocks(llm) and not latent else {}


def _scale_blocks(llm: Model) -> tuple[int, int] | None:
    """Return the size of the blocks of weights that share a scale."""
    return quantization_of(llm.config, llm.name).block


@dataclass(frozen=True, slots=True)
class Reach:
    """The part of the grid that the engine can reach."""

    longest: int
    """Tokens of a context."""
    kv_tokens: int
    """Tokens of all contexts in a step."""

    @classmethod
    def of(
        cls,
        hardware_name: str,
        model_name: str,
        gpus: int,
        kv_cache_dtype: KvCacheDtype = KvCacheDtype.AUTO,
        step_tokens: int = STEP_TOKENS,
    ) -> Reach:
        """Contexts up to the model's limit, and all that the memory of the GPUs holds at once. A
        smaller --kv-blocks or --max-model-len does not change the times of steps."""
        profile = analytic_profile(
            hardware_name, model_name, gpus=gpus, kv_cache_dtype=kv_cache_dtype
        )
        longest = model(model_name).max_model_len
        return cls(longest, max(longest, profile.kv_tokens(step_tokens, profile.max_model_len)))


def evaluate(
    times: StepSeconds, reach: Reach
) -> tuple[tuple[PrefillTimes, ...], tuple[DecodeTimes, ...], tuple[MixedTime, ...]]:
    prefill = tuple(
        PrefillTimes(tokens=n, cached_tokens=cached, seconds=(times.prefill_s(n, cached),))
        for cached in CACHED
        for n in LENGTHS
        if n + cached <= reach.longest
    )
    decode = tuple(
        DecodeTimes(batch=b, context=context, seconds=(times.decode_s(b, context),))
        for b in BATCHES
        for context in CONTEXTS
        if context <= reach.longest and b * context <= reach.kv_tokens
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
        if max(n + cached, context) <= reach.longest and n + cached + b * context <= reach.kv_tokens
    )
    return prefill, decode, mixed


def profile_from_tables(
    hardware_name: str,
    model_name: str,
    *,
    gpus: int | None = None,
    max_model_len: int | None = None,
    kv_blocks: int | None = None,
    step_tokens: int,
    engine_version: str | None = None,
    package: Package = AICONFIGURATOR,
) -> FromTables:
    """Memory and links are as in the analytic profile, whose errors this raises too."""
    n = gpus_for(hardware_name, model_name, gpus)
    analytic = analytic_profile(
        hardware_name,
        model_name,
        gpus=n,
        max_model_len=max_model_len,
        kv_blocks=kv_blocks,
        step_tokens=step_tokens,
    )
    times, tables = open_tables(hardware_name, model_name, n, engine_version, package=package)
    reach = Reach.of(hardware_name, model_name, n)
    return fit(times, tables, analytic, gpus=n, step_tokens=step_tokens, reach=reach)


def fit(
    times: StepSeconds,
    tables: Tables,
    analytic: Profile,
    *,
    gpus: int,
    step_tokens: int,
    reach: Reach,
) -> FromTables:
    """Evaluate the grid and fit the step formula. `analytic` has memory and links."""
    prefill, decode, mixed = evaluate(times, reach)
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
            "kv_groups": analytic.kv_groups,
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
