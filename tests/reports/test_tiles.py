"""The numbers beneath the headline, and what the first screen of a report has room for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from test_capacity_answer import NEVER, answer_of, chains, point

from reports.answer.costs import JobCost
from reports.loads import RATES
from reports.page.page import MOST_CAVEATS
from reports.page.tiles import Tile, tiles
from reports.page.write import write
from reports.statistics.bootstrap import Estimate
from tests.reports.make_run import make_run, turn, write_cell, write_sweep
from tests.sentences import mentions


def test_a_clear_winner_has_its_capacity_and_its_ratio_to_the_baseline() -> None:
    answer = answer_of(chains(fcfs=(0.2, 0.25, 0.23), continuum=(0.36, 0.45, 0.414)))
    rate, ratio = tiles(answer, "fcfs")
    # The geometric means are 0.2257 and 1.8 times as much. The logs of 0.36, 0.45 and 0.414 have
    # a standard deviation of 0.1129, times t = 4.303 over √3: a factor of e^0.2805 up and down.
    # The ratio is the same in each seed: with its prior a factor of e^0.113.
    assert rate == Tile("0.406 jobs/s", "sustained with continuum", "95% CI 0.307–0.538")
    assert (ratio.number, ratio.sure) == ("1.8x", "95% CI 1.6–2.0")
    assert mentions(ratio.what, "fcfs")


def test_where_all_tie_no_ratio_of_one_is_a_large_number() -> None:
    answer = answer_of(chains(fcfs=(0.2,) * 3, a=(0.202,) * 3, b=(0.198,) * 3))
    assert tiles(answer, "fcfs") == [
        Tile("0.2 jobs/s", "sustained with fcfs, stock vLLM", "95% CI 0.2–0.2")
    ]


def test_the_largest_loss_is_compared_with_a_baseline_that_has_the_most() -> None:
    answer = answer_of(chains(fcfs=(0.2,) * 3, a=(0.202,) * 3, b=(0.05,) * 3))
    # A quarter in each seed. Three seeds without a deviation and the prior: a factor of e^0.113.
    assert tiles(answer, "fcfs")[1] == Tile(
        "0.25x", "as many with b, the fewest", "95% CI 0.22–0.28"
    )


def test_the_slowest_is_compared_with_a_baseline_that_is_the_fastest(tmp_path: Path) -> None:
    for name, slow_s in (("one", 75.0), ("two", 10.1)):
        write_sweep(tmp_path / name, ["fcfs", "las"])
        for variant, jct_s in (("fcfs", 10.0), ("las", slow_s)):
            turns = [turn(f"p{k:02d}", 0, 99.0 * k, decode_s=jct_s) for k in range(20)]
            write_cell(tmp_path / name, variant, turns)
    large, small = (tiles(write(tmp_path / name).result, "fcfs") for name in ("one", "two"))
    assert large[2] == Tile("7.5x", "as long with las, the slowest", "95% CI 7.5–7.5")
    assert [tile.what for tile in small] == ["mean JCT", "P95 JCT"]


def test_a_reference_is_no_answer() -> None:
    answer = answer_of(
        chains(fcfs=(0.2,) * 3, oracle=(0.5,) * 3), references={"oracle": "the future"}
    )
    assert [tile.number for tile in tiles(answer, "fcfs")] == ["0.2 jobs/s"]


def test_one_seed_has_no_interval() -> None:
    mean = Estimate(60.0, math.nan, math.nan)
    points = [replace(point("fcfs", 0.1, 60.0), jct_mean_s=mean)]
    rate, jct = tiles(answer_of(chains(fcfs=(0.2,)), points=points), "fcfs")
    assert rate.sure == "too few seeds for an interval"
    assert jct == Tile("60.0 s", "mean JCT with fcfs", "at 0.1 jobs/s")


def test_two_seeds_that_differ_have_no_interval_either() -> None:
    # The logs of 0.2 and 0.02 deviate by 1.63, times t = 12.7 over √2: a factor of two million up
    # and down. Those of 0.2 and 0.18 deviate by 0.0745: a factor of 1.95.
    far, near = (answer_of(chains(fcfs=seeds)) for seeds in ((0.2, 0.02), (0.2, 0.18)))
    assert tiles(far, "fcfs")[0].sure == "too few seeds for an interval"
    assert tiles(near, "fcfs")[0].sure == "95% CI 0.0972–0.371"


def test_the_mean_jct_is_that_at_the_highest_rate_at_which_both_are_stable() -> None:
    points = [point("fcfs", 0.1, 90.0), point("a", 0.1, 60.0), point("a", 0.2, 80.0)]
    answer = answer_of(chains(fcfs=(0.2,) * 3, a=(0.4,) * 3), points=points)
    assert tiles(answer, "fcfs")[2] == Tile(
        "60.0 s", "mean JCT with a", "at 0.1 jobs/s; fcfs: 90.0 s"
    )


def test_the_mean_jct_is_that_at_a_rate_that_only_the_winner_sustains_if_there_is_one() -> None:
    points = [point("fcfs", 0.1, 60.0), point("a", 0.1, 60.0), point("a", 0.3, 80.0)]
    answer = answer_of(chains(fcfs=(0.2,) * 3, a=(0.4,) * 3), points=points)
    assert tiles(answer, "fcfs")[2] == Tile(
        "80.0 s", "mean JCT with a", "at 0.3 jobs/s, more than fcfs sustains"
    )


def test_the_cost_of_a_job_is_compared_with_the_baselines_and_an_apis() -> None:
    answer = answer_of(chains(fcfs=(0.2,) * 3, a=(0.4,) * 3))
    costs = [JobCost("a", RATES, 0.4, 0.0125, {}, 0.5), JobCost("fcfs", RATES, 0.2, 0.025, {}, 0.5)]
    found = tiles(replace(answer, costs=costs), "fcfs")
    assert found[2].number == "0.0125 USD"
    assert mentions(found[2].what, "a")
    assert mentions(found[2].sure, "fcfs: 0.025 USD", "API: 0.5 USD")
    own = tiles(replace(answer_of(chains(fcfs=(0.2,) * 3)), costs=costs[1:]), "fcfs")
    assert own[1].number == "0.025 USD"
    assert not mentions(own[1].sure, "fcfs")


def test_without_a_capacity_there_is_no_tile() -> None:
    never = answer_of(chains(fcfs=(NEVER,) * 3))
    assert never.winners == ()
    assert tiles(never, "fcfs") == []


def positions(page: str, *texts: str) -> Sequence[int]:
    return [page.index(text) for text in texts]


def test_the_first_screen_is_the_sentence_the_basis_the_numbers_a_picture_and_the_caveats(
    tmp_path: Path,
) -> None:
    make_run(tmp_path, ["fcfs", "continuum"], [0.05, 0.9], programs=20)
    page = write(tmp_path).path.read_text()
    order = positions(
        page,
        '<h1 id="answer"',
        "Simulated in virtual time, not measured on a GPU: llama-3.1-8b on a100-80g",
        '<dl class="tiles">',
        'id="jct-mean"',
        '<p class="names">',
        'aria-label="Caveats"',
        '<h2 id="details">In detail</h2>',
        '<h2 id="figures">',
    )
    assert order == sorted(order)
    assert page.count('id="jct-mean"') == 1


def test_the_first_screen_has_the_three_weightiest_caveats_and_the_others_follow(
    tmp_path: Path,
) -> None:
    left_out = [{"program_id": "long", "reason": "200000 tokens"}]
    shape = {"name": "swe-bench", "programs": 40, "turns": 40, "left_out": left_out}
    write_sweep(tmp_path, ["fcfs", "continuum", "autellix"], workload=shape)
    grows = [turn(f"p{k:02d}", 0, float(k), queue_s=float(k)) for k in range(40)]
    for variant in ("fcfs", "continuum"):
        write_cell(tmp_path, variant, grows, workload=shape)
    write_cell(tmp_path, "autellix", grows[:-1], workload=shape)
    report = write(tmp_path)
    caveats = report.result.caveats
    gate, left, saturated = caveats[:MOST_CAVEATS]
    assert mentions(gate, "1 cell of 3", "autellix_jps0.5_seed1")
    assert left.startswith("Left out")
    assert saturated.startswith("Past saturation")
    assert len(caveats) > MOST_CAVEATS == 3
    page = report.path.read_text()
    top, below = page.split('<h2 id="details">', 1)
    for caveat in caveats:
        start = caveat[:30]
        is_first = caveat in caveats[:MOST_CAVEATS]
        assert (start in top, start in below) == (is_first, not is_first)
