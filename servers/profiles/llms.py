"""Models by name, or from the config.json that a path or a cached Hugging Face id leads to."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from servers.profiles.model_config import model_of
from servers.profiles.model_shape import Model
from servers.profiles.profile import find


class _Listed(Mapping[str, Model]):
    """The models of `models.json`, each computed when it is first used."""

    def __init__(self) -> None:
        self._computed: dict[str, Model] = {}

    @cached_property
    def _entries(self) -> dict[str, dict[str, Any]]:
        entries: dict[str, dict[str, Any]]
        entries = json.loads(Path(__file__).with_name("models.json").read_bytes())
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
    return find("model", MODELS, name)
