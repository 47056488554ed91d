"""The answer about capacities: winners, ties, ratios, GPUs and cost, in plain sentences."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from msgspec import convert

from reports.answer.capacity import capacity_answer, meaning
from reports.answer.capacity_context import CapacityContext, MachinePrice
from reports.answer.fails_first import FailsFirst
from reports.answer.verdict import Answer
from reports.capacity.estimate import Capacity, Kind
from reports.capacity.search import Chain
from reports.capacity.slo import parse_slo
from reports.loads import AGENTS as LOAD_OF_AGENTS
from reports.loads import RATES
from reports.statistics.best import winners
from reports.statistics.bootstrap import Estimate
from reports.statistics.capacities import SeedShare, capacities
from reports.statistics.points import Comparison, Point
from servers.records.sweep import SweepRecord
from tests.sentences import mentions

SWEEP: dict[str, Any] = {
    "baseline": "fcfs",
    "hardware": "b200",
    "model": "llama-3.1-8b",
    "engine": "sim",
    "virtual_time": "virtual time",
    "gpus": 1,
    "seeds": [1, 2, 3],
    "variants": [],
    "jps": [],
    "workload": {"name": "swe-bench", "programs": 100},
}
NEVER = Capacity(Kind.NEVER, math.nan, None, 0.001)
ALWAYS = Capacity(Kind.ALWAYS, math.nan, 81.9, None)
OPEN = Capacity(Kind.OPEN, math.nan, 0.2, 0.4)


def number(jobs_per_s: float) -> Capacity:
    return Capacity(Kind.FOUND, jobs_per_s, jobs_per_s * 0.98, jobs_per_s * 1.02)


def chains(**per_seed: Sequence[float | Capacity]) -> dict[Chain, Capacity]:
    return {
        Chain(name.replace("_", "+"), seed): each if isinstance(each, Capacity) else number(each)
        for name, values in per_seed.items()
        for seed, each in enumerate(values, start=1)
    }


def point(variant: str, jps: float, mean_s: float, *, stable: bool = True) -> Point:
    ratio = Estimate(90 / mean_s, 0.9 * 90 / mean_s, 1.1 * 90 / mean_s)
    against = None if variant == "fcfs" else Comparison(ratio, ratio)
    return Point(
        variant, "", False, f"{jps:g} jobs/s", jps, 200, Estimate(mean_s, mean_s, mean_s),
        {"jct_p95_s": 3 * mean_s}, jps, {"device": 0.5}, not stable, False, against,
    )  # fmt: skip


def answer_of(
    found: Mapping[Chain, Capacity],
    *,
    points: Sequence[Point] = (),
    references: Mapping[str, str] = {},
    slo: str = "mean<=2x",
    **sweep: Any,
) -> Answer:
    merged = convert(SWEEP | sweep, SweepRecord)
    variants = {chain.variant: references.get(chain.variant, "") for chain in found}
    asked = CapacityContext(merged, parse_slo(slo), 42.0)
    of_all = capacities(found, variants, "fcfs", asked.ladder)
    return capacity_answer(of_all, points, asked, [])


def test_a_clear_winner_is_named_with_its_capacity_and_the_paired_ratio() -> None:
    # 1.8 times as many in each seed. With the prior of 2 · 0.1² the deviation is 0.071,
    # and t = 2.776 of 4 degrees over √3 seeds is a factor of e^0.113 up and down.
    answer = answer_of(chains(fcfs=(0.2, 0.25, 0.23), continuum_=(0.36, 0.45, 0.414)))
    gain = "continuum+", "0.406 jobs/s", "b200", "1.8x", "fcfs", "1.6–2.0"
    assert mentions(answer.headline, *gain)
    assert answer.winners == ("continuum+",)


def test_gains_are_also_stated_against_a_tuned_vllm() -> None:
    # 1.25 and 1.5 times as many as fcfs in each seed, so 1.2 times; intervals as above.
    tuned, values = "fcfs-tuned(long_prefill=512)", (0.2, 0.25, 0.23)
    names = ("fcfs", tuned, "turnstile")
    found = {
        Chain(name, seed): number(value * factor)
        for name, factor in zip(names, (1.0, 1.25, 1.5), strict=True)
        for seed, value in enumerate(values, start=1)
    }
    answer = answer_of(found, variants=[{"name": name} for name in names])
    gain = "0.282 jobs/s", "1.2x", "fcfs", "1.1–1.4"
    assert mentions(answer.findings[1], tuned, *gain, "turnstile 1.2x", "1.07–1.34")
    router = {"baseline": "fcfs@sticky", "variants": [{"name": f"{tuned}@random"}]}
    assert not any("Against it" in each for each in answer_of(found, **router).findings)


def test_ties_are_said_as_ties() -> None:
    found = chains(
        fcfs=(0.2, 0.2, 0.2), a=(0.4, 0.41, 0.40), b=(0.40, 0.40, 0.40), c=(0.395, 0.41, 0.4)
    )
    answer = answer_of(found)
    assert mentions(answer.headline, "Three", "3 seeds", "a, c and b", "about 0.403")
    assert set(answer.winners) == {"a", "b", "c"}


def test_a_scheduler_that_is_a_fifth_lower_in_every_seed_does_not_win() -> None:
    # ln 0.8 = -0.223. Of two without spread, three seeds have half a width of 4.604 ·
    # √(0.02 ÷ 4) ÷ √3 = 0.188: t has 4 degrees, and one pair at five looks 99%.
    answer = answer_of(chains(fcfs=(0.2, 0.2, 0.2), a=(0.4, 0.5, 0.6), b=(0.32, 0.40, 0.48)))
    assert answer.winners == ("a",)


@pytest.mark.parametrize(("seeds", "winners"), [(3, ("a", "b")), (6, ("a",))])
def test_a_tenth_in_every_seed_is_no_difference_with_three_seeds_and_one_with_six(
    seeds: int, winners: tuple[str, ...]
) -> None:
    # ln 0.9 = -0.105. Half widths: 0.188 as above, and 3.499 · √(0.02 ÷ 7) ÷ √6 = 0.076.
    answer = answer_of(chains(fcfs=(0.2,) * seeds, a=(0.4,) * seeds, b=(0.36,) * seeds))
    assert answer.winners == winners


def test_the_baseline_can_win() -> None:
    answer = answer_of(chains(fcfs=(0.4, 0.4, 0.4), a=(0.3, 0.3, 0.3)))
    assert mentions(answer.headline, "No scheduler", "more jobs than fcfs", "0.4 jobs/s", "b200")


def test_schedulers_as_good_as_the_baseline_are_named() -> None:
    answer = answer_of(chains(fcfs=(0.4, 0.4, 0.4), a=(0.401, 0.4, 0.4), b=(0.3, 0.3, 0.3)))
    best = "No scheduler", "than fcfs", "0.4 jobs/s", "b200"
    assert mentions(answer.headline, *best, "it and a are not distinguished", "3 seeds")


def test_schedulers_that_differ_by_noise_have_a_number_each() -> None:
    answer = answer_of(chains(fcfs=(0.40, 0.40, 0.40), a=(0.30, 0.42, 0.37)))
    # (0.30 · 0.42 · 0.37)^(1/3) = 0.360.
    tie = "2 schedulers", "3 seeds", "b200", "fcfs sustains 0.4 jobs/s", "a 0.36"
    assert mentions(answer.headline, *tie)


def test_seeds_that_show_no_more_than_3_percent_between_all_show_that_they_are_equal() -> None:
    """24 seeds, as in test_best.py: half the width is at most 1.6%."""
    answer = answer_of(chains(fcfs=(0.4,) * 24, a=(0.399,) * 24), seeds=list(range(1, 25)))
    assert mentions(answer.headline, "2 schedulers are equal", "3%", "0.4 jobs/s", "b200")


def test_if_all_tie_the_choice_does_not_matter() -> None:
    answer = answer_of(chains(fcfs=(0.4, 0.4, 0.4), a=(0.401, 0.4, 0.4), b=(0.395, 0.4, 0.4)))
    assert mentions(answer.headline, "3 schedulers", "3 seeds", "about 0.4 jobs/s", "b200")
    assert "1 job/s needs 3 GPUs with fcfs." in answer.findings


def test_one_seed_has_no_interval_and_the_report_says_so() -> None:
    answer = answer_of(chains(fcfs=(0.2,), a=(0.4,), b=(0.38,)), seeds=[1])
    assert mentions(answer.headline, "a sustains 0.4 jobs/s", "2.0x", "fcfs", "too few seeds")
    assert mentions(answer.caveats[0], "One seed", "no interval")


def test_a_reference_never_wins() -> None:
    answer = answer_of(
        chains(fcfs=(0.2, 0.2, 0.2), a=(0.3, 0.3, 0.3), oracle=(0.5, 0.5, 0.5)),
        references={"oracle": "the future"},
    )
    assert answer.winners == ("a",)


def test_an_slo_that_nothing_meets_is_no_number() -> None:
    answer = answer_of(chains(fcfs=(NEVER,) * 3, a=(NEVER,) * 3))
    missed = "No scheduler", "b200", "mean<=2x", "42.0 s", "looser --slo"
    assert mentions(answer.headline, *missed)
    assert answer.winners == ()


def test_a_search_that_ends_at_25_jobs_within_a_horizon_says_that_a_longer_one_goes_on() -> None:
    """25 jobs in 8 h are 0.00087 jobs/s, at which an idle machine has 0.036 jobs of 42 s; in 24 h
    it would have 0.012, fewer than the 0.02 at which every search ends."""

    def said(hours: int) -> str:
        found = chains(fcfs=(NEVER,) * 3, a=(NEVER,) * 3)
        return answer_of(found, horizon={"seconds": 3600.0 * hours}).headline

    assert mentions(said(8), "25 jobs in 8 h", "--horizon", "--slo")
    assert not mentions(said(24), "25 jobs")


def test_an_slo_that_nothing_meets_after_a_burst_is_missed_by_the_burst() -> None:
    found = chains(fcfs=(NEVER,) * 3, a=(NEVER,) * 3)
    said = answer_of(found, horizon={"seconds": 86_400.0, "burst": 50}).headline
    assert mentions(said, "mean<=2x", "a burst of 50", "--burst", "--horizon", "--slo")


def test_without_a_capacity_with_every_seed_the_seeds_that_sustain_nothing_are_counted() -> None:
    answer = answer_of(chains(fcfs=(0.2, 0.25, NEVER), a=(NEVER,) * 3))
    counted = "fcfs with 1 of 3 seeds and a with 3 of 3 seeds"
    assert mentions(answer.headline, "No scheduler", "every seed", *counted.split(" and "))


def test_an_slo_that_everything_meets_names_the_highest_rate_that_was_tried() -> None:
    answer = answer_of(chains(fcfs=(ALWAYS,) * 3, a=(ALWAYS,) * 3))
    assert mentions(answer.headline, "fcfs and a", "mean<=2x", "81.9 jobs/s", "b200", "--slo")


def test_a_search_that_is_not_finished_cannot_win_and_the_report_says_so() -> None:
    answer = answer_of(chains(fcfs=(0.2, 0.2, 0.2), a=(0.4, OPEN, 0.4)))
    assert answer.winners == ("fcfs",)
    assert mentions(answer.caveats[0], "not finished for a")
    unfinished = "not finished for 1 scheduler", "No scheduler", "fcfs", "0.2 jobs/s"
    assert mentions(answer.headline, *unfinished)


def test_an_unfinished_search_that_has_found_more_is_named() -> None:
    more = Capacity(Kind.OPEN, math.nan, 0.3, 0.4)
    headline = answer_of(chains(fcfs=(0.2,) * 3, a=(more,) * 3)).headline
    assert mentions(headline, "fcfs", "0.2 jobs/s", "a already", "higher")


def test_gpus_for_a_round_rate_are_whole_machines() -> None:
    # 1 job/s: 5 machines at 0.2 jobs/s, 3 (2.5) at 0.4; two GPUs each.
    answer = answer_of(chains(fcfs=(0.2,) * 3, a=(0.4,) * 3), gpus=2)
    assert mentions(answer.findings, "1 job/s", "6 GPUs with a", "10 GPUs with fcfs")


def test_gpus_and_costs_include_the_background_that_each_machine_serves() -> None:
    beside = {"requests_per_s": 0.1, "name": "chat.jsonl", "requests": 8}
    found = chains(fcfs=(0.2,) * 3, a=(0.4,) * 3)
    one = answer_of(found, background=beside, price={"usd_per_gpu_hour": 3.6, "source": "--price"})
    needs = "1 job/s", "3 GPUs with a", "5 GPUs with fcfs", "0.1 background requests/s"
    assert mentions(one.findings, *needs)
    # 0.001 USD/s for 1,000 jobs at 0.4 and 0.2 jobs/s.
    assert mentions(one.findings, "2.5 USD with a", "5 USD with fcfs", "background included")
    two = answer_of(found, background=beside, gpus=2)
    assert mentions(two.findings, "fcfs", "machine of 2 GPUs", "0.1 background requests/s")


def test_a_thousand_jobs_cost_what_the_machine_costs_while_it_finishes_them() -> None:
    # 3.6 USD/h is 0.001 USD/s; 1,000 jobs take 2,500 s at 0.4 jobs/s and 5,000 s at 0.2.
    price = MachinePrice(1, 3.6)
    assert price.usd(0.4, RATES) == pytest.approx(2.5)
    answer = answer_of(
        chains(fcfs=(0.2,) * 3, a=(0.4,) * 3), price={"usd_per_gpu_hour": 3.6, "source": "--price"}
    )
    assert mentions(answer.findings, "thousand jobs", "2.5 USD with a", "5 USD with fcfs")


def test_jcts_are_compared_at_the_highest_rate_that_the_baseline_sustains_with_every_seed() -> None:
    points = [
        point("fcfs", 0.1, 60), point("a", 0.1, 55),
        point("fcfs", 0.2, 90), point("a", 0.2, 60),
        # Sustained with two of three seeds: the mean is that of the third.
        point("fcfs", 0.25, 450), point("a", 0.25, 65),
        point("fcfs", 0.3, 500, stable=False), point("a", 0.3, 75),
        point("fcfs", 0.4, 500, stable=False), point("a", 0.4, 130),
    ]  # fmt: skip
    answer = answer_of(chains(fcfs=(0.24, 0.25, 0.26), a=(0.39, 0.4, 0.41)), points=points)
    assert answer.load == "0.2 jobs/s"
    jcts = "80% of fcfs's", "60.0 s with a", "fcfs takes 90.0 s", "1.5x", "1.4–1.7"
    assert mentions(answer.findings, "0.2 jobs/s", *jcts)
    # 0.3 jobs/s is more than 0.26, and less than 0.39; 0.4 is not.
    assert answer.beyond is not None
    assert (answer.beyond.variant, answer.beyond.load) == ("a", "0.3 jobs/s")


def test_the_capacities_of_winners_that_are_not_equal_never_read_as_an_interval() -> None:
    """Each number has the name of its scheduler: 0.36 to 0.4 could be the interval of one. b is 10%
    lower on average, but higher in one seed of three, so noise does not exclude it."""
    answer = answer_of(chains(fcfs=(0.2, 0.2, 0.2), a=(0.40, 0.40, 0.40), b=(0.30, 0.42, 0.37)))
    assert answer.winners == ("a", "b")
    # (0.30 · 0.42 · 0.37)^(1/3) = 0.360, and ÷ 0.2 = 1.8.
    tie = "Two schedulers", "3 seeds", "b200", "a sustains 0.4 jobs/s", "b 0.36"
    assert mentions(answer.headline, *tie, "2.0x and 1.8x", "fcfs")


def test_of_many_winners_the_headline_names_the_highest_and_the_lowest() -> None:
    found = chains(
        fcfs=(0.2,) * 3, a=(0.40,) * 3, b=(0.30, 0.42, 0.37), c=(0.4, 0.4, 0.39),
        d=(0.4, 0.39, 0.39), e=(0.39,) * 3,
    )  # fmt: skip
    # The logs of b ÷ fcfs are 0.405, 0.742 and 0.615: 0.588 ± 2.776 · √(0.0778 ÷ 4) ÷ √3 = 0.224.
    answer = answer_of(found)
    highest = "Five schedulers", "3 seeds", "from a, which sustains 0.4 jobs/s", "2.0x", "1.8–2.2"
    assert mentions(answer.headline, *highest, "to b with 0.36 jobs/s (1.8x)")
    assert answer.winners == ("a", "c", "d", "e", "b")


def test_a_mean_of_ratios_that_differ_by_more_than_half_names_their_range() -> None:
    found = chains(fcfs=(0.2, 0.2, 0.2), a=(0.26, 0.26, 0.40))
    caveat = "a sustains 1.3x to 2.0x as many as fcfs, depending on the seed: "
    assert any(each.startswith(caveat) for each in answer_of(found).caveats)
    found = chains(fcfs=(0.2, 0.2, 0.2), a=(0.26, 0.26, 0.38))
    assert not any("depending on the seed" in each for each in answer_of(found).caveats)


def test_jcts_are_compared_with_the_highest_winner_and_not_with_the_luckiest() -> None:
    points = [point("fcfs", 0.1, 60), point("a", 0.1, 55), point("b", 0.1, 54.9)]
    found = chains(fcfs=(0.2,) * 3, a=(0.40,) * 3, b=(0.30, 0.42, 0.37))
    winner = answer_of(found, points=points).winner
    assert winner is not None
    assert winner.variant == "a"


@pytest.mark.parametrize("names", [1, 2, 5, 12])
@pytest.mark.parametrize("lowest", [(0.4, 0.4, 0.4), (0.30, 0.42, 0.37)])
def test_headlines_have_at_most_about_thirty_words(names: int, lowest: Sequence[float]) -> None:
    tied = {f"p{k}": (0.4,) * 3 for k in range(names)}
    found = chains(fcfs=(0.2,) * 3, **tied, low=lowest)
    assert len(answer_of(found).headline.split()) <= 36


def test_with_one_seed_those_within_three_percent_of_the_highest_tie() -> None:
    found = capacities(
        chains(fcfs=(1.0,), a=(0.971,), b=(0.969,)),
        dict.fromkeys(("fcfs", "a", "b"), ""),
        "fcfs",
    )
    assert [each.variant for each in winners(found)] == ["fcfs", "a"]


def test_the_answer_in_steady_state_says_that_capacities_hold_after_a_burst() -> None:
    sweep = convert(SWEEP, SweepRecord)
    said = meaning(CapacityContext(sweep, parse_slo("mean<=2x"), 65.8))
    assert mentions(said, "after a burst", "without such a")


def test_the_answer_within_a_horizon_says_what_most_days_sustain() -> None:
    day = {"horizon": {"seconds": 86_400, "burst": 5}}
    context = CapacityContext(convert(SWEEP | day, SweepRecord), parse_slo("mean<=2x"), 65.8)
    sustained = "mean JCT at most 2x", "24 h", "after a burst of 5 jobs"
    assert mentions(meaning(context), *sustained)
    capped = {"horizon": {"seconds": 86_400, "jobs": 5_000}}
    # ln 0.2, ln 0.22 and ln 0.25 have the mean -1.503 and a deviation of 0.112; Student's t of two
    # degrees at 95% is 2.92, so the bound is e^(-1.503 - 2.92 · 0.112 · √(4/3)) = 0.152.
    findings = answer_of(chains(fcfs=(0.2, 0.22, 0.25)), **capped).findings
    most_days = "95%", "24 h", "5,000 jobs", "0.152 with fcfs", "3 seeds"
    assert mentions(findings, *most_days)


AGENTS = {"arrivals": "agents", "price": {"usd_per_gpu_hour": 2.0, "source": "--price"}}


def test_capacities_in_agents_have_the_gpus_and_the_cost_of_the_wanted_agents() -> None:
    found = chains(fcfs=(12.0,) * 3, a=(20.0,) * 3)
    answer = answer_of(found, agents=[10, 40], **AGENTS)
    assert mentions(answer.headline, "a sustains 20 agents", "b200", "1.7x", "fcfs")
    # 40 ÷ 20 = 2 and 40 ÷ 12 = 3.3 machines of one GPU; 730 h · 2 USD ÷ 20 and ÷ 12.
    assert mentions(answer.findings, "40 agents", "2 GPUs with a", "4 GPUs with fcfs")
    assert mentions(answer.findings, "all month", "73 USD with a", "122 USD with fcfs")
    assert mentions(answer.findings[0], "mean JCT at most 2x", "agents", "42.0 s")


@pytest.mark.parametrize(
    ("arrivals", "says"),
    [
        ("agents:60", "a new job 60.0 s on average"),
        (
            "day:office",
            "the hours of day:office",
        ),
        ("day:1,2", "the hours of the given profile"),
    ],
)
def test_the_answer_says_how_long_agents_think_and_which_hours_are_busy(
    arrivals: str, says: str
) -> None:
    day = {"arrivals": arrivals, "horizon": {"seconds": 86_400}}
    sweep = convert(SWEEP | day, SweepRecord)
    assert says in meaning(CapacityContext(sweep, parse_slo("mean<=2x"), 65.8))


def test_a_machine_serves_a_whole_number_of_agents() -> None:
    assert MachinePrice(2, 1.0).gpus_for(8, 1.29, LOAD_OF_AGENTS) == 16
    assert MachinePrice(1, 1.0).gpus_for(40, 17.9, LOAD_OF_AGENTS) == 3  # 17 each
    assert MachinePrice(1, 1.0).gpus_for(4, 0.8, LOAD_OF_AGENTS) == 4


def test_without_a_wanted_number_a_round_number_of_agents_is_priced() -> None:
    answer = answer_of(chains(fcfs=(12.0,) * 3, a=(20.0,) * 3), **AGENTS)
    assert mentions(answer.findings, "100 agents", "5 GPUs with a", "9 GPUs with fcfs")


def test_an_slo_that_a_single_agent_misses_is_no_number_of_agents() -> None:
    answer = answer_of(chains(fcfs=(NEVER,) * 3, a=(NEVER,) * 3), **AGENTS)
    assert mentions(answer.headline, "No scheduler", "agents", "mean<=2x", "single agent")


def test_the_answer_says_what_fails_first_for_the_best_and_the_baseline() -> None:
    limits = {
        name: FailsFirst("mean<=2x", "mean JCT", SeedShare(1, 1), (load, load), "time", {})
        for name, load in {"fcfs": 0.2, "a": 0.4, "b": 0.3}.items()
    }
    merged = convert(SWEEP, SweepRecord)
    asked = CapacityContext(merged, parse_slo("mean<=2x"), 42.0)
    found = chains(fcfs=(0.2,), a=(0.4,), b=(0.3,))
    of_all = capacities(found, dict.fromkeys(limits, ""), "fcfs", RATES)
    answer = capacity_answer(of_all, (), asked, [], fails_first=limits)
    best, baseline = answer.reasons
    assert [each for each in answer.findings if "first misses" in each] == [best, baseline]
    assert mentions(best, "a first misses", "mean JCT", "0.4 jobs/s")
    assert mentions(baseline, "fcfs first misses", "mean JCT", "0.2 jobs/s")
