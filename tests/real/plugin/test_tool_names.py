"""The tools of an answer: as vLLM's own parsers find them, and as the policy gets them."""

from __future__ import annotations

import re
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from servers.policies.base import FREE, Costs, Policy, Retention, pin
from servers.policies.base import Request as View
from servers.tool_names import tool_names
from servers.vllm.virtual_time.stepping import build_plugged, request, step
from tests.tool_call_formats import FORMATS

parsers = pytest.importorskip("vllm.tool_parsers", reason="older vLLM has its parsers elsewhere")
protocol = pytest.importorskip("vllm.entrypoints.openai.chat_completion.protocol")

SPECIAL = re.compile(r"</?[^<>\s]+>|\[[A-Z_]+\]")
NEEDED = [
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<|tool_call_begin|>",
    "<|tool_call_end|>",
]
"""Special tokens that parsers look for in the vocabulary, whether an answer has them or not."""


def tokenizer(text: str) -> PreTrainedTokenizerFast:
    """Return a tokenizer of bytes, for which the markers of the text are special tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE(vocab={char: i for i, char in enumerate(alphabet)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(sorted({*SPECIAL.findall(text), *NEEDED}))
    return PreTrainedTokenizerFast(tokenizer_object=made)


@pytest.mark.parametrize("name", [name for name, called in FORMATS.items() if called.parser])
def test_vllms_parser_finds_the_same_tools_in_the_decoded_answer(name: str) -> None:
    parser, answer, names = FORMATS[name]
    if parser not in parsers.ToolParserManager.list_registered():
        pytest.skip(f"this vLLM has no parser {parser}")
    asked: Any = protocol.ChatCompletionRequest(
        model="m",
        messages=[{"role": "user", "content": "?"}],
        tools=[{"type": "function", "function": {"name": tool}} for tool in names],
    )
    known = tokenizer(answer)
    decoded = known.decode(known.encode(answer), skip_special_tokens=False)
    made = parsers.ToolParserManager.get_tool_parser(parser)(known, asked.tools)
    found = made.extract_tool_calls(decoded, asked)
    assert tuple(call.function.name for call in found.tool_calls) == names
    assert tool_names(decoded) == names


class Pinning(Policy):
    name = "pinning"

    def finished(self, request: View, now_s: float) -> Retention:
        return FREE if request.ends_program else pin(10.0, tool=request.tool)


@pytest.mark.parametrize(
    ("answer", "tools", "pins"),
    [
        (FORMATS["Kimi K2"].answer + "<|im_end|>", FORMATS["Kimi K2"].names, 1),
        ("<|unheard_of_tool_call|>get_time<|im_end|>", ("unknown",), 1),
        ("It is sunny", ("unknown",), 1),  # cut by its limit
        ("It is sunny.<|im_end|>", (), 0),
    ],
)
def test_only_an_answer_that_plainly_calls_no_tool_ends_its_program(
    monkeypatch: pytest.MonkeyPatch, answer: str, tools: tuple[str, ...], pins: int
) -> None:
    server: Any = build_plugged(Pinning(Costs(prefill_s=float)), None, 1000, 16, 8192)
    known = tokenizer(answer + "<|im_end|>")
    monkeypatch.setattr(server.structured_output_manager, "tokenizer", known, raising=False)
    ids = known.encode(answer)
    sent = request("r", list(range(40)), len(ids), 0.0, program_id="a")
    sent.sampling_params.stop_token_ids = [known.convert_tokens_to_ids("<|im_end|>")]
    sent.sampling_params.ignore_eos = False
    server.add_request(sent)
    view = server.turns["r"].view
    while server.has_unfinished_requests():
        step(server, lambda made: ids[made.num_output_tokens])
    assert (view.tools, len(server.runner.pins)) == (tools, pins)
