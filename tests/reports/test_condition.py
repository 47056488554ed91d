"""`--fail-unless`: what it computes, and that it accepts nothing else."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reports.answer.condition import parse_condition
from reports.answer.held import evaluate
from reports.answer.verdict import Answer
from reports.capacity.estimate import Capacity, Kind
from reports.loads import AGENTS
from reports.statistics.bootstrap import Estimate
from reports.statistics.capacities import VariantCapacity
from reports.statistics.points import Point
from servers.basics.errors import InvalidInput
from tests.sentences import mentions

VARIANTS = ("fcfs", "continuum", "continuum+", "continuum(k=50)", "my_policies:KeepShortTools")


def capacity_of(name: str, jobs_per_s: float) -> VariantCapacity:
    kind = Kind.NEVER if math.isnan(jobs_per_s) else Kind.FOUND
    return VariantCapacity(name, "", {1: Capacity(kind, jobs_per_s, None, 0.01)}, None)


FOUND = Capacity(Kind.FOUND, 0.2, 0.19, 0.21)
NEVER = Capacity(Kind.NEVER, math.nan, None, 0.01)
ALWAYS = Capacity(Kind.ALWAYS, math.nan, 5.0, None)
OPEN = Capacity(Kind.OPEN, math.nan, 0.1, None)

ANSWER = Answer(
    "", (), (), "",
    capacities=(
        capacity_of("fcfs", 0.2),
        capacity_of("continuum", 0.3),
        capacity_of("continuum+", 0.5),
        capacity_of("continuum(k=50)", 0.4),
        capacity_of("my_policies:KeepShortTools", math.nan),
    ),
)  # fmt: skip


def point(variant: str, jps: float, mean_s: float, *, saturated: bool = False) -> Point:
    return Point(
        variant, "", False, f"{jps:g} jobs/s", jps, 200, Estimate(mean_s, mean_s, mean_s),
        {"jct_p50_s": 20.0, "jct_p95_s": 3 * mean_s}, jps, {}, saturated, False, None,
    )  # fmt: skip


POINTS = [
    point("fcfs", 0.1, 60),
    point("fcfs", 0.3, math.nan, saturated=True),
    point("continuum", 0.3, math.nan, saturated=True),
    point("continuum+", 0.3, 50),
]


def held(text: str) -> bool:
    return evaluate(parse_condition(text), ANSWER, POINTS).holds


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("capacity(continuum) >= 1.3 * capacity(fcfs)", True),
        ("capacity(continuum) >= 1.6 * capacity(fcfs)", False),
        ("capacity(continuum+) > capacity(continuum)", True),
        ("capacity('continuum+') / capacity(\"fcfs\") < 2.6", True),
        ("capacity(continuum(k=50)) - capacity( fcfs ) <= 0.21", True),
        ("0.1 < capacity(fcfs) < 0.3", True),
        ("0.1 < capacity(fcfs) < 0.15", False),
        ("mean_jct(fcfs, at=0.1) <= 60 and p95_jct(fcfs, at=0.1) <= 180", True),
        ("mean_jct(fcfs, at=0.1) < 60 or p50_jct(fcfs, at=0.1) < 21", True),
        ("not capacity(fcfs) > 1", True),
        ("-capacity(fcfs) < 0", True),
    ],
)
def test_a_condition_compares_capacities_and_jcts(text: str, holds: bool) -> None:
    assert held(text) is holds


def test_the_sentence_has_the_numbers() -> None:
    found = evaluate(parse_condition("capacity(continuum) >= 1.6 * capacity(fcfs)"), ANSWER, POINTS)
    values = "does not hold", "capacity(continuum) = 0.3", "capacity(fcfs) = 0.2"
    assert mentions(found.sentence, "capacity(continuum) >= 1.6 * capacity(fcfs)", *values)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("capacity(my_policies:KeepShortTools) > 0", "cannot be decided"),
        ("not capacity(my_policies:KeepShortTools) > 0", "cannot be decided"),
        ("mean_jct(fcfs, at=0.3) < 1000", "is infinite (unstable)"),
        ("mean_jct(fcfs, at=0.7) < 1000", "fcfs has no result at 0.7 jobs/s"),
        ("capacity(fcfs) / (capacity(fcfs) - capacity(fcfs)) > 1", "division by zero"),
    ],
)
def test_a_condition_without_a_number_does_not_hold(text: str, reason: str) -> None:
    found = evaluate(parse_condition(text), ANSWER, POINTS)
    assert not found.holds
    assert reason in found.sentence


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("capacity(fcsf) > 1", "fcsf is not a policy of this sweep; did you mean fcfs?"),
        ("capacity(vtc) > 1", "vtc is not a policy of this sweep; use fcfs, continuum, "),
        ("mean_jct(fcfs, at=0.7) < 9", "no cell runs at 0.7 jobs/s; add --jps 0.7"),
    ],
)
def test_what_a_sweep_does_not_have_is_refused_before_it_runs(text: str, reason: str) -> None:
    with pytest.raises(InvalidInput, match="--fail-unless") as error:
        parse_condition(text).check(VARIANTS, [0.1, 0.3])
    assert reason in str(error.value)


def test_a_load_of_a_condition_is_a_number_of_agents_if_the_sweep_has_agents() -> None:
    condition = parse_condition("mean_jct(fcfs, at=8) < 9")
    condition.check(VARIANTS, [8.0, 16.0], AGENTS)
    with pytest.raises(InvalidInput, match="8 agents; add --agents 8"):
        condition.check(VARIANTS, [16.0], AGENTS)


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("mean_jct(fcfs, at=0.3) <= 1e300", False),
        ("not mean_jct(fcfs, at=0.3) <= 1e300", True),
        ("mean_jct(continuum+, at=0.3) <= 1.05 * mean_jct(fcfs, at=0.3)", True),
        ("mean_jct(fcfs, at=0.3) >= 2 * mean_jct(continuum+, at=0.3)", True),
        ("mean_jct(continuum+, at=0.3) / mean_jct(fcfs, at=0.3) < 0.5", True),
        ("mean_jct(fcfs, at=0.3) <= 1.05 * mean_jct(continuum+, at=0.3)", False),
        ("p95_jct(fcfs, at=0.3) < 1000 or mean_jct(continuum+, at=0.3) < 60", True),
    ],
)
def test_the_jct_of_an_unstable_cell_is_above_every_number(text: str, holds: bool) -> None:
    assert held(text) is holds


def test_the_jcts_of_a_fixed_set_past_saturation_are_numbers() -> None:
    fixed = [point("fcfs", 0.3, 600, saturated=True), point("continuum", 0.3, 550, saturated=True)]
    condition = parse_condition("mean_jct(continuum, at=0.3) <= 0.9 * mean_jct(fcfs, at=0.3)")
    values = "mean_jct(continuum, at=0.3) = 550", "mean_jct(fcfs, at=0.3) = 600"
    assert mentions(evaluate(condition, ANSWER, fixed).sentence, "does not hold", *values)
    condition = parse_condition("mean_jct(continuum, at=0.3) <= 1.5 * mean_jct(fcfs, at=0.3)")
    assert evaluate(condition, ANSWER, fixed).holds


@pytest.mark.parametrize(
    "text",
    [
        "mean_jct(fcfs, at=0.3) >= 2 * mean_jct(continuum, at=0.3)",
        "mean_jct(fcfs, at=0.3) <= 2 * mean_jct(continuum, at=0.3)",
        "not mean_jct(fcfs, at=0.3) < mean_jct(continuum, at=0.3)",
        "mean_jct(fcfs, at=0.3) - mean_jct(continuum, at=0.3) < 10",
        "mean_jct(fcfs, at=0.3) / mean_jct(continuum, at=0.3) < 10",
        "0 < 1 and mean_jct(fcfs, at=0.3) > mean_jct(continuum, at=0.3)",
    ],
)
def test_two_unstable_cells_decide_nothing_so_the_condition_does_not_hold(text: str) -> None:
    found = evaluate(parse_condition(text), ANSWER, POINTS)
    assert not found.holds
    undecided = "does not hold", "cannot be decided", "mean_jct(fcfs, at=0.3) is infinite"
    assert mentions(found.sentence, *undecided)


CASES = Answer(
    "", (), (), "",
    capacities=(
        capacity_of("fcfs", 0.2),
        VariantCapacity("none", "", {1: NEVER, 2: NEVER}, None),
        VariantCapacity("other", "", {1: NEVER, 2: NEVER}, None),
        VariantCapacity("once", "", {1: FOUND, 2: NEVER}, None),
        VariantCapacity("all", "", {1: ALWAYS, 2: ALWAYS}, None),
        VariantCapacity("open", "", {1: FOUND, 2: OPEN}, None),
    ),
)  # fmt: skip


@pytest.mark.parametrize(
    ("text", "holds", "words"),
    [
        ("capacity(fcfs) >= 1.3 * capacity(none)", True, "none) is below every rate searched ("),
        ("capacity(none) >= 0.9 * capacity(fcfs)", False, "does not hold, capacity(none) is"),
        ("capacity(none) >= 0.9 * capacity(other)", False, "cannot be decided"),
        ("capacity(fcfs) / capacity(none) >= 15", True, "(none sustained)"),  # 0.2 / 0.01 or more
        ("capacity(fcfs) / capacity(none) >= 25", False, "cannot be decided"),
        # A seed with 0.2 and one below 0.01: less than their geometric mean, 0.0447.
        ("capacity(once) < 0.045", True, "(none sustained with 1 of 2 seeds)"),
        ("capacity(once) >= 0.9 * capacity(fcfs)", False, "does not hold, capacity(once) is"),
        ("capacity(all) >= 1.3 * capacity(fcfs)", True, "capacity(all) is above 5 "),
        ("capacity(fcfs) >= 0.9 * capacity(all)", False, "does not hold, capacity(fcfs)"),
        ("capacity(all) <= 6", False, "cannot be decided"),
        ("capacity(open) >= 0", True, "is unknown (the search has not finished)"),
        ("capacity(open) <= capacity(fcfs)", False, "cannot be decided"),
    ],
)
def test_a_capacity_without_a_number_is_compared_by_what_is_known(
    text: str, holds: bool, words: str
) -> None:
    found = evaluate(parse_condition(text), CASES, POINTS)
    assert found.holds is holds
    assert words in found.sentence


def test_all_that_a_sweep_has_is_accepted() -> None:
    for name in VARIANTS:
        parse_condition(f"capacity({name}) > mean_jct({name}, at=0.1)").check(VARIANTS, [0.1])


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "not an expression; use for example 'capacity(continuum) >="),
        ("capacity(fcfs) >", "not an expression"),
        ("capacity(fcfs", "not an expression"),
        ("capacity(fcfs)", "has no comparison"),
        ("capacity(fcfs) == 1", "is not supported"),
        ("capacity(fcfs) > x", "x is not supported"),
        ("capacity(fcfs) > True", "True is not supported"),
        ("capacity(fcfs) > 2 ** 99999999", "is not supported"),
        ("capacity(fcfs) > [1]", "is not supported"),
        ("capacity(fcfs, 3) > 1", "capacity takes the name of one policy"),
        ("capacity() > 1", "capacity takes the name of one policy"),
        ("capacity(fcfs, at=1) > 1", "capacity takes no load"),
        ("mean_jct(fcfs) > 1", "mean_jct needs a load, at=NUMBER"),
        ("mean_jct(fcfs, at=x) > 1", "at=x is not a number"),
        ("capcity(fcfs) > 1", "capcity is not a function of --fail-unless; did you mean capacity?"),
        ("open('x') > 1", "open is not a function of --fail-unless; use capacity, mean_jct, "),
        ("().__class__.mro() > 1", "is not a function of --fail-unless"),
        ("capacity(fcfs) > 1" * 100, "longer than 500 characters"),
    ],
)
def test_anything_else_is_refused_in_one_line(text: str, reason: str) -> None:
    with pytest.raises(InvalidInput) as error:
        parse_condition(text)
    assert str(error.value).startswith("--fail-unless ")
    assert reason in str(error.value)
    assert "\n" not in str(error.value)


PARTS = st.sampled_from(
    [
        "capacity",
        "(",
        ")",
        "fcfs",
        ">=",
        "1.3",
        "*",
        ",",
        "at=",
        "0.1",
        "and",
        "not",
        "'",
        "\\",
        "-",
    ]
)


@given(st.one_of(st.text(max_size=40), st.lists(PARTS, max_size=14).map(" ".join)))
def test_any_text_is_a_condition_or_one_line(text: str) -> None:
    try:
        condition = parse_condition(text)
    except InvalidInput as error:
        message = str(error)
    else:
        message = evaluate(condition, ANSWER, POINTS).sentence.removeprefix(text)
    assert "\n" not in message


@pytest.mark.parametrize(
    ("text", "depends"),
    [
        ("capacity(fcfs) >= 8", True),
        ("not 2 * capacity(fcfs) + 1 < 30", True),
        ("mean_jct(fcfs, at=0.3) < 60 and capacity(fcfs) > 1", True),
        ("capacity(continuum) >= 1.3 * capacity(fcfs)", False),
        ("capacity(continuum) / capacity(fcfs) >= 1.3", False),
        ("capacity(fcfs) > 0", False),
        ("capacity(fcfs) > 0.0", False),
        ("capacity(continuum) >= capacity(fcfs) + 0.01", True),
        ("capacity(continuum) - capacity(fcfs) > 0", False),
        ("mean_jct(fcfs, at=0.3) <= 60", False),
    ],
)
def test_a_condition_depends_on_the_unit_of_a_capacity_that_is_compared_with_a_number(
    text: str, depends: bool
) -> None:
    assert parse_condition(text).depends_on_unit == depends
