"""Resolves `--model` and `--weights` to a model that vLLM can load.

In: a name of a listed model, a folder, or a Hugging Face name. Out: a
`ResolvedModel`. The folder of a named model is written once to the user's cache, under a name with
a hash of the contents. Its config.json has only the text part of a multimodal model, because the
image processor would have to be downloaded, and no layers for multi-token prediction, as profiles.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from servers.basics.errors import InvalidInput
from servers.basics.json_object import JsonObject
from servers.profiles import MODELS, Model
from servers.profiles.kv_cache_dtype import KvCacheDtype, is_sparse_latent, with_kv_cache
from servers.profiles.machines.gpus import Hardware
from servers.profiles.models.architectures import keeps_states
from servers.profiles.models.config import model_of
from servers.profiles.models.files import model_name, read_config
from servers.vllm.models import tiny_model
from servers.vllm.models.tiny_model import TINY_CONFIG, stated_context

TEXT_MODELS = {
    "deepseek_v3": "DeepseekV3ForCausalLM",
    "gemma3_text": "Gemma3ForCausalLM",
    "gemma4_text": "Gemma4ForCausalLM",
    "kimi_k2": "DeepseekV3ForCausalLM",
    "llama4_text": "Llama4ForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen3_5_text": "Qwen3_5ForCausalLM",
    "qwen3_5_moe_text": "Qwen3_5MoeForCausalLM",
}
"""Class in vLLM of a multimodal model's text part, by its `model_type`."""


def text_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config of the text model alone."""
    text = {**config, **config.get("text_config", {})}
    if "text_config" in config:
        if text.get("model_type") not in TEXT_MODELS:
            raise InvalidInput(
                f"--model: the text part of {config.get('model_type')} cannot be loaded alone; "
                "give the model's folder, with its image processor"
            )
        text["architectures"] = [TEXT_MODELS[text["model_type"]]]
        if (tied := config.get("tie_word_embeddings")) is not None:
            text["tie_word_embeddings"] = tied
        del text["text_config"]
        text.pop("vision_config", None)
    if "num_nextn_predict_layers" in text:
        text["num_nextn_predict_layers"] = 0
    return text


class _Configs(Mapping[str, Mapping[str, Any]]):
    def __getitem__(self, name: str) -> Mapping[str, Any]:
        return TINY_CONFIG if name == "tiny" else text_config(MODELS[name].config)

    def __iter__(self) -> Iterator[str]:
        yield "tiny"
        yield from MODELS

    def __len__(self) -> int:
        return 1 + len(MODELS)


CONFIGS: Mapping[str, Mapping[str, Any]] = _Configs()


Weights = Literal["auto", "dummy", "random"]
ORDINARY_TOKENS = (1000, 20000)
"""Token ids that are not special tokens in common tokenizers; the end is exclusive."""
BYTES = (0, 256)
"""Token ids of the byte-level tokenizer of `tiny_model`; the end is exclusive."""


@dataclass(frozen=True, slots=True)
class ResolvedModel:
    """A model as vLLM loads it."""

    name: str
    """The name under which it is served."""
    path: str
    flags: tuple[str, ...]
    max_context: int | None
    """The longest context of the model, in tokens; None if only vLLM knows it."""
    states: bool = field(default=False, kw_only=True)
    """Whether some layers keep a state, for which vLLM chooses the tokens of a block."""
    vocabulary: tuple[int, int] = ORDINARY_TOKENS
    """The range of token ids for random prompts; the end is exclusive."""


def resolve_model(model: str, weights: str = "auto", cache: Path | None = None) -> ResolvedModel:
    """Resolve a model. Raises InvalidInput.

    `auto` means random weights for tiny, dummy weights for the other names and for a config.json,
    and a folder's weights for a folder.
    """
    if weights not in get_args(Weights):
        raise InvalidInput(f"--weights {weights}: use one of {', '.join(get_args(Weights))}")
    if model in CONFIGS:
        random = model == "tiny" and weights != "dummy"
        if weights == "random" and not random:
            raise InvalidInput(f"--weights random: only tiny has them; use dummy for {model}")
        folder = _cached(model, CONFIGS[model], random, cache or cache_folder())
        flags = ("--dtype", "bfloat16", "--load-format", "auto" if random else "dummy")
        longest = stated_context(CONFIGS[model])
        states = keeps_states(CONFIGS[model])
        return ResolvedModel(model, str(folder), flags, longest, BYTES, states=states)
    if weights == "random":
        raise InvalidInput(f"--weights random: only tiny has them; use auto or dummy for {model}")
    load_format = ("--load-format", "dummy") if weights == "dummy" else ()
    path = Path(model).expanduser()
    if path.suffix == ".json":
        config, name = text_config(read_config(model).fields), model_name(model)
        folder = _cached(name, config, False, cache or cache_folder())
        longest = stated_context(config)
        flags = ("--dtype", "bfloat16", "--load-format", "dummy")
        states = keeps_states(config)
        return ResolvedModel(name, str(folder), flags, longest, BYTES, states=states)
    if (path / "config.json").is_file():
        config = _config(path)
        text = config.get("text_config", config)
        limits = stated_context(text), text.get("vocab_size")
        longest, tokens = (each if isinstance(each, int) else None for each in limits)
        first, end = ORDINARY_TOKENS
        vocabulary = (first, min(end, tokens)) if tokens and tokens > 2 * first else ORDINARY_TOKENS
        path = path.resolve()
        states = keeps_states(config)
        return ResolvedModel(path.name, str(path), load_format, longest, vocabulary, states=states)
    if re.fullmatch(r"[\w.-]+/[\w.-]+", model) and not path.exists() and model[0] not in "./":
        return ResolvedModel(model, model, load_format, None)
    what = "has no config.json and is" if path.is_dir() else "is not a folder and"
    raise InvalidInput(
        f"--model {model} {what} not a known name ({', '.join(CONFIGS)}); "
        "use one of those, a config.json, a model's folder, or a Hugging Face name (org/model)"
    )


def vocabulary_of(served: str) -> tuple[int, int]:
    """Return the range of token ids for an external server, from the name of its model."""
    return BYTES if served in CONFIGS else ORDINARY_TOKENS


def cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "turnstile/models"


def set_compile_cache(env: dict[str, str]) -> None:
    """Set a permanent cache for torch's compiled code, so that later processes reuse it."""
    env.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache_folder().with_name("torchinductor")))


def _cached(name: str, config: Mapping[str, Any], random: bool, cache: Path) -> Path:
    contents = json.dumps(config) + inspect.getsource(tiny_model)
    digest = hashlib.sha256(contents.encode()).hexdigest()[:12]
    folder = cache / f"{name}-{'random' if random else 'dummy'}-{digest}"
    if folder.exists():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=".", dir=cache))
    rng = np.random.default_rng(0) if random else None
    tiny_model.write_model(unfinished, config, rng)
    try:
        unfinished.rename(folder)
    except OSError:  # another process has made it in the meantime
        shutil.rmtree(unfinished)
        if not folder.exists():
            raise
    return folder


def _config(folder: Path) -> JsonObject:
    try:
        config: JsonObject = json.loads((folder / "config.json").read_text())
    except ValueError as error:
        raise InvalidInput(f"{folder / 'config.json'}: {error}") from None
    return config


PACKED = "fp8_ds_mla"
FORMATS = {
    **dict.fromkeys(("auto", "float16", "bfloat16"), KvCacheDtype.AUTO),
    **dict.fromkeys(("fp8", "fp8_e4m3", "fp8_e5m2", PACKED), KvCacheDtype.FP8),
}
"""Formats of KV by the name that a server reports, which is the one in its settings: a server
reports `PACKED` if a user asked for it, and not if an engine process chose it for its GPU."""


def model_at_url(
    url: str, model: str, weights: str, reported: str, gpu: Hardware | None
) -> tuple[Model, KvCacheDtype]:
    """Return the sizes of the model of a running server, which reports this format of its KV.
    Raises InvalidInput."""
    if reported not in FORMATS:
        raise InvalidInput(
            f"--url {url}: KV in {reported} is not supported; start the server with "
            "--kv-cache-dtype auto or fp8"
        )
    packed = reported == PACKED  # which Hopper has in any case
    llm = served_model(model, weights, FORMATS[reported], None if packed else gpu)
    if gpu is None and not packed and is_sparse_latent(llm):
        raise InvalidInput(
            f"--url {url}: the KV bytes of {llm.name} depend on the GPU; name it with --hardware"
        )
    return llm, FORMATS[reported]


def served_model(
    model: str, weights: str, kv_cache_dtype: KvCacheDtype, gpu: Hardware | None
) -> Model:
    """Return the sizes of a model on a GPU, if that is known. Raises InvalidInput."""
    if model in MODELS:
        return with_kv_cache(MODELS[model], kv_cache_dtype, gpu)
    path = Path(resolve_model(model, weights).path) / "config.json"
    try:
        config = json.loads(path.read_text())
    except (OSError, ValueError):
        raise InvalidInput(
            f"--model {model}: no usable config.json, so its KV size is unknown; give the path of "
            "the model's folder"
        ) from None
    llm = model_of(config, model, where=str(path))
    return with_kv_cache(llm, kv_cache_dtype, gpu)
