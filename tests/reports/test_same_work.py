"""Live sweeps: the caveat about different times for the same work, and the noise of an A/A arm."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from reports import write_report
from reports.statistics.bootstrap import interval
from tests.reports.make_run import turn, write_cell, write_sweep
from tests.sentences import mentions

JOBS = 8
REPEATS = [1, 2, 3]


def live_run(
    folder: Path,
    decode_s: dict[str, float],
    tool_s: dict[str, float] | None = None,
    same_as: dict[str, str] | None = None,
    **fields: Any,
) -> Path:
    """Write a run of three equal repeats in which each job has two turns, of which each decodes for
    `decode_s`, and a tool call in between."""
    merged = {"engine": "vllm"} | fields
    run = write_sweep(folder, list(decode_s), repeats=REPEATS, **merged)
    for variant, decode in decode_s.items():
        gap_s = (tool_s or {}).get(variant, 1.0)
        turns = []
        for job in range(JOBS):
            first = turn(f"p{job}", 0, 100.0 * job, decode_s=decode, gap_s=gap_s)
            due_s = first["finished_at_s"] + gap_s
            turns += [first, turn(f"p{job}", 1, due_s, decode_s=decode)]
        for repeat in REPEATS:
            cell = write_cell(run, variant, turns, repeat=repeat, **merged)
            cell.rename(cell.with_name(f"{cell.name}_repeat{repeat}"))
    path = run / "sweep.json"
    sweep = orjson.loads(path.read_bytes())
    for row in sweep["variants"]:
        row |= {"same_as": same_as[row["name"]]} if row["name"] in (same_as or {}) else {}
    path.write_bytes(orjson.dumps(sweep))
    return run


def caveats(run: Path) -> str:
    return " ".join(write_report(run).result.caveats)


def test_decode_that_takes_20_percent_longer_is_a_caveat(tmp_path: Path) -> None:
    """Two turns of 5 s are 10 s per job; of 6 s, 12 s."""
    text = caveats(live_run(tmp_path, {"fcfs": 6.0, "continuum": 5.0}))
    decode = "decode time", "20%", "fcfs than with continuum", "0.5 jobs/s", "12.0 s", "10.0 s"
    assert mentions(text, *decode)
    assert "tool time" not in text


def test_tools_that_take_longer_are_a_caveat(tmp_path: Path) -> None:
    text = caveats(live_run(tmp_path, {"fcfs": 5.0, "continuum": 5.0}, {"continuum": 1.5}))
    assert mentions(text, "tool time", "50%", "continuum than with fcfs")


@pytest.mark.parametrize(
    ("decode_s", "fields"),
    [
        ({"fcfs": 5.4, "continuum": 5.0}, {}),  # 8% is less than 10%
        ({"fcfs": 6.0, "continuum": 5.0}, {"engine": "sim"}),  # the profile's
        ({"fcfs": 6.0, "continuum": 5.0}, {"agent": {"name": "a", "guided": False}}),
        ({"fcfs": 6.0}, {}),
    ],
    ids=["small", "virtual time", "answers of the model", "one variant"],
)
def test_there_is_no_caveat_without_a_difference_of_the_machine(
    tmp_path: Path, decode_s: dict[str, float], fields: dict[str, Any]
) -> None:
    assert "of the same jobs" not in caveats(live_run(tmp_path, decode_s, **fields))


def test_a_difference_that_is_small_against_the_jct_is_no_caveat(tmp_path: Path) -> None:
    """0.2 s of tool time instead of 0.1 s, of a JCT of 10 s, is 1%."""
    run = live_run(tmp_path, {"fcfs": 5.0, "continuum": 5.0}, {"fcfs": 0.1, "continuum": 0.2})
    assert "of the same jobs" not in caveats(run)


def test_an_arm_that_measures_the_baseline_again_shows_the_noise_and_never_wins(
    tmp_path: Path,
) -> None:
    """Jobs take 11 s, 10.4 s and 10 s: the second measurement of the baseline is 10% faster."""
    jcts = {"fcfs": 5.0, "continuum": 4.7, "fcfs#2": 4.5}
    report = write_report(live_run(tmp_path, jcts, same_as={"fcfs#2": "fcfs"}))
    assert report.result.winners[0] == "continuum"
    assert mentions(report.result.findings[0], "noise", "fcfs", "1.1x", "95% CI")
    assert "differ significantly" in report.result.caveats[0]
    assert "fcfs#2" in (tmp_path / "report.html").read_text()


def test_a_gain_that_is_smaller_than_the_difference_of_two_equal_variants_is_none(
    tmp_path: Path,
) -> None:
    """The same run with and without the second measurement: all jobs are alike, so the 6% have an
    interval without width, and 10% of noise make it 1.06 ÷ 1.1 to 1.06 · 1.1."""
    jcts = {"fcfs": 5.0, "continuum": 4.7}
    alone = write_report(live_run(tmp_path / "alone", jcts)).result
    assert mentions(alone.headline, "continuum", "0.5 jobs/s", "1.06x as fast as fcfs")
    twice = live_run(tmp_path / "twice", jcts | {"fcfs#2": 4.5}, same_as={"fcfs#2": "fcfs"})
    result = write_report(twice).result
    assert mentions(result.headline, "2 schedulers are not distinguished with 3 repeats")
    assert result.winner is not None
    assert result.winner.against is not None
    assert interval(result.winner.against.mean) == "95% CI 0.96–1.16"


def test_a_gain_that_is_larger_than_the_noise_stays_one(tmp_path: Path) -> None:
    jcts = {"fcfs": 5.0, "continuum": 2.5, "fcfs#2": 4.9}
    result = write_report(live_run(tmp_path, jcts, same_as={"fcfs#2": "fcfs"})).result
    assert mentions(result.headline, "continuum", "0.5 jobs/s", "1.8x as fast as fcfs")
