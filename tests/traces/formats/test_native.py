"""Turnstile's own trace format: programs are read back unchanged, and errors are named."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from servers.basics.errors import CannotWrite, InvalidTrace
from tests.traces.sample import Sample, json_lines
from traces import Fork, Message, Program, Provenance, SharedPrefix, Turn, read_traces
from traces.formats.native import parse_programs, program_line, write_programs


def sample() -> Sample:
    prefix = {"id": "system:1", "tokens": 64}
    a = {
        "format": "turnstile-trace-1", "id": "a", "prefix": prefix,
        "turns": [{"prompt_tokens": 100, "output_tokens": 20, "tool_gap_s": 1.5,
                   "gap_provenance": "measured"},
                  {"prompt_tokens": 150, "output_tokens": 20, "kept_tokens": 120}],
    }  # fmt: skip
    b = {**a, "id": "b", "turns": [{"prompt_tokens": 100, "output_tokens": 20}]}
    return Sample({"a.jsonl": json_lines(a, b)}, (Provenance.MEASURED,))


SAMPLE = sample()


ids = st.text(
    st.characters(exclude_categories=["Cs", "Cc", "Cf", "Zl", "Zp"]), min_size=1, max_size=8
)
names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
spans = st.floats(0, 1e6, allow_nan=False)


@st.composite
def turns(draw: st.DrawFn) -> tuple[Turn, ...]:
    all_turns: list[Turn] = []
    for _ in range(draw(st.integers(1, 4))):
        prompt = draw(st.integers(10, 1000))
        max_kept = min(prompt - 1, all_turns[-1].context_tokens) if all_turns else 0
        all_turns.append(
            Turn(
                prompt_tokens=prompt,
                output_tokens=draw(st.integers(1, 500)),
                kept_tokens=draw(st.integers(0, max_kept)),
                tools=tuple(draw(st.lists(names, max_size=2))),
                command=draw(st.none() | names),
                tool_gap_s=draw(spans),
                gap_provenance=draw(st.sampled_from(Provenance)),
            )
        )
    return tuple(all_turns)


@st.composite
def programs(draw: st.DrawFn) -> list[Program]:
    messages = draw(st.lists(st.builds(Message, names, texts), max_size=3))
    own = draw(turns())
    parent = Program(
        id=draw(ids),
        turns=own,
        messages=tuple(messages),
        prompt_messages=tuple(min(i, len(messages)) for i in range(len(own))) if messages else (),
        prefix=draw(st.none() | st.builds(SharedPrefix, names, st.integers(1, 10))),
        recorded_start_s=draw(st.none() | spans.filter(lambda s: s < 1e8)),
        source=draw(texts),
    )
    fork = Fork(parent.id, draw(st.integers(0, len(parent.turns) - 1)), draw(spans))
    return [parent, Program(id=parent.id + "/child", turns=draw(turns()), fork=fork)]


@given(programs())
def test_programs_are_read_back_as_they_were_written(written: list[Program]) -> None:
    assert parse_programs(b"".join(map(program_line, written)), "t.jsonl") == written


LINE: dict[str, Any] = {
    "format": "turnstile-trace-1",
    "id": "a",
    "turns": [
        {"prompt_tokens": 100, "output_tokens": 10},
        {"prompt_tokens": 150, "output_tokens": 10, "kept_tokens": 110},
    ],
}


MESSAGES = [{"role": "user", "content": "go"}]


def refusal(*lines: object) -> str:
    data = b"\n".join(orjson.dumps(line) for line in lines)
    with pytest.raises(InvalidTrace) as error:
        parse_programs(data, "t.jsonl")
    assert "\n" not in str(error.value)
    return str(error.value)


def with_turn(**fields: object) -> dict[str, object]:
    return {**LINE, "turns": [LINE["turns"][0], {**LINE["turns"][1], **fields}]}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (with_turn(output_tokens=0), "t.jsonl, line 2: turns.1.output_tokens is 0"),
        (with_turn(prompt_tokens="150"), "turns.1.prompt_tokens is '150'"),
        (with_turn(tool_gap_s=-1), "turns.1.tool_gap_s is -1"),
        (
            with_turn(tool_gap_s=1e18),
            "turn 1: tool_gap_s is 1e+18, must be 0 to 32,000,000 seconds",
        ),
        (with_turn(tool_gap_s=None), "turns.1.tool_gap_s is None"),
        (with_turn(gap_provenance="guess"), "turns.1.gap_provenance is 'guess'"),
        (
            with_turn(gap=1),
            "turns.1.gap is 1: not a field of this format; did you mean tool_gap_s?",
        ),
        (with_turn(kept_tokens=111), "kept_tokens is 111, must be 0 to 110"),
        (with_turn(kept_tokens=110, prompt_tokens=50), "kept_tokens is 110, must be 0 to 49"),
        ({**LINE, "format": "turnstile-trace-9"}, "format is 'turnstile-trace-9'"),
        ({**LINE, "id": ""}, "id is '': must have at least 1 character"),
        ({"id": "a", "turns": LINE["turns"]}, 'format: missing; add "format": "turnstile-trace-1"'),
        ({**LINE, "recorded_start_s": -1.0}, "recorded_start_s is -1.0, must be 0 to 100,000,000"),
        ({**LINE, "recorded_start_s": 1e18}, "recorded_start_s is 1e+18, must be 0 to 100,000,0"),
        (
            {**LINE, "fork": {"program_id": "valid", "after_turn": 0, "delay_s": 1e18}},
            "fork: delay_s is 1e+18, must be 0 to 32,000,000 seconds",
        ),
        ({**LINE, "turns": []}, "turns is a list"),
        (
            {**LINE, "fork": {"program_id": "x", "after_turn": 0}},
            "the parent program 'x' is not in this trace",
        ),
        ({**LINE, "prefix": {"id": "p", "tokens": 101}}, "less than the shared prefix of 101"),
        ({**LINE, "messages": [{"role": "user"}]}, "messages.0.content: missing; add it"),
        (
            {**LINE, "messages": MESSAGES, "prompt_messages": [1]},
            "prompt_messages must have for each",
        ),
        (
            {**LINE, "messages": MESSAGES, "prompt_messages": [1, 0]},
            "at least as many as the turn",
        ),
        ({**LINE, "messages": MESSAGES, "prompt_messages": [1, 2]}, "of the 1 messages"),
        ({"format": "turnstile-trace-1", "id": "z"}, "turns: missing; add it"),
    ],
)
def test_an_invalid_field_is_refused_with_its_path(line: dict[str, object], message: str) -> None:
    valid = {**LINE, "id": "valid"}
    assert message in refusal(valid, line)


def test_an_invalid_json_line_is_refused_with_its_number() -> None:
    with pytest.raises(InvalidTrace, match=r"t\.jsonl, line 2: the line: Invalid JSON"):
        parse_programs(orjson.dumps(LINE) + b"\n{oops\n", "t.jsonl")


def test_nan_is_refused() -> None:
    line = orjson.dumps(with_turn(tool_gap_s=7)).replace(b'"tool_gap_s":7', b'"tool_gap_s":NaN')
    with pytest.raises(InvalidTrace, match="line 1"):
        parse_programs(line, "t.jsonl")


def test_a_program_id_can_be_used_only_once() -> None:
    assert "program 'a': id used twice" in refusal(LINE, LINE)


def test_a_prefix_id_has_one_length() -> None:
    first = {**LINE, "prefix": {"id": "p", "tokens": 10}}
    other = {**LINE, "id": "b", "prefix": {"id": "p", "tokens": 11}}
    assert "prefix 'p' has 11 tokens here and 10" in refusal(first, other)


@pytest.mark.parametrize(
    ("fork", "message"),
    [
        ({"program_id": "a", "after_turn": 2}, "its parent has 2 turns"),
        ({"program_id": "a", "after_turn": 0, "joined_before_turn": 2}, "joined_before_turn is 2"),
        ({"program_id": "a", "after_turn": 0, "joined_before_turn": 0}, "joined_before_turn is 0"),
        ({"program_id": "b", "after_turn": 0}, "its own ancestor"),
    ],
)
def test_a_fork_must_refer_to_valid_turns_of_its_parent(
    fork: dict[str, object], message: str
) -> None:
    assert message in refusal(LINE, {**LINE, "id": "b", "fork": fork})


def test_gzip_files_of_equal_programs_have_equal_bytes(tmp_path: Path) -> None:
    written = [Program("a", (Turn(10, 1),))]
    write_programs(tmp_path / "one.jsonl.gz", written)
    write_programs(tmp_path / "two.jsonl.gz", written)
    assert (tmp_path / "one.jsonl.gz").read_bytes() == (tmp_path / "two.jsonl.gz").read_bytes()
    assert gzip.decompress((tmp_path / "one.jsonl.gz").read_bytes()) == program_line(written[0])
    assert read_traces(tmp_path / "one.jsonl.gz").programs == tuple(written)


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path) -> None:
    out = tmp_path / "t.jsonl"
    out.write_text("old")

    def broken() -> object:
        yield Program("a", (Turn(10, 1),))
        raise RuntimeError

    with pytest.raises(RuntimeError):
        write_programs(out, broken())  # type: ignore[arg-type]
    assert out.read_text() == "old"
    assert list(tmp_path.iterdir()) == [out]


def test_an_unwritable_path_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "no").touch()
    with pytest.raises(CannotWrite, match=f"^cannot write {tmp_path}/no: file exists;"):
        write_programs(tmp_path / "no" / "t.jsonl", [])
