"""Chains of Qwen-Bailian's chats."""

from __future__ import annotations

from typing import Any

import pytest

from tests.traces.sample import Sample, json_lines, load
from traces import Provenance
from turnstile_formats import bailian


def sample() -> Sample:
    def request(id: int, parent: int, at_s: float, prompt: int, last: int) -> dict[str, Any]:
        return {"chat_id": id, "parent_chat_id": parent, "timestamp": at_s, "turn": 1,
                "input_length": prompt, "output_length": 20, "type": "text",
                "hash_ids": [1, 2, 3, 4, last]}  # fmt: skip

    lines = json_lines(request(1, -1, 0.0, 80, 5), request(2, -1, 1.0, 80, 6),
                       request(3, 1, 30.0, 90, 5))  # fmt: skip
    return Sample({"bailian.jsonl": lines}, (Provenance.INFERRED,))


SAMPLE = sample()


def chat(id: int, parent: int, at_s: float, prompt: int, *hashes: int) -> dict[str, Any]:
    return {
        "chat_id": id, "parent_chat_id": parent, "timestamp": at_s, "turn": 1, "type": "text",
        "input_length": prompt, "output_length": 10, "hash_ids": list(hashes),
    }  # fmt: skip


def test_a_chain_of_bailian_chats_is_one_program() -> None:
    first, second = chat(7, -1, 0, 33, 1, 2), chat(9, 7, 60, 64, 1, 2, 3, 4)
    (program,), _ = load(bailian, first, second)
    assert [turn.kept_tokens for turn in program.turns] == [0, 43]
    # 60 s - (1.27 + 0.0149 · 10 + 1.47e-5 · 33) s
    assert program.turns[0].tool_gap_s == pytest.approx(58.581, abs=0.001)
    assert (program.turns[0].gap_provenance, program.turns[0].tools) == ("inferred", ())


def test_a_second_answer_to_a_bailian_chat_begins_a_program_that_shares_its_prefix() -> None:
    (one, other), repairs = load(
        bailian, chat(1, -1, 0, 32, 1, 2), chat(2, 1, 9, 48, 1, 2, 3), chat(3, 1, 20, 48, 1, 2, 4)
    )
    assert [len(one.turns), len(other.turns)] == [2, 1]
    assert other.turns[0].prefixes[-1].tokens == 32
    assert any("missing or was continued before" in repair for repair in repairs)
