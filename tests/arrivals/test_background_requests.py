"""Requests beside the jobs: which file is accepted, which requests arrive, and when."""

from __future__ import annotations

import json
from itertools import islice, pairwise
from pathlib import Path

import pytest

from harness.load.background import Background, load_background, parse_background
from harness.load.settings import Load, Overlong
from harness.load.workload import Longest
from servers.basics.clock import PS_PER_S
from servers.basics.errors import InvalidInput
from tests.sentences import mentions
from traces import Program, SharedPrefix, Turn

ANY = Longest(None, "")


def requests(*prefixes: str) -> tuple[Program, ...]:
    """Return a request for each name of a prefix of 16 tokens, of which "" is none."""
    return tuple(
        Program(f"r{k}", (Turn(20, 5, prefixes=(SharedPrefix(name, 16),) if name else ()),))
        for k, name in enumerate(prefixes)
    )


def write(path: Path, *rows: dict[str, object]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def mooncake(path: Path, *lengths: tuple[int, int]) -> str:
    rows = [{"timestamp": k, "input_length": i, "output_length": o, "hash_ids": [7, 10 + k]}
            for k, (i, o) in enumerate(lengths)]  # fmt: skip
    return write(path, *rows)


def load(option: str, longest: Longest = ANY, *, refuse: bool = False) -> Background:
    overlong = Overlong.REFUSE if refuse else Overlong.DROP
    given = Load(background=option, overlong=overlong)
    loaded = load_background(given, longest, messages=False)
    assert loaded is not None
    return loaded


def test_requests_keep_the_order_of_the_file_from_a_drawn_one_and_repeat_with_new_ids() -> None:
    background = Background("x", requests("", "", ""), 1.0, "")
    firsts = set()
    for seed in range(20):
        ids = [request.id for request, _ in islice(background.arrivals(seed), 9)]
        first = int(ids[0][1:])
        firsts.add(first)
        order = [f"r{(first + k) % 3}" for k in range(3)]
        assert ids == [*order, *(f"{id}#2" for id in order), *(f"{id}#3" for id in order)]
    assert firsts == {0, 1, 2}


def test_a_repeated_request_shares_only_what_other_requests_share() -> None:
    background = Background("x", requests("shared", "shared", "own"), 1.0, "")
    prefixes = {
        request.id: request.turns[0].prefixes[0].id
        for request, _ in islice(background.arrivals(1), 6)
    }
    assert (prefixes["r0#2"], prefixes["r1#2"], prefixes["r2#2"]) == ("shared", "shared", "own#2")


def test_arrivals_are_a_poisson_process_of_the_rate() -> None:
    """10,000 exponential gaps of mean 0.25 s: their mean is within 4% in all but 1 of 15,000
    draws, and their standard deviation is their mean."""
    background = Background("x", requests(""), 4.0, "")
    times_s = [at_ps / PS_PER_S for _, at_ps in islice(background.arrivals(3), 10_001)]
    gaps_s = [b - a for a, b in pairwise(times_s)]
    mean_s = sum(gaps_s) / len(gaps_s)
    deviation_s = (sum((gap - mean_s) ** 2 for gap in gaps_s) / len(gaps_s)) ** 0.5
    assert mean_s == pytest.approx(0.25, rel=0.04)
    assert deviation_s == pytest.approx(0.25, rel=0.06)


def test_two_rates_of_a_seed_have_the_same_requests_at_proportional_times() -> None:
    slow, fast = (Background("x", requests("", ""), rate, "") for rate in (0.5, 2.0))
    for (a, a_ps), (b, b_ps) in islice(zip(slow.arrivals(1), fast.arrivals(1), strict=True), 50):
        assert a.id == b.id
        assert a_ps == pytest.approx(4 * b_ps, abs=4)


def test_a_file_without_sessions_is_read_under_ids_that_no_job_has(tmp_path: Path) -> None:
    background = load(mooncake(tmp_path / "chat@night.jsonl", (600, 5), (700, 6)) + "@0.5")
    recorded = background.record()
    assert recorded.name == "chat@night.jsonl"
    assert (recorded.requests_per_s, recorded.requests, recorded.left_out) == (0.5, 2, 0)
    assert [r.id for r in background.requests] == [
        "background/chat@night-0", "background/chat@night-1",
    ]  # fmt: skip
    (prefix,) = background.requests[0].turns[0].prefixes
    assert prefix.id.startswith("background/")
    assert prefix.tokens == 512


def test_a_table_has_a_column_map_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "calls.csv"
    path.write_text("in,out\n100,5\n200,6\n")
    columns = "prompt_tokens=in,output_tokens=out"
    given = Load(background=f"{path}@1", background_columns=columns)
    loaded = load_background(given, ANY, messages=False)
    assert loaded is not None
    assert [r.turns[0].prompt_tokens for r in loaded.requests] == [100, 200]
    with pytest.raises(InvalidInput, match="give --background-columns prompt_tokens="):
        load(f"{path}@1")
    with pytest.raises(InvalidInput, match="needs --background FILE@RATE"):
        load_background(Load(background_columns="prompt_tokens=in"), ANY, messages=False)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("requests.jsonl", "give a file and requests per second, such as requests.jsonl@2"),
        ("@2", "give a file and requests per second"),
        ("requests.jsonl@", "give a file and requests per second"),
        ("requests.jsonl@0", "the rate '0' is not within 0.000001 to 1,000,000"),
        ("requests.jsonl@-1", "'-1' is not a positive number"),
        ("requests.jsonl@fast", "'fast' is not a positive number"),
        ("requests.jsonl@1e999", "'1e999' is not a positive number"),
        ("requests.jsonl@nan", "'nan' is not a positive number"),
        ("requests.jsonl@2e6", "the rate '2e6' is not within"),
    ],
)
def test_an_option_that_is_not_file_at_rate_is_refused(option: str, message: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        parse_background(option)
    assert str(refused.value).startswith(f"--background '{option}': ")
    assert message in str(refused.value)


def test_files_that_cannot_be_read_are_refused_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"--background .*gone\.jsonl: no such file"):
        load(f"{tmp_path}/gone.jsonl@1")
    (tmp_path / "x.jsonl").write_text("hello\n")
    with pytest.raises(InvalidInput, match=r"--background .*x\.jsonl: line 1: not JSON"):
        load(f"{tmp_path}/x.jsonl@1")
    path = mooncake(tmp_path / "m.jsonl", (600, 5))
    with pytest.raises(InvalidInput, match="has no messages, which --prompts text"):
        load_background(Load(background=f"{path}@1"), ANY, messages=True)


def test_sessions_are_refused_and_the_message_says_what_to_do_with_them(tmp_path: Path) -> None:
    rows = [{"session_id": "s", "input_length": n, "output_length": 5} for n in (10, 20)]
    path = write(tmp_path / "sessions.jsonl", *rows)
    with pytest.raises(InvalidInput) as refused:
        load(f"{path}@1")
    remedy = "--traces", f"bench traces convert {path} --max-turns 1"
    assert mentions(str(refused.value), f"--background {path}", "program s has 2 turns", *remedy)


def test_requests_that_do_not_fit_are_left_out_or_refused(tmp_path: Path) -> None:
    longest = Longest(1000, "the 1000 that this machine holds")
    path = mooncake(tmp_path / "m.jsonl", (600, 5), (999, 2), (998, 2))
    background = load(f"{path}@1", longest)
    assert [r.id for r in background.requests] == ["background/m-0", "background/m-2"]
    assert background.record().left_out == 1
    too_long = r"--background .* are more than the 1000"
    with pytest.raises(InvalidInput, match=too_long):
        load(f"{path}@1", longest, refuse=True)
    none_fits = mooncake(tmp_path / "long.jsonl", (2000, 5))
    with pytest.raises(InvalidInput, match=too_long):
        load(f"{none_fits}@1", longest)
