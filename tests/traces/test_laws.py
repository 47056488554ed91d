"""Conservation laws: totals, calls, cached tokens, growth, times, and text against counts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.sentences import each_mentions, mentions
from tests.traces.formats import test_codex as codex
from tests.traces.sample import json_lines
from traces import Provenance, read_traces
from traces.formats.shared.balance import balance
from traces.formats.shared.calls import Call
from traces.laws import Law, Laws
from traces.lenient import Repairs

MEASURED = Provenance.MEASURED
INFERRED = Provenance.INFERRED


def balanced(*calls: Call, gap_s: float = 1.0) -> tuple[list[Any], Laws, list[str]]:
    repairs = Repairs()
    gaps = balance(calls, [(gap_s, MEASURED)] * len(calls), repairs)
    return gaps, repairs.laws, repairs.reasons()


def test_a_gap_that_fits_between_two_calls_stays_measured() -> None:
    gaps, laws, reasons = balanced(Call(10, 5, 0.0, 2.0), Call(20, 5, 3.0, 5.0))
    assert gaps[0] == (1.0, MEASURED)
    assert (laws.checked[Law.SPAN], laws.failed[Law.SPAN], reasons) == (1, 0, [])


def test_a_gap_that_does_not_fit_is_inferred() -> None:
    # From the end of the first call at 2 s to that of the second at 5 s there are 3 s, of which its
    # generation takes 2.
    gaps, laws, reasons = balanced(Call(10, 5, 0.0, 2.0), Call(20, 5, 3.0, 5.0), gap_s=4.0)
    assert gaps[0] == (4.0, INFERRED)
    assert laws.failed[Law.SPAN] == 1
    assert each_mentions(reasons, "6.0 s in 3.0 s")


def test_a_gap_without_the_times_of_its_calls_is_not_checked() -> None:
    gaps, laws, _ = balanced(Call(10, 5), Call(20, 5))
    assert (gaps[0], laws.checked[Law.SPAN]) == ((1.0, MEASURED), 0)


def test_a_drawn_gap_stays_drawn() -> None:
    repairs = Repairs()
    gaps = [(9.0, Provenance.SYNTHESISED), (0.0, Provenance.UNSTATED)]
    assert balance([Call(1, 1, 0, 1), Call(2, 1, 2, 3)], gaps, repairs) == gaps


@pytest.mark.parametrize(("prompt", "failed"), [(15, 0), (14, 1)])
def test_a_prompt_grows_by_at_least_the_answer_before_it(prompt: int, failed: int) -> None:
    _, laws, _ = balanced(Call(10, 5), Call(prompt, 1))
    assert (laws.checked[Law.GROWTH], laws.failed[Law.GROWTH]) == (1, failed)


@pytest.mark.parametrize(
    "calls",
    [
        (Call(10, 5, drops_output=True), Call(12, 1)),  # reasoning is not repeated
        (Call(10, 5), Call(12, 1, continues=None)),  # the history was rewritten
        (Call(10, 5), Call(9, 1)),  # and so was this one's
    ],
)
def test_growth_is_only_checked_where_the_answer_is_repeated(calls: tuple[Call, ...]) -> None:
    assert balanced(*calls)[1].checked[Law.GROWTH] == 0


def test_more_cached_tokens_than_the_prompt_has_are_reported() -> None:
    assert balanced(Call(10, 5, cached=11))[2] == ["11 cached tokens in a prompt of 10"]


def test_text_that_its_tokens_cannot_hold_is_reported() -> None:
    few, enough = Call(10, 100, characters=1001), Call(10, 101, characters=1001)
    _, laws, reasons = balanced(few, enough)
    assert (laws.checked[Law.TEXT], laws.failed[Law.TEXT]) == (2, 1)
    assert each_mentions(reasons, "1,001 characters has 100 tokens (1 of 2)")


def test_programs_whose_counts_fail_a_law_are_marked(tmp_path: Path) -> None:
    count = codex.Counter()
    lines = codex.meta("a"), codex.asked(1), codex.said(4), count(4, 500)
    sound, file = tmp_path / "sound.jsonl", tmp_path / "file.jsonl"
    sound.write_bytes(json_lines(*lines))
    count(5, 600)  # is not written
    file.write_bytes(json_lines(*lines, codex.asked(8), codex.said(9), count(9, 700)))
    for path, failed in ((sound, 0), (file, 1)):
        traces = read_traces(path)
        assert traces.laws.as_json()["totals"] == {"checked": 1, "failed": failed}
        assert [program.inferred_tokens for program in traces.programs] == [bool(failed)]
        text = "prompts sum to 1,200 tokens, the file says 1,800"
        assert any(note.reason == text for note in traces.repairs) == bool(failed)


def test_counts_that_a_total_does_not_have_are_reported() -> None:
    # Each call states a prompt of 900 tokens, but the total grows by 500 only.
    count = codex.Counter()
    first, second = count(4, 500), count(9, 500)
    second["payload"]["info"]["last_token_usage"]["input_tokens"] = 900
    _, repairs = codex.read(codex.meta("a"), codex.said(4), first, codex.said(9), second)
    assert mentions(repairs, "1,400 tokens", "1,000")


def test_calls_that_a_trajectory_counts_but_does_not_have_are_reported(tmp_path: Path) -> None:
    usage = {"prompt_tokens": 10, "completion_tokens": 2}
    answer = {"role": "assistant", "content": "ok", "extra": {"response": {"usage": usage}}}
    document = {"info": {"model_stats": {"api_calls": 3}}, "messages": [answer], "instance_id": "x"}
    path = tmp_path / "x.traj.json"
    path.write_text(json.dumps(document))
    assert "1 calls were read, the file says 3" in [n.reason for n in read_traces(path).repairs]
