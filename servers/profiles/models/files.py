"""Finds and reads the config.json that `--model` refers to, for models that are not listed.

In: the path of a config, a folder with one, or the Hugging Face id of a model in the local cache
(https://huggingface.co/docs/huggingface_hub/guides/manage-cache). Out: its fields and the model's
name. Nothing is downloaded.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any, NamedTuple

from servers.basics.errors import InvalidInput

CONFIG = "config.json"
QUANTIZATION = "hf_quant_config.json"
"""The file in which NVIDIA's checkpoints have the quantization, if not in the config."""
NAME_FIELD = "turnstile_name"
"""Field of a copy in a run folder, with the name derived from the original's path."""
MOST_BYTES = 16 * 2**20
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+_-]{0,95}")
"""Names of run folders contain it."""
ID = re.compile(r"([A-Za-z0-9][\w.-]*)/([A-Za-z0-9][\w.-]*)", re.ASCII)
REVISION = re.compile(r"[0-9a-f]{40}")


class ModelConfig(NamedTuple):
    path: Path
    name: str
    fields: dict[str, Any]

    def named(self) -> bytes:
        """Return the config as a single file that includes the name and the quantization."""
        return json.dumps({NAME_FIELD: self.name, **self.fields}, indent=1).encode() + b"\n"


def names_config(model: str) -> bool:
    """Return whether the value of --model is a path or an id, by its form or because it exists."""
    path = Path(model).expanduser()
    return path.suffix == ".json" or path.is_dir() or "/" in model


def read_config(model: str) -> ModelConfig:
    """Raises InvalidInput, also if the name cannot name a folder."""
    path = _path(model)
    fields = _fields(path)
    apart = path.with_name(QUANTIZATION)
    if path.name == CONFIG and "quantization_config" not in fields and apart.is_file():
        fields["quantization_config"] = {**_fields(apart), "quant_method": "modelopt"}
    name = fields.get(NAME_FIELD) or model_name(model)
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise InvalidInput(
            f"{path}: the model's name would be {str(name)[:60]!r}; rename its folder, with up to "
            "96 letters, digits, dots, dashes and underscores"
        )
    return ModelConfig(path, name, fields)


def model_name(model: str) -> str:
    """Return the name in reports: the last part of an id or a folder, or the name of a file other
    than config.json. The folder of a snapshot in the cache has the id in a parent's name."""
    path = Path(model).expanduser()
    if path.suffix == ".json":
        if path.name != CONFIG:
            return path.stem
        path = path.absolute().parent
    elif ID.fullmatch(model) and not path.is_dir():
        return path.name
    path = path.resolve()
    if path.parent.name == "snapshots":
        return path.parent.parent.name.rpartition("--")[2]
    return path.name


def _path(model: str) -> Path:
    path = Path(model).expanduser()
    if path.suffix == ".json":
        return path
    if path.is_dir():
        if (path / CONFIG).is_file():
            return path / CONFIG
        raise InvalidInput(
            f"--model {model}: the folder has no {CONFIG}; give a model folder as saved by "
            "transformers, or the path of its config"
        )
    parts = ID.fullmatch(model)
    if parts is None or ".." in model or "--" in model:
        raise InvalidInput(
            f"--model {model}: no such folder, and not the id of a model (org/name); give a name "
            f"of bench list models, a {CONFIG}, a folder with one, or the id of a cached model"
        )
    return _cached(*parts.groups())


def hub_cache() -> Path:
    """Return the folder in which huggingface_hub keeps models."""
    if given := os.environ.get("HF_HUB_CACHE"):
        return Path(given).expanduser()
    if home := os.environ.get("HF_HOME"):
        return Path(home).expanduser() / "hub"
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "huggingface/hub"


def _cached(organisation: str, name: str) -> Path:
    """Return the config of the revision `main`, or of the only revision."""
    folder = hub_cache() / f"models--{organisation}--{name}"
    try:
        revision = (folder / "refs/main").read_text().strip()
        revisions = [revision] if REVISION.fullmatch(revision) else []
    except (OSError, ValueError):
        revisions = []
    snapshots = folder / "snapshots"
    if not revisions and snapshots.is_dir():
        revisions = [each.name for each in snapshots.iterdir() if REVISION.fullmatch(each.name)]
    found = [snapshots / each / CONFIG for each in revisions]
    if len(found) == 1 and found[0].is_file():
        return found[0]
    reason = "has several revisions" if len(found) > 1 else f"has no {CONFIG}"
    raise InvalidInput(
        f"--model {organisation}/{name}: the Hugging Face cache ({hub_cache()}) {reason} of it, "
        f"and nothing is downloaded; run hf download {organisation}/{name} {CONFIG}, or give a path"
    )


def _fields(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = (getattr(error, "strerror", None) or str(error)).lower()
        raise InvalidInput(f"{path}: {reason}; give the config.json of a model") from None
    if len(data) > MOST_BYTES:
        raise InvalidInput(f"{path}: larger than 16 MiB; give the config.json of a model")
    try:
        fields = json.loads(data)
    except ValueError as error:  # also for bytes that are not text, and for too long integers
        raise InvalidInput(f"{path}: not JSON: {error}; download it again") from None
    except RecursionError:
        raise InvalidInput(f"{path}: nested too deeply; give the config.json of a model") from None
    if not isinstance(fields, dict):
        raise InvalidInput(
            f"{path}: {type(fields).__name__} instead of an object with fields; give the "
            "config.json of a model"
        )
    return fields
