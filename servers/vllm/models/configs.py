"""Writes config.json for models of `servers.profiles`: `--load-format dummy` needs no download.

For multimodal models it has only the text part, because the image processor of the vision tower
would have to be downloaded. Layers for multi-token prediction are left out, as in their profiles.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from servers.basics.errors import InvalidInput
from servers.profiles import MODELS
from servers.vllm.models.tiny_model import TINY_CONFIG

TEXT_MODELS = {
    "gemma3_text": "Gemma3ForCausalLM",
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
