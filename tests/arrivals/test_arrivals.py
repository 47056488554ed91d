"""Arrival processes: their rate and spread, their pairing across rates, and the chosen programs."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.load.arrivals import (
    Arrivals,
    choose_programs,
    drawn_starts,
    in_numbers,
    parse_arrivals,
    recorded_starts,
    rng_for,
)
from servers.basics.errors import InvalidInput
from traces.program import Fork, Program, Turn

N = 200_000


def program(name: str, parent: str | None = None, start_s: float | None = None) -> Program:
    fork = Fork(parent, after_turn=0) if parent else None
    return Program(name, (Turn(10, 5),), fork=fork, recorded_start_s=start_s, source="trace.json")


def gaps_of(text: str, rate: float, seed: int = 1, n: int = N) -> np.ndarray:
    starts = drawn_starts(parse_arrivals(text), rate, n, rng_for(seed, "arrivals"))
    return np.diff(np.array([0.0, *starts]))


@pytest.mark.parametrize(
    ("text", "arrivals"),
    [
        ("poisson", Arrivals("poisson")),
        ("gamma:0.5", Arrivals("gamma", burstiness=0.5)),
        ("gamma:.25", Arrivals("gamma", burstiness=0.25)),
        ("constant", Arrivals("constant")),
        ("day:" + ",".join(["1"] * 24), Arrivals("day", hours=(1.0,) * 24)),
        ("recorded", Arrivals("recorded")),
        ("closed:16", Arrivals("closed", in_flight=16)),
        ("agents", Arrivals("agents")),
        ("agents:7.5", Arrivals("agents", think_s=7.5)),
    ],
)
def test_each_form_of_arrivals_is_parsed(text: str, arrivals: Arrivals) -> None:
    assert parse_arrivals(text) == arrivals


def test_jobs_follow_the_hours_of_a_day_and_have_their_mean_rate() -> None:
    # Two busy hours of the same rate: each has half of the day's 86,400 s of mean rate.
    two = Arrivals("day", hours=(*[0.0] * 8, 1.0, *[0.0] * 7, 1.0, *[0.0] * 7))
    at_s = list(two.on_the_clock([0.0, 21_600.0, 43_200.0, 64_800.0, 86_400.0 + 21_600.0]))
    hour_s = 3600.0
    assert at_s == [8 * hour_s, 8.5 * hour_s, 16 * hour_s, 16.5 * hour_s, (24 + 8.5) * hour_s]
    starts = drawn_starts(parse_arrivals("day:office"), 2.0, 172_800, rng_for(1, "arrivals"))
    assert list(starts) == sorted(starts)
    days = np.array(starts) / 86_400
    # 172,800 jobs at 2 jobs/s take a day, give or take four deviations of their number, 1%.
    assert days[-1] == pytest.approx(1, abs=0.05)
    busy = np.mean((days[days < 1] * 24).astype(int) == 10)
    assert busy == pytest.approx(100 / 1025, rel=0.03)  # of the profile's 24 rates


def test_the_numbers_of_a_profile_in_a_file_are_kept(tmp_path: Path) -> None:
    rates = ["1000000", "1234567", "0.00005", *["0"] * 20, "2.5"]
    (tmp_path / "day.txt").write_text("\n".join(rates))
    assert in_numbers(str(tmp_path / "day.txt")) == ",".join(rates)


@pytest.mark.parametrize(
    ("profile", "message"),
    [
        ("weekend", "no such file; use office, or a file with 24 relative rates"),
        ("1,2,3", "has 3 rates; give one for each hour, from midnight"),
        (",".join(["0"] * 24), "all rates are 0; give one above 0"),
        (",".join(["-1"] * 24), "'-1' is not a rate of 0 or more"),
    ],
)
def test_a_daily_profile_without_24_rates_is_refused(profile: str, message: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_arrivals(f"day:{profile}")
    assert str(caught.value) == f"--arrivals day:{profile}: {message}"


@pytest.mark.parametrize(
    "text",
    [
        *("", "Poisson", "poisson:2", "burst\nthen", "x" * 500),
        *("gamma", "gamma:0", "gamma:0.001", "gamma:-1", "gamma:nan", "gamma:1e3"),
        *("closed", "closed:0", "closed:1.5", "closed:-1", "agents:", "agents:-1", "agents:1e3"),
    ],
)
def test_invalid_arrivals_are_refused_in_one_line_that_names_every_form(text: str) -> None:
    forms = r"poisson, gamma:BURSTINESS .* day:PROFILE, .* closed:N, .* agents:SECONDS"
    with pytest.raises(ValueError, match=forms) as caught:
        parse_arrivals(text)
    assert len(str(caught.value).splitlines()) == 1
    assert len(str(caught.value)) < 200


@given(st.text(max_size=30))
def test_any_text_is_valid_arrivals_or_refused(text: str) -> None:
    try:
        arrivals = parse_arrivals(text)
    except ValueError:
        return
    assert arrivals.burstiness > 0
    assert (arrivals.kind == "closed") == (arrivals.in_flight > 0)


# Five standard errors of the mean and of the squared coefficient of variation, N = 200,000:
# gaps of Gamma shape k at rate 1 have variance 1/k, and sampling cv² deviates by about
# cv² × sqrt((2 + 6/k) / N).
@pytest.mark.parametrize(
    ("text", "cv2"),
    [
        ("poisson", 1.0),
        ("gamma:0.25", 4.0),
        ("gamma:0.5", 2.0),
        ("gamma:1", 1.0),
        ("gamma:4", 0.25),
    ],
)
@pytest.mark.parametrize("rate", [0.05, 0.9, 40.0])
def test_the_mean_gap_is_one_over_the_rate_and_its_squared_cv_one_over_burstiness(
    text: str, cv2: float, rate: float
) -> None:
    gaps = gaps_of(text, rate)
    assert gaps.mean() * rate == pytest.approx(1.0, abs=5 * (cv2 / N) ** 0.5)
    spread = gaps.var() / gaps.mean() ** 2
    assert spread == pytest.approx(cv2, rel=5 * ((2 + 6 * cv2) / N) ** 0.5)


def test_gaps_are_not_capped() -> None:
    # One exponential gap in e^3 ≈ 20.1 exceeds three means: 9957 ± 97 of 200,000. A cap there
    # would leave none, and make the rate 5% too high.
    gaps = gaps_of("poisson", 0.2)
    assert abs(int((gaps > 3 / 0.2).sum()) - 9957) < 5 * 97
    assert gaps.max() > 9 / 0.2


def test_start_times_are_not_rounded() -> None:
    starts = drawn_starts(Arrivals("poisson"), 0.2, 1000, rng_for(3, "arrivals"))
    assert not any(start == round(start, 6) for start in starts)


def test_constant_arrivals_come_at_multiples_of_the_gap() -> None:
    starts = drawn_starts(Arrivals("constant"), 5.0, 4, rng_for(1, "arrivals"))
    assert starts == (0.2, 0.4, 0.6, 0.8)


def test_gamma_with_burstiness_one_equals_poisson_exactly() -> None:
    assert (gaps_of("gamma:1", 0.3, n=100) == gaps_of("poisson", 0.3, n=100)).all()


@given(seed=st.integers(0, 2**63), n=st.integers(1, 200))
def test_twice_the_rate_halves_every_start(seed: int, n: int) -> None:
    def starts(rate: float) -> tuple[float, ...]:
        return drawn_starts(Arrivals("poisson"), rate, n, rng_for(seed, "arrivals"))

    # powers of two divide without rounding
    assert starts(0.5) == tuple(2 * start for start in starts(1.0))
    assert starts(0.3) == pytest.approx([start / 0.3 for start in starts(1.0)])


@given(seed=st.integers(0, 2**32), n=st.integers(1, 50), more=st.integers(1, 50))
def test_more_programs_do_not_change_the_starts_of_the_first_ones(
    seed: int, n: int, more: int
) -> None:
    def starts(count: int) -> tuple[float, ...]:
        return drawn_starts(Arrivals("gamma", 0.5), 1.0, count, rng_for(seed, "arrivals"))

    assert starts(n + more)[:n] == starts(n)


@given(seed=st.integers(0, 2**32))
def test_starts_are_positive_and_ascending(seed: int) -> None:
    starts = drawn_starts(Arrivals("poisson"), 0.1, 50, rng_for(seed, "arrivals"))
    assert starts[0] > 0
    assert list(starts) == sorted(starts)


def test_draws_are_equal_for_the_same_seed_and_differ_between_seeds() -> None:
    programs = [program("a"), program("b")]
    poisson = Arrivals("poisson")
    assert poisson.draw(programs, 0.3, seed=0) == poisson.draw(programs, 0.3, seed=0)
    assert poisson.draw(programs, 0.3, seed=0) != poisson.draw(programs, 0.3, seed=1)


def test_random_streams_for_different_purposes_differ() -> None:
    assert rng_for(1, "arrivals").random() != rng_for(1, "synthesis").random()


def test_the_draw_of_seed_1_stays_the_same_across_versions() -> None:
    starts, in_flight = Arrivals("poisson").draw([program(c) for c in "abc"], 0.5, seed=1)
    assert starts == pytest.approx(PINNED, rel=1e-12)
    assert in_flight is None


PINNED = (1.13253368374775, 1.342154048693373, 8.250847341677746)


def test_a_closed_loop_has_a_limit_instead_of_start_times() -> None:
    programs = [program("a"), program("a.1", parent="a"), program("b")]
    assert Arrivals("closed", in_flight=16).draw(programs, None, seed=1) == ((0.0, 0.0), 16)


def test_an_open_loop_needs_a_rate() -> None:
    with pytest.raises(ValueError, match=r"--arrivals poisson: .* --jps"):
        Arrivals("poisson").draw([program("a")], None, seed=1)


def test_recorded_arrivals_are_the_recorded_starts_of_the_roots() -> None:
    programs = [
        program("a", start_s=0.0),
        program("a.1", parent="a"),
        program("b", start_s=7.25),
    ]
    assert Arrivals("recorded").draw(programs, None, seed=1) == ((0.0, 7.25), None)


def test_a_program_without_recorded_start_is_named_with_its_file() -> None:
    with pytest.raises(ValueError, match=r"program b .* \(trace.json\)"):
        recorded_starts([program("a", start_s=0.0), program("b")])


FAMILY = [
    program("a", start_s=0.0),
    program("b", start_s=1.0),
    program("b.1", parent="b"),
    program("b.1.1", parent="b.1"),
    program("c", start_s=2.0),
]


def test_the_first_programs_run_with_their_sub_agents() -> None:
    assert [p.id for p in choose_programs(FAMILY, 2)] == ["a", "b", "b.1", "b.1.1"]
    assert choose_programs(FAMILY, 3) == FAMILY


def test_too_few_programs_are_repeated_under_new_ids_with_their_sub_agents() -> None:
    chosen = choose_programs(FAMILY, 8)
    assert [p.id for p in chosen] == [
        *("a", "b", "b.1", "b.1.1", "c"),
        *("a#2", "b#2", "b.1#2", "b.1.1#2", "c#2"),
        *("a#3", "b#3", "b.1#3", "b.1.1#3"),
    ]
    parents = {p.id: p.fork.program_id for p in chosen if p.fork}
    assert parents["b.1#2"] == "b#2"
    assert parents["b.1.1#3"] == "b.1#3"


def test_repeated_programs_have_no_recorded_start() -> None:
    with pytest.raises(ValueError, match="program a#2 has no recorded start"):
        recorded_starts(choose_programs(FAMILY, 4))


def test_a_new_id_never_equals_an_id_of_the_trace() -> None:
    chosen = choose_programs([program("a"), program("a#2")], 4)
    assert [p.id for p in chosen] == ["a", "a#2", "a#3", "a#2#3"]


def test_fewer_programs_at_the_end_get_the_first_number_that_is_free_for_them() -> None:
    chosen = choose_programs([program("a"), program("b"), program("b#2")], 7)
    assert [p.id for p in chosen[3:]] == ["a#3", "b#3", "b#2#3", "a#2"]


@given(n=st.integers(1, 30))
def test_choosing_n_gives_n_jobs_with_distinct_ids(n: int) -> None:
    chosen = choose_programs(FAMILY, n)
    ids = [p.id for p in chosen]
    assert sum(p.fork is None for p in chosen) == n
    assert len(set(ids)) == len(ids)
    assert {p.fork.program_id for p in chosen if p.fork} <= set(ids)
    assert choose_programs(FAMILY, n) == chosen


@pytest.mark.parametrize(
    ("programs", "n", "reason"),
    [
        (FAMILY, 0, "--programs 0: must be at least 1"),
        ([], 1, "no programs to run"),
        ([program("a"), program("x", parent="gone")], 1, "sub-agent x has no parent"),
        ([program("a"), program("x", "y"), program("y", "x")], 1, "sub-agent x has no parent"),
    ],
)
def test_programs_that_cannot_run_are_refused(programs: list[Program], n: int, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        choose_programs(programs, n)
