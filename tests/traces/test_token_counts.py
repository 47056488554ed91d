"""Token counts of text: by a tokenizer, fitted to the set, or by the documented default."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servers.basics.errors import InvalidInput
from tests.sentences import mentions
from tests.traces.sample import json_lines
from traces import read_traces
from traces.token_counts import by_tokenizer, default_counter


def words(folder: Path) -> Path:
    """Write a tokenizer for which each word is a token."""
    pytest.importorskip("tokenizers")
    document = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [],
        "normalizer": None, "post_processor": None, "decoder": None,
        "pre_tokenizer": {"type": "Whitespace"},
        "model": {"type": "WordLevel", "vocab": {"[UNK]": 0}, "unk_token": "[UNK]"},
    }  # fmt: skip
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(document))
    return path


def conversation(words: int) -> bytes:
    """Return a conversation without token counts: a question of so many words, and an answer."""
    return json_lines(
        {"conversation_id": "c", "turn": 1, "role": "user", "content": "four " * words},
        {"conversation_id": "c", "turn": 2, "role": "assistant", "content": "a b c"},
    )


def span(number: int, characters: int, tokens: int) -> dict[str, Any]:
    """Return a model call with text and usage."""
    text = json.dumps([{"role": "user", "content": "x" * characters}])
    attributes = {
        "gen_ai.operation.name": "chat", "gen_ai.input.messages": text,
        "gen_ai.usage.input_tokens": tokens, "gen_ai.usage.output_tokens": 5,
    }  # fmt: skip
    start = 1_700_000_000 + 10 * number
    return {"trace_id": f"t{number}", "span_id": "s", "start_time": start, "end_time": start + 1,
            "attributes": attributes}  # fmt: skip


def test_a_tokenizer_counts_the_text(tmp_path: Path) -> None:
    (tmp_path / "c.jsonl").write_bytes(conversation(60))
    loaded = read_traces(tmp_path / "c.jsonl", tokenizer=words(tmp_path))
    (program,) = loaded.programs
    assert (program.turns[0].prompt_tokens, program.turns[0].output_tokens) == (60, 3)
    assert loaded.repairs[0].reason.endswith("counted by the tokenizer tokenizer.json")


def test_characters_per_token_are_fitted_to_the_files_with_usage_before_others_are_read(
    tmp_path: Path,
) -> None:
    # 19 texts have 5 characters per token, and 2 have 4: the median is 5. The errors of the two are
    # |400 / 5 - 100| / 100, but most have none. 300 characters are 60 tokens.
    (tmp_path / "a.jsonl").write_bytes(conversation(60))
    spans = [*(span(i, 500, 100) for i in range(19)), span(19, 400, 100), span(20, 400, 100)]
    (tmp_path / "b.json").write_bytes(json_lines(spans))
    loaded = read_traces(tmp_path)
    assert loaded.programs[0].turns[0].prompt_tokens == 60
    fit = "1 token per 5.00 characters", "21 texts", "median error 0%"
    assert mentions(loaded.repairs[0].reason, *fit)


def test_too_few_or_implausible_texts_leave_the_default(tmp_path: Path) -> None:
    # Texts of 0.05 characters per token are abbreviated ones.
    (tmp_path / "a.jsonl").write_bytes(conversation(66))
    spans = [*(span(i, 5, 100) for i in range(30)), *(span(30 + i, 500, 100) for i in range(19))]
    (tmp_path / "b.json").write_bytes(json_lines(spans))
    loaded = read_traces(tmp_path)
    assert loaded.programs[0].turns[0].prompt_tokens == 100  # 330 / 3.3
    assert "1 token per 3.30 characters, inferred; median error 6%" in loaded.repairs[0].reason


def test_recorded_usage_takes_precedence_over_a_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(json_lines([span(0, 500, 100)]))
    loaded = read_traces(tmp_path / "a.json", tokenizer=words(tmp_path))
    assert loaded.programs[0].turns[0].prompt_tokens == 100


def test_the_fit_has_the_median_relative_error() -> None:
    # Ratios 2, 2, …, 4, …, 8, …: the median is 4; relative errors are 0.5, 0 and 1.
    counter = default_counter()
    counter.length(["text"])
    for characters, times in ((200, 7), (400, 8), (800, 9)):
        for _ in range(times):
            counter.observe(characters, 100)
    fitted = counter.fitted()
    assert fitted is not None
    assert fitted.length(["x" * 400]) == 100
    assert mentions(fitted.basis, "24 texts", "median error 50%")


def test_a_file_that_is_no_tokenizer_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    for contents in ("{}", "no json", ""):
        (tmp_path / "t.json").write_text(contents)
        with pytest.raises(InvalidInput, match=r"--tokenizer .*t\.json: .*give a model's tokeni"):
            by_tokenizer(tmp_path / "t.json")


def lmcache_call(second: int, prompt: str, answer: str) -> dict[str, Any]:
    at_us = 1_760_000_000_000_000 + 1_000_000 * second
    return {"timestamp": at_us, "input": prompt, "output": answer, "session_id": "s"}


def test_the_texts_of_lmcache_and_aiperf_are_counted_by_the_tokenizer(tmp_path: Path) -> None:
    first, answer = "a " * 40, "bb " * 7
    calls = lmcache_call(0, first, answer), lmcache_call(9, first + answer + "cccc " * 5, "d")
    (tmp_path / "a.jsonl").write_bytes(json_lines(*calls))
    turns = [{"messages": [{"role": "user", "content": "a " * n}], "max_tokens": 9} for n in (5, 6)]
    (tmp_path / "b.jsonl").write_bytes(json_lines({"session_id": "dag", "turns": turns}))
    loaded = read_traces(tmp_path, tokenizer=words(tmp_path))
    lmcache, aiperf = loaded.programs
    assert [(t.prompt_tokens, t.output_tokens) for t in lmcache.turns] == [(40, 7), (52, 1)]
    assert lmcache.turns[1].kept_tokens == 47  # the texts of the first prompt and of its answer
    assert [t.prompt_tokens for t in aiperf.turns] == [5, 5 + 9 + 6]
    assert loaded.count_basis == "counted by the tokenizer tokenizer.json"


def test_a_count_of_text_names_its_error(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(json_lines(lmcache_call(0, "x" * 330, "y" * 33)))
    loaded = read_traces(tmp_path / "a.jsonl")
    basis = "1 token per 3.30 characters, inferred; median error 6% of prompts and 11% of answers"
    assert loaded.count_basis.startswith(basis)
    assert any(basis in note.reason for note in loaded.repairs)


WORDS = st.lists(st.sampled_from(["a", "bb", "c" * 30, "d" * 200]), min_size=1, max_size=30)


@given(parts=st.lists(st.tuples(WORDS, WORDS), min_size=2, max_size=5))
def test_an_agent_that_appends_keeps_everything_however_dense_its_text_is(
    tmp_path_factory: pytest.TempPathFactory, parts: list[tuple[list[str], list[str]]]
) -> None:
    folder = tmp_path_factory.mktemp("c")
    calls, prompt = [], ""
    for second, (new, answer) in enumerate(parts):
        prompt += " ".join(new) + " "
        calls.append(lmcache_call(second, prompt, " ".join(answer)))
        prompt += " ".join(answer) + " "
    (folder / "a.jsonl").write_bytes(json_lines(*calls))
    (program,) = read_traces(folder / "a.jsonl", tokenizer=words(folder)).programs
    contexts = [turn.context_tokens for turn in program.turns]
    assert [turn.kept_tokens for turn in program.turns] == [0, *contexts[:-1]]
