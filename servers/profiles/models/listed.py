"""Finds models by name, or by the config.json of a path or of a cached Hugging Face id."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from servers.basics.errors import InvalidInput, UnknownProfile
from servers.basics.nearest import nearest
from servers.profiles.models.architectures import OTHER_MEMORY
from servers.profiles.models.config import model_of
from servers.profiles.models.files import names_config, read_config
from servers.profiles.models.shape import Model


class _Listed(Mapping[str, Model]):
    """The models of `listed.json`, each computed when it is first used."""

    def __init__(self) -> None:
        self._computed: dict[str, Model] = {}

    @cached_property
    def _entries(self) -> dict[str, dict[str, Any]]:
        entries: dict[str, dict[str, Any]]
        entries = json.loads(Path(__file__).with_name("listed.json").read_bytes())
        return entries

    def __getitem__(self, name: str) -> Model:
        if name not in self._computed:
            entry = self._entries[name]
            self._computed[name] = model_of(
                entry["config"], name, gpus=entry["gpus"], source=f"{entry['source']} config.json"
            )
        return self._computed[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


MODELS: Mapping[str, Model] = _Listed()


def model(name: str) -> Model:
    """Return the listed model of that name, or the model of a config. Raises UnknownProfile or
    InvalidInput."""
    if name in MODELS:
        return MODELS[name]
    if not names_config(name):
        if kept := _kept_by(name):
            raise InvalidInput(f"--model {name}: not supported: its layers have {kept}")
        known = (
            f"{', '.join(MODELS)}; or the path of a config.json or of its folder, or a cached id"
        )
        alike = [each for each in MODELS if _version(each) == _version(name)]
        close = " or ".join(map(_described, filter(None, nearest(name, alike).split(" or "))))
        hint = f"; did you mean {close}?" if close else ""
        raise UnknownProfile(f"--model {name}: unknown{hint} (known: {known})")
    try:
        config = read_config(name)
    except InvalidInput as error:
        sources = {llm.source.removesuffix(" config.json"): llm.name for llm in MODELS.values()}
        if name not in sources:
            raise
        raise InvalidInput(f"{error}; --model {sources[name]} needs no file") from None
    found = model_of(config.fields, config.name, where=str(config.path))
    listed = MODELS.get(config.name)
    if listed is not None and replace(listed, gpus=None, source=found.source) != found:
        raise InvalidInput(
            f"{config.path}: differs from the listed model with its name, {config.name}; "
            "rename its folder"
        )
    return found


def _kept_by(name: str) -> str | None:
    """Return what the layers of a family of models keep that is not supported, if it is known."""
    written = _letters(name)
    return next(
        (kept for family, kept in OTHER_MEMORY.items() if written.startswith(_letters(family))),
        None,
    )


def _letters(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _version(name: str) -> str | None:
    """Return a name up to its first number, such as `kimi-k2`. Models with another one may have
    other memory."""
    found = re.match(r"\D*\d+", name.lower())
    return found and found[0]


def _described(name: str) -> str:
    """Return a listed model's name with its context and weights, which decide which jobs fit."""
    llm = MODELS[name]
    weights = f"{llm.weight_bytes / 2**30:,.0f} GiB of weights"
    return f"{name} (context {llm.max_model_len:,}, {weights})"


def same_shape(name: str) -> list[str]:
    """Return the listed models with the same weights, attention and KV, which decide step times;
    name, default GPUs, source and longest context may differ. The model itself, if listed, is the
    first."""
    found = model(name)
    same = [
        listed.name
        for listed in MODELS.values()
        if replace(
            listed,
            name=found.name,
            gpus=found.gpus,
            source=found.source,
            max_model_len=found.max_model_len,
        )
        == found
    ]
    return sorted(same, key=lambda each: each != name)


def model_copy(name: str) -> bytes | None:
    """Return the contents of a file that describes the model that `name` refers to now; None for a
    listed model."""
    if name in MODELS or not names_config(name):
        return None
    return read_config(name).named()
