"""From `--model` and `--weights` to what vLLM is told to load.

In: a name of `servers.vllm.models.configs`, a folder, or a Hugging Face name. Out: `Loadable`.
Named
models are written once into the user's cache, under a name that changes with their contents.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import re
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from servers.errors import InvalidInput, UnknownModel
from servers.vllm.models import tiny_model
from servers.vllm.models.configs import CONFIGS

Weights = Literal["auto", "dummy", "random"]


ORDINARY_TOKENS = (1000, 20000)
"""Of the usual tokenizers; special ones lie below or above."""
BYTES = (0, 256)
"""Of the tokenizer that we make: a byte is its own id."""


LIMITS = ("max_position_embeddings", "vocab_size")


@dataclass(frozen=True, slots=True)
class Loadable:
    name: str
    """Under which it is served."""
    path: str
    flags: tuple[str, ...]
    max_context: int | None
    """Longest context that it was made for; None where only vLLM knows."""
    vocabulary: tuple[int, int] = ORDINARY_TOKENS
    """First token id that random prompts may hold, and the first after it that they may not."""


def loadable(model: str, weights: str = "auto", cache: Path | None = None) -> Loadable:
    """`auto`: random weights for tiny, dummy for the other names, a folder's own for a folder."""
    if weights not in get_args(Weights):
        raise InvalidInput(f"--weights {weights}: use one of {', '.join(get_args(Weights))}")
    if model in CONFIGS:
        random = model == "tiny" and weights != "dummy"
        if weights == "random" and not random:
            raise InvalidInput(f"--weights random: only tiny has them; {model} takes dummy")
        folder = _cached(model, random, cache or cache_folder())
        flags = ("--dtype", "bfloat16", "--load-format", "auto" if random else "dummy")
        return Loadable(model, str(folder), flags, CONFIGS[model]["max_position_embeddings"], BYTES)
    if weights == "random":
        raise InvalidInput(f"--weights random: only tiny has them; {model} takes auto or dummy")
    as_asked = ("--load-format", "dummy") if weights == "dummy" else ()
    path = Path(model).expanduser()
    if (path / "config.json").is_file():
        longest, tokens = (_config_number(path, name) for name in LIMITS)
        first, end = ORDINARY_TOKENS
        vocabulary = (first, min(end, tokens)) if tokens and tokens > 2 * first else ORDINARY_TOKENS
        return Loadable(path.resolve().name, str(path.resolve()), as_asked, longest, vocabulary)
    if re.fullmatch(r"[\w.-]+/[\w.-]+", model) and not path.exists() and model[0] not in "./":
        return Loadable(model, model, as_asked, None)
    what = "has no config.json" if path.is_dir() else "is no folder"
    raise UnknownModel(
        f"--model {model} {what} and no name that we know ({', '.join(CONFIGS)}); "
        "give one of those, a model's folder, or a Hugging Face name (org/model)"
    )


def vocabulary_of(served: str) -> tuple[int, int]:
    """Of a server that somebody else started, by the name of its model: ours have few tokens."""
    return BYTES if served in CONFIGS else ORDINARY_TOKENS


def cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "turnstile/models"


def keep_compiled(env: dict[str, str]) -> None:
    """What torch compiles is for later processes too, and no temporary file."""
    env.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache_folder().with_name("torchinductor")))


def _cached(name: str, random: bool, cache: Path) -> Path:
    made_of = json.dumps(CONFIGS[name]) + inspect.getsource(tiny_model)
    digest = hashlib.sha256(made_of.encode()).hexdigest()[:12]
    folder = cache / f"{name}-{'random' if random else 'dummy'}-{digest}"
    if folder.exists():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=".", dir=cache))
    rng = np.random.default_rng(0) if random else None
    tiny_model.write_model(unfinished, CONFIGS[name], rng)
    try:
        unfinished.rename(folder)
    except OSError:  # Another process was first.
        shutil.rmtree(unfinished)
        if not folder.exists():
            raise
    return folder


def _config_number(folder: Path, name: str) -> int | None:
    try:
        config = json.loads((folder / "config.json").read_text())
    except ValueError as error:
        raise UnknownModel(f"{folder / 'config.json'}: {error}") from None
    found = config.get("text_config", config).get(name)
    return found if isinstance(found, int) else None
