"""What AIPerf makes of exported traces, run by a Python that has `aiperf`.

Arguments: pairs of a format (mooncake, aiperf-dag or weka) and a path. Reads with AIPerf's own
loaders and prints, as JSON, the requests with their prompt and output tokens, by format and
conversation. For mooncake and weka, AIPerf itself makes up prompts of the right length; with this
tokenizer each character is a token.
"""

from __future__ import annotations

import json
import logging
import string
import sys
import tempfile
from pathlib import Path
from typing import Any

from aiperf.common import random_generator
from aiperf.common.tokenizer import Tokenizer
from aiperf.dataset.generator.prompt import PromptGenerator
from aiperf.dataset.loader.dag_jsonl import DagJsonlLoader
from aiperf.dataset.loader.mooncake_trace import MooncakeTraceDatasetLoader
from aiperf.dataset.loader.weka_trace import WekaTraceLoader
from tokenizers import Tokenizer as Fast
from tokenizers import decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

BLOCK_TOKENS = {"mooncake": 512, "weka": 64}


def character_tokenizer(folder: str) -> Any:
    """Return a tokenizer that is saved in the folder, from which AIPerf loads it again."""
    vocabulary = {character: id for id, character in enumerate(string.printable)}
    fast = Fast(models.WordLevel(vocabulary, "?"))
    fast.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    fast.decoder = decoders.Fuse()
    special = {"unk_token": "?", "eos_token": "\n"}
    PreTrainedTokenizerFast(tokenizer_object=fast, **special).save_pretrained(folder)
    return Tokenizer.from_pretrained(folder)


def conversations(format: str, path: Path, generator: Any) -> Any:
    if format == "aiperf-dag":
        return DagJsonlLoader(path).load()
    kind = MooncakeTraceDatasetLoader if format == "mooncake" else WekaTraceLoader
    loader = kind(
        filename=path, prompt_generator=generator, default_block_size=BLOCK_TOKENS[format]
    )
    return loader.convert_to_conversations(loader.load_dataset())


def requests(format: str, conversation: Any) -> list[dict[str, Any]]:
    """Return the requests of a conversation. Turns of the DAG format have only new messages, one
    word per token; AIPerf puts the prompts and answers before them."""
    found: list[dict[str, Any]] = []
    for turn in conversation.turns:
        texts = [message["content"] for message in turn.raw_messages or ()]
        texts += [content for text in turn.texts for content in text.contents]
        if format == "aiperf-dag":
            prompt = sum(len(text.split()) for text in texts)
            if found:
                prompt += found[-1]["prompt_tokens"] + found[-1]["output_tokens"]
        else:
            prompt = sum(map(len, texts))
        found.append({
            "prompt_tokens": prompt, "output_tokens": turn.max_tokens,
            "delay_ms": turn.delay, "timestamp_ms": turn.timestamp,
            "waits_for": len(turn.prerequisites),
        })  # fmt: skip
    return found


if __name__ == "__main__":
    logging.disable()
    random_generator.init(1)
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        tokenizer = character_tokenizer(folder)
        generator = PromptGenerator(prompts=None, prefix_prompts=None, tokenizer=tokenizer)
        for format, path in zip(sys.argv[1::2], map(Path, sys.argv[2::2]), strict=True):
            read = conversations(format, path, generator)
            found[format] = {each.session_id: requests(format, each) for each in read}
    print(json.dumps(found))
