"""No steady state is a larger difference than any ratio, wherever a report compares variants."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import orjson
import pandas as pd
import pytest
from test_across import machine
from test_answer import answer_of as answer_of_run
from test_answer import idle, swamped
from test_capacity_answer import ALWAYS, NEVER, answer_of, chains
from test_claims import FAILS, HOLDS, OPEN, gain, gains
from test_steady import WINDOW, steady_cell, stream_turn

from reports.answer.members import by_load, member_runs
from reports.answer.members import headline as of_machines
from reports.answer.per_gpu import most_per_gpu
from reports.answer.report import Report
from reports.answer.speed_ups import grid
from reports.experiment.judge import judge
from reports.experiment.significance import ClaimOutcome
from reports.figures.job_time import job_time
from reports.figures.styles import styles
from reports.metrics.cells import collect
from reports.page.members import MembersReport, write_members
from reports.page.tiles import tiles
from reports.page.write import stable_jobs, write
from reports.run_folder.members import Member
from reports.run_folder.read import load_run
from tests.reports.make_run import write_cell, write_sweep
from tests.sentences import mentions

Lost = dict[str, Sequence[int]]
"""Seeds without a steady state at 1 job/s, by variant."""
SEEDS = (1, 2, 3)
MEMBER = Member(Path("a"), "a100-80g", "llama-3.1-8b", 1)


def machine_run(folder: Path, lost: Lost) -> tuple[MembersReport, Report]:
    """At 0.5 jobs/s all jobs take 2 s; at 1 job/s they take 4 s with fcfs and 2 s with las."""
    run = write_sweep(folder / "a", ["fcfs", "las"], jps=[0.5, 1.0], seeds=SEEDS, steady_state=True)
    for name, slow_s in (("fcfs", 4.0), ("las", 2.0)):
        for seed in SEEDS:
            for jps, jct_s in ((0.5, 2.0), (1.0, slow_s)):
                turns = [stream_turn(job, float(job), jct_s) for job in range(8)]
                grew = "it grew" if jps == 1 and seed in lost.get(name, ()) else None
                steady_cell(run, turns, WINDOW, name, jps, seed, grew)
    entry = {"folder": "a", "hardware": "a100-80g", "model": "llama-3.1-8b", "gpus": 1}
    document = {"format": "turnstile-members-1", "members": [entry]}
    (folder / "members.json").write_bytes(orjson.dumps(document))
    report = write_members(folder)
    return report, report.reports[0][1]


class Shown(NamedTuple):
    headline: str
    machines: str
    """First sentence of the page of several machines."""
    fastest: str
    """Cell of that page at 1 job/s."""
    grid: Sequence[tuple[str, str]]
    """Text and kind of the cells of fcfs and las at 1 job/s."""
    tile: tuple[str, str] | None


EVEN = "No scheduler is significantly faster than fcfs on any of these machines."
WINS = "las is fastest on a100-80g. fcfs has no steady state at the rate compared on any of them."
ALONE = (
    "las has a mean job completion time (JCT) of 2.00 s at 1 jobs/s."
    " The baseline fcfs has no steady state here"
)
NONE_FASTER = (
    "No scheduler is faster than fcfs, which has a mean job completion time (JCT) of 4.00 s at"
    " 1 jobs/s."
)
CASES = {
    "a variant lost it": (
        {"las": SEEDS},
        Shown(
            NONE_FASTER, EVEN, "fcfs",
            [("1", "base"), ("unstable", "slower")], ("unstable", "with las"),
        ),
    ),
    "the baseline lost it": (
        {"fcfs": SEEDS},
        Shown(
            f"{ALONE}.", WINS, "las; fcfs unstable",
            [("unstable", "none"), ("stable", "faster")],
            ("unstable", "with fcfs, stock vLLM"),
        ),
    ),
    "both lost it with different seeds": (
        {"fcfs": (1, 2), "las": SEEDS},
        Shown(
            "The 2 schedulers differ by at most 2%. Each has a mean job completion"
            " time (JCT) of about 2.00 s at 0.5 jobs/s.", EVEN, "unstable",
            [("unstable", "none"), ("unstable", "none")], None,
        ),
    ),
    "the baseline lost it with a seed": (
        {"fcfs": (1,)},
        Shown(
            f"{ALONE} with 1 of 3 seeds.", WINS, "las; fcfs unstable",
            [("unstable", "none"), ("stable", "faster")],
            ("unstable", "with fcfs, stock vLLM"),
        ),
    ),
    "a variant lost it with a seed": (
        {"las": (2,)},
        Shown(
            NONE_FASTER, EVEN, "fcfs",
            [("1", "base"), ("unstable", "slower")], ("unstable", "with las"),
        ),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("lost", "shown"), CASES.values(), ids=CASES)
def test_a_report_names_it_as_the_largest_difference(
    tmp_path: Path, lost: Lost, shown: Shown
) -> None:
    page, report = machine_run(tmp_path, lost)
    points, answer = report.table.points, report.result
    assert answer.headline == shown.headline
    assert page.headline == shown.machines
    overview = by_load(page.runs)
    assert [cell.text for cell in overview.rows[0].cells] == ["fcfs", shown.fastest]
    table = grid(points, answer, "fcfs")
    assert table is not None
    cells = [row.cells[-1] for row in table.rows]
    assert [(cell.text, cell.kind) for cell in cells] == shown.grid
    losses = [(tile.number, tile.what) for tile in tiles(answer, "fcfs")[2:]]
    assert losses == ([] if shown.tile is None else [shown.tile])
    alike = "At 0.5 jobs/s the choice makes little difference: all variants are within 2% of fcfs."
    assert alike in answer.findings


def test_machines_without_any_steady_state_have_the_remedy_and_not_an_unfinished_run(
    tmp_path: Path,
) -> None:
    run = write_sweep(tmp_path / "a", ["fcfs"], jps=[1.0], steady_state=True)
    steady_cell(run, [stream_turn(0, 0.0, 1.0)], WINDOW, unstable="it grew")
    own = (MEMBER, write(run))
    alone = of_machines(member_runs([own]))
    assert mentions(alone, "No scheduler", "steady state", "run lower rates.")
    other = MEMBER._replace(hardware="h100"), write(write_sweep(tmp_path / "b", ["fcfs"]))
    assert mentions(of_machines(member_runs([own, other])), "a100-80g", alone, "h100", "no answer")


def test_seeds_with_a_steady_state_are_not_denied_where_no_variant_has_one_with_every_seed(
    tmp_path: Path,
) -> None:
    run = write_sweep(tmp_path, ["fcfs"], jps=[1.0], seeds=SEEDS, steady_state=True)
    for seed in SEEDS:
        grew = "it grew" if seed == 2 else None
        steady_cell(run, [stream_turn(0, 0.0, 1.0)], WINDOW, "fcfs", 1.0, seed, grew)
    assert mentions(answer_of_run(run).headline, "with every seed", "run lower rates.")


def test_a_machine_without_an_answer_is_named(tmp_path: Path) -> None:
    ran = write(one_load(tmp_path / "a", fcfs=2.0, las=1.0))
    none = write(write_sweep(tmp_path / "b", ["fcfs"]))
    found = member_runs([(MEMBER, ran), (MEMBER._replace(hardware="h100"), none)])
    assert mentions(of_machines(found), "las", "fastest on a100-80g", "no answer on h100")


def one_load(run: Path, **jct_s: float) -> Path:
    write_sweep(run, list(jct_s), steady_state=True)
    for name, each in jct_s.items():
        turns = [stream_turn(job, float(job), each) for job in range(8)]
        for seed in SEEDS:
            steady_cell(run, turns, WINDOW, name, 0.5, seed)
    return run


@pytest.mark.parametrize(
    ("per_seed", "headline", "best"),
    [
        (
            {"fcfs": (NEVER,) * 3, "las": (0.4,) * 3},
            ("las sustains 0.4 jobs/s", "b200", "fcfs sustains no rate."),
            "las",
        ),
        (
            {"fcfs": (0.2, NEVER, 0.2), "las": (0.4,) * 3},
            ("las sustains 0.4 jobs/s", "b200", "fcfs sustains no rate", "1 of 3"),
            "las",
        ),
        (
            {"fcfs": (0.2,) * 3, "las": (NEVER,) * 3},
            ("No scheduler", "more jobs than fcfs", "0.2 jobs/s", "b200."),
            None,
        ),
        ({"fcfs": (0.2,) * 3, "las": (ALWAYS,) * 3}, ("las meets the SLO",), "las"),
        (
            {"fcfs": (NEVER,) * 3, "las": (NEVER, NEVER, 0.1)},
            ("No scheduler", "b200", "every seed"),
            None,
        ),
    ],
)
def test_a_capacity_of_no_rate_is_lower_than_any_and_one_of_every_rate_higher(
    per_seed: dict[str, Any], headline: tuple[str, ...], best: str | None
) -> None:
    answer = answer_of(chains(**per_seed))
    assert mentions(answer.headline, *headline)
    assert replace(machine("b200", fcfs=(1.0,)), answer=answer).fastest == best


def test_a_tile_shows_the_baseline_that_sustains_no_rate() -> None:
    answer = answer_of(chains(fcfs=(NEVER, 0.1, NEVER), las=(0.4,) * 3))
    (tile,) = tiles(answer, "fcfs")[1:]
    assert tile.number == "no rate"
    assert mentions(tile.sure, "2 of 3 seeds")


def test_a_machine_on_which_no_policy_sustains_a_rate_is_the_worst_of_several() -> None:
    one, other, none = (machine(name, fcfs=(1.0, 1.0)) for name in ("h100", "h200", "l4"))
    none = replace(none, answer=answer_of(chains(fcfs=(NEVER, NEVER))))
    (sentence,) = most_per_gpu([one, none])
    assert mentions(sentence, "Only h100", "1 jobs/s with fcfs", "No policy", "l4.")
    (sentence,) = most_per_gpu([one, other, none])
    assert mentions(sentence, "No policy", "l4.")


def lost(frame: pd.DataFrame, variant: str, *seeds: int) -> pd.DataFrame:
    mine = (frame["variant"] == variant) & frame["seed"].isin(seeds)
    before = frame.get("unstable", pd.Series("", index=frame.index))
    return frame.assign(unstable=before.mask(mine, "it grew"))


TWICE = gains(2.0, 2.0, 2.0)
"""The JCT of fcfs is twice that of ours."""


@pytest.mark.parametrize(
    ("frame", "least", "most", "outcome", "said"),
    [
        (lost(TWICE, "fcfs", 1, 2, 3), 1.5, None, HOLDS, "fcfs has no steady state at 0.1 jobs/s"),
        (lost(TWICE, "fcfs", 1, 2, 3), None, 3.0, FAILS, "fcfs has no steady state at 0.1 jobs/s"),
        (lost(TWICE, "ours", 1, 2, 3), 1.5, None, FAILS, "ours has no steady state at 0.1 jobs/s"),
        (
            lost(TWICE, "ours", 2), 1.5, None, OPEN,
            "2.00x; ours has no steady state at 0.1 jobs/s with 1 of 3 seeds",
        ),
        (
            lost(TWICE, "fcfs", 2), 1.5, None, HOLDS,
            "2.00x; fcfs has no steady state at 0.1 jobs/s with 1 of 3 seeds",
        ),
        (
            lost(lost(TWICE, "fcfs", 1, 2), "ours", 1, 2, 3), 1.5, None, FAILS,
            "ours has no steady state at 0.1 jobs/s with 1 of 3 seeds and neither side has a"
            " steady state at 0.1 jobs/s with 2 of 3 seeds",
        ),
        (
            lost(lost(TWICE, "fcfs", 1, 2, 3), "ours", 1, 2, 3), 1.5, None, OPEN,
            "neither side has a steady state at 0.1 jobs/s",
        ),
    ],
)  # fmt: skip
def test_a_claim_is_decided_by_a_side_without_a_steady_state(
    frame: pd.DataFrame, least: float | None, most: float | None, outcome: ClaimOutcome, said: str
) -> None:
    found = judge(gain(least=least, most=most), {"arm": frame})
    assert (found.outcome, found.ours) == (outcome, said)


def test_a_claim_about_capacities_is_decided_by_a_side_that_sustains_no_rate() -> None:
    per_s = TWICE["variant"].map({"fcfs": 0.0, "ours": 0.03})
    frame = TWICE.assign(capacity_jobs_per_s=per_s)
    ours_more = gain(of="ours", to="fcfs", metric="capacity_jobs_per_s", least=1.1)
    assert judge(ours_more, {"arm": frame}).outcome is HOLDS
    fcfs_more = gain(metric="capacity_jobs_per_s", least=1.1)
    assert judge(fcfs_more, {"arm": frame}).outcome is FAILS


def test_saturated_fixed_sets_are_still_compared_by_their_jcts(tmp_path: Path) -> None:
    run = write_sweep(tmp_path, ["fcfs", "las"])
    for name, turns in (("fcfs", swamped(5.0)), ("las", idle(1.0))):
        write_cell(run, name, turns)
    assert "as fast as fcfs" in answer_of_run(run).headline


def test_the_mean_jct_is_the_same_number_in_sentences_tables_and_bars(tmp_path: Path) -> None:
    """Seed 1 measures four jobs of 2 s and seed 2 two of 8 s: the mean is 5 s, not 4 s."""
    run = write_sweep(tmp_path, ["fcfs", "las"], jps=[1.0], seeds=[1, 2], steady_state=True)
    for name in ("fcfs", "las"):
        for seed, jobs, jct_s in ((1, 4, 2.0), (2, 2, 8.0)):
            turns = [stream_turn(job, float(job), jct_s) for job in range(8)]
            grew = "it grew" if (name, seed) == ("las", 2) else None
            steady_cell(run, turns, WINDOW | {"jobs": jobs}, name, 1.0, seed, grew)
    report = write(run)
    assert "mean job completion time (JCT) of 5.00 s" in report.result.headline
    (mine, _) = report.table.points
    loaded = load_run(run)
    style = styles(loaded.sweep.variants)
    jobs_of = stable_jobs(collect(loaded), report.points)
    (waterfall, *_) = job_time(jobs_of, style, [], "1 jobs/s", steady=True)
    totals = [trace for trace in waterfall.spec["data"] if trace["meta"]["kind"] == "total"]
    assert mine.jct_mean_s.value == pytest.approx(5.0)
    # las has no steady state with seed 2, so its bar would be that of seed 1 alone.
    assert [(trace["y"], trace["text"]) for trace in totals] == [(["fcfs"], [" 5.00 s"])]


def test_the_choice_makes_a_difference_where_a_variant_has_no_steady_state(tmp_path: Path) -> None:
    """continuum is 1% faster than fcfs, and las has no steady state at 1 job/s."""
    names = ("fcfs", "continuum", "las")
    run = write_sweep(tmp_path, names, jps=[0.5, 1.0], seeds=SEEDS, steady_state=True)
    for name, jct_s in zip(names, (2.02, 2.0, 2.02), strict=True):
        for seed in SEEDS:
            for jps in (0.5, 1.0):
                turns = [stream_turn(job, float(job), jct_s) for job in range(8)]
                grew = "it grew" if (name, jps) == ("las", 1.0) else None
                steady_cell(run, turns, WINDOW, name, jps, seed, grew)
    answer = write(run).result
    assert mentions(answer.headline, "No scheduler", "faster than fcfs", "1 jobs/s", "2%")
    (alike,) = (each for each in answer.findings if "makes little difference" in each)
    assert alike.startswith("At 0.5 jobs/s the choice")
