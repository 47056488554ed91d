"""Resolves `--model` and `--weights` to a model that vLLM can load.

In: a name from `servers.vllm.models.configs`, a folder, or a Hugging Face name. Out: a
`ResolvedModel`. The folder of a named model is written once to the user's cache, under a name with
a hash of the contents.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from servers.basics.errors import InvalidInput
from servers.basics.json_object import JsonObject
from servers.profiles.models.config import keeps_states
from servers.profiles.models.files import model_name, read_config
from servers.vllm.models import tiny_model
from servers.vllm.models.configs import CONFIGS, text_config

Weights = Literal["auto", "dummy", "random"]
ORDINARY_TOKENS = (1000, 20000)
"""Token ids that are not special tokens in common tokenizers; the end is exclusive."""
BYTES = (0, 256)
"""Token ids of the byte-level tokenizer of `tiny_model`; the end is exclusive."""
LIMITS = ("max_position_embeddings", "vocab_size")


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
        longest = CONFIGS[model]["max_position_embeddings"]
        states = keeps_states(CONFIGS[model])
        return ResolvedModel(model, str(folder), flags, longest, BYTES, states=states)
    if weights == "random":
        raise InvalidInput(f"--weights random: only tiny has them; use auto or dummy for {model}")
    load_format = ("--load-format", "dummy") if weights == "dummy" else ()
    path = Path(model).expanduser()
    if path.suffix == ".json":
        config, name = text_config(read_config(model).fields), model_name(model)
        folder = _cached(name, config, False, cache or cache_folder())
        longest = config.get("max_position_embeddings")
        flags = ("--dtype", "bfloat16", "--load-format", "dummy")
        states = keeps_states(config)
        return ResolvedModel(name, str(folder), flags, longest, BYTES, states=states)
    if (path / "config.json").is_file():
        config = _config(path)
        text = config.get("text_config", config)
        longest, tokens = (n if isinstance(n := text.get(each), int) else None for each in LIMITS)
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
