"""`bench history`: the lines of a commit, which changes are jumps, and damaged files."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_regression import DOUBLE, JCT_S, TENS, side, stream

from reports.compare.baseline import Side
from reports.compare.history import Series, add, read_history, row
from reports.compare.history_page import ABOVE, draw, line
from reports.figures.styles import Style
from servers.basics.errors import InvalidInput

WHEN = datetime(2026, 1, 31, 12, tzinfo=UTC)


def days(number: int) -> datetime:
    return WHEN + timedelta(days=number)


def test_a_commit_is_a_line_per_policy_and_load_with_its_numbers(tmp_path: Path) -> None:
    file = tmp_path / "h.jsonl"
    assert add(file, side([10.0, 20.0, 30.0], code_sha256="c0de"), "abc", WHEN) == 1
    head, line = map(orjson.loads, file.read_bytes().splitlines())
    assert head["format"] == "turnstile-history-1"
    assert head["question"]["hardware"] == "a100-80g"
    assert (line["label"], line["when"]) == ("abc", "2026-01-31T12:00:00Z")
    assert (line["variant"], line["load"], line["jobs"]) == ("fcfs", "0.1 jobs/s", 3)
    assert (line["jct_mean_s"], line["jct_p50_s"], line["code_sha256"]) == (20.0, 20.0, "c0de")
    assert line["jct_mean_low_s"] == 10.0  # of three jobs: the shortest, three times, is in 4%
    assert line["jct_mean_high_s"] == 30.0


def test_the_same_commit_again_adds_nothing(tmp_path: Path) -> None:
    file = tmp_path / "h.jsonl"
    add(file, side(JCT_S), "abc", WHEN)
    before = file.read_bytes()
    assert add(file, side(JCT_S), "abc", days(1)) == 0
    assert file.read_bytes() == before


def test_the_same_commit_with_other_numbers_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "h.jsonl"
    add(file, side([10.0]), "abc", WHEN)
    with pytest.raises(
        InvalidInput, match=r"abc exists .*fcfs at 0.1 jobs/s: 10.000 s, now 11.000 s"
    ):
        add(file, side([11.0]), "abc", WHEN)


def test_different_settings_are_refused_with_what_differs(tmp_path: Path) -> None:
    file = tmp_path / "h.jsonl"
    add(file, side(JCT_S), "abc", WHEN)
    before = file.read_bytes()
    with pytest.raises(InvalidInput, match="hardware a100-80g and b200; give another --file"):
        add(file, side(JCT_S, hardware="b200"), "def", WHEN)
    assert file.read_bytes() == before


def test_other_code_is_not_a_different_setting(tmp_path: Path) -> None:
    file = tmp_path / "h.jsonl"
    add(file, side(JCT_S, code_sha256="one"), "abc", WHEN)
    assert add(file, side(JCT_S, code_sha256="two"), "def", days(1)) == 1


def test_a_run_with_an_invalid_cell_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        InvalidInput, match=r"cell: late; every cell of a run in a history must be valid"
    ):
        add(tmp_path / "h.jsonl", side(JCT_S, invalid={"cell": "late"}), "abc", WHEN)
    assert not (tmp_path / "h.jsonl").exists()


@pytest.mark.parametrize("content", ["hello", "hello\n", '{"format":"other"}\n', "[1]\n"])
def test_a_file_that_is_no_history_is_refused_and_left_unchanged(
    tmp_path: Path, content: str
) -> None:
    file = tmp_path / "notes.txt"
    file.write_text(content)
    with pytest.raises(InvalidInput, match=r"notes.txt: not a history"):
        add(file, side(JCT_S), "abc", WHEN)
    assert file.read_text() == content


def test_wherever_a_write_was_cut_off_the_next_write_repairs_the_file(tmp_path: Path) -> None:
    """A process that is killed while it appends leaves a prefix of its bytes."""
    file = tmp_path / "h.jsonl"
    add(file, side([10.0, 20.0]), "abc", WHEN)
    both = side([11.0, 21.0])
    both.jobs.loc[1, "variant"] = "continuum"  # two lines
    one = len(file.read_bytes())
    add(file, both, "def", days(1))
    whole = file.read_bytes()
    ends = [index for index, byte in enumerate(whole) if byte == ord("\n")]
    near_ends = {index + off for index in ends for off in (-1, 0, 1)} - {len(whole)}
    for cut in sorted(near_ends | set(range(0, len(whole), 61))):
        file.write_bytes(whole[:cut])
        if cut >= one:
            assert {entry.label for entry in read_history(file).entries} <= {"abc", "def"}
        add(file, side([10.0, 20.0]), "abc", WHEN)
        add(file, both, "def", days(1))
        assert file.read_bytes() == whole


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    file = tmp_path / "h.jsonl"
    add(file, side(JCT_S), "abc", WHEN)
    file.write_bytes(file.read_bytes().replace(b'"jobs":100', b'"jobs":"many"'))
    with pytest.raises(
        InvalidInput, match=r"h.jsonl, line 2: jobs: Input should be a valid integer"
    ):
        read_history(file)


def test_a_line_with_other_settings_is_named(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    add(one, side(JCT_S), "abc", WHEN)
    add(other, side(JCT_S, hardware="b200"), "abc", WHEN)
    one.write_bytes(one.read_bytes() + other.read_bytes().splitlines(keepends=True)[1])
    with pytest.raises(InvalidInput, match=r"one, line 3: has other settings"):
        read_history(one)


def history_of(file: Path, *means_s: float) -> list[str]:
    """Return the labels of the jumps; all jobs of commit n take `means_s[n]`."""
    for number, mean_s in enumerate(means_s):
        add(file, side([mean_s] * 5), f"c{number}", days(number))
    (series,) = read_history(file).series()
    return [entry.label for entry in series.jumps]


def test_a_mean_outside_the_interval_before_is_a_jump(tmp_path: Path) -> None:
    """Equal jobs have an interval of zero width, so every change is a jump."""
    assert history_of(tmp_path / "h", 10.0, 10.0, 11.0, 11.0, 10.5) == ["c2", "c4"]


def test_a_mean_inside_the_interval_before_is_no_jump(tmp_path: Path) -> None:
    file = tmp_path / "h"
    add(file, side(JCT_S), "one", WHEN)
    add(file, side(JCT_S * 1.01), "two", days(1))
    (series,) = read_history(file).series()
    assert series.jumps == ()
    assert row(series)[2:] == (
        "2 commits", f"{1.01 * JCT_S.mean():.3f} s", "+1.00%", "–",
    )  # fmt: skip


@settings(max_examples=30, deadline=None)
@given(order=st.permutations(range(4)))
def test_series_are_in_order_of_time_whatever_the_order_of_adding(
    order: list[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = tmp_path_factory.mktemp("history") / "h"
    for number in order:
        add(file, side([10.0 + number]), f"c{number}", days(number))
    (series,) = read_history(file).series()
    assert [entry.label for entry in series.entries] == ["c0", "c1", "c2", "c3"]


def test_the_page_needs_no_network_marks_jumps_and_escapes_labels(tmp_path: Path) -> None:
    file = tmp_path / "h"
    evil = "</script><script>alert(1)</script>"
    add(file, side([10.0] * 5, variant=evil), "one", WHEN)
    add(file, side([12.0] * 5, variant=evil), evil, days(1))
    draw(read_history(file), tmp_path / "h.html")
    page = (tmp_path / "h.html").read_text()
    assert evil not in page
    assert "+20.00%" in page
    assert 'id="trend-0"' in page
    assert "<link" not in page
    assert "src=" not in page.split("<script")[0]


def test_an_empty_history_has_a_page(tmp_path: Path) -> None:
    file = tmp_path / "h"
    add(file, side([10.0]), "one", WHEN)
    file.write_bytes(file.read_bytes().splitlines(keepends=True)[0])
    draw(read_history(file), tmp_path / "h.html")
    assert "The history is empty." in (tmp_path / "h.html").read_text()


def test_no_steady_state_is_a_line_without_a_jct(tmp_path: Path) -> None:
    file = tmp_path / "h.jsonl"
    assert add(file, stream((1, TENS), (2, 39)), "abc", WHEN) == 1
    line = orjson.loads(file.read_bytes().splitlines()[1])
    assert (line["jobs"], line["unstable_seeds"], line["jct_mean_s"]) == (6, 1, None)
    assert add(file, stream((1, TENS), (2, 39)), "abc", WHEN) == 0
    with pytest.raises(InvalidInput, match=r"no steady state, now 10.000 s\); give another"):
        add(file, stream((1, TENS), (2, TENS)), "abc", WHEN)


def trend(file: Path, *nights: Side) -> Series:
    for number, night in enumerate(nights):
        add(file, night, f"c{number}", days(number))
    (series,) = read_history(file).series()
    return series


def test_a_lost_and_a_gained_steady_state_are_jumps_in_the_trend(tmp_path: Path) -> None:
    stable, one, all_three = (
        stream((1, TENS), (2, TENS), (3, TENS)),
        stream((1, TENS), (2, 33), (3, TENS)),
        stream((1, 39), (2, 33), (3, 30)),
    )
    series = trend(tmp_path / "h", stable, one, one, all_three, stable)
    assert [entry.label for entry in series.jumps] == ["c1", "c3", "c4"]
    assert row(series)[3:] == ("10.000 s", "stable again", "c1, c3, c4")
    fallen = replace(series, entries=series.entries[:3])
    assert row(fallen)[3:] == ("no steady state", "no steady state", "c1")


def test_the_page_draws_no_steady_state_at_the_top_and_names_it(tmp_path: Path) -> None:
    """The longest mean is 20 s, so crosses are at 1.5 times as much."""
    file = tmp_path / "h"
    series = trend(file, stream((1, TENS)), stream((1, DOUBLE)), stream((1, 39)), stream((1, 33)))
    trace = line(series, Style(0, "circle", "solid"), ABOVE * 20)
    assert trace["y"] == [10.0, 20.0, 30.0, 30.0]
    assert trace["marker"]["symbol"] == ["circle", "circle", "x", "x"]
    draw(read_history(file), tmp_path / "h.html")
    page = (tmp_path / "h.html").read_text()
    assert "The latest, c3, is within all intervals of the previous one. It has no steady" in page
    assert "<td>20.0 s</td><td>no steady state</td><td>no steady state</td>" in page
    assert "Crosses at the top: no steady state" in page


def test_a_line_without_a_jct_and_without_unstable_seeds_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "h"
    add(file, side([10.0]), "abc", WHEN)
    file.write_bytes(file.read_bytes().replace(b'"jct_mean_s":10.0', b'"jct_mean_s":null'))
    with pytest.raises(InvalidInput, match=r"line 2: .*has a JCT if and only if it has no unst"):
        read_history(file)
