"""`bench compare`: which changes are regressions or noise, and what cannot be compared."""

from __future__ import annotations

import gzip
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reports.capacity.estimate import Kind
from reports.compare.baseline import (
    JOBS,
    Bounds,
    Capacities,
    Place,
    Side,
    Unstable,
    read_side,
    save,
)
from reports.compare.page import draw
from reports.compare.regression import compare_sides
from reports.compare.settings import parse_allowed
from reports.compare.verdict import SUSTAINED, Outcome, Verdict, headline, markdown, row
from servers.basics.errors import InvalidInput, NotComparable
from tests.sentences import mentions

SETTINGS: dict[str, Any] = {
    "engine": "sim",
    "virtual_time": "virtual time",
    "hardware": "a100-80g",
    "model": "llama-3.1-8b",
    "profile": {"base_ps": 1, "kv_blocks": 100},
    "limits": {"max_num_seqs": 256},
    "arrivals": "poisson",
    "jps": [0.1],
    "seeds": [1],
    "workload": {"trace_sha256": "abc", "programs": 100, "turns": 500},
}
RNG = np.random.default_rng(3)
JCT_S = RNG.lognormal(3, 0.5, 100)


def side(jct_s: Any, variant: str = "fcfs", seed: int = 1, **changed: Any) -> Side:
    rows = [(variant, "0.1 jobs/s", seed, f"job-{k}", float(s)) for k, s in enumerate(jct_s)]
    invalid = changed.pop("invalid", {})
    return Side("run", {**SETTINGS, **changed}, pd.DataFrame(rows, columns=JOBS), invalid)


def outcome(base: Any, new: Any, most: float = 0.03, metric: str = "jct.mean") -> Outcome:
    (change,) = compare_sides(side(base), side(new), [metric], most).changes
    return change.outcome


def test_a_planted_regression_of_3_percent_is_found_and_an_unchanged_run_passes() -> None:
    assert outcome(JCT_S, 1.03 * JCT_S, most=0.02) == "regression"
    assert outcome(JCT_S, JCT_S) == "identical"
    verdict = compare_sides(side(JCT_S), side(1.03 * JCT_S), ["jct.mean", "jct.p95"], 0.02)
    assert not verdict.good
    largest = "fcfs at 0.1 jobs/s, jct.mean +3.0%"
    assert mentions(headline(verdict, 0.02), "2 regressions", "2.0%", largest)


def test_a_change_below_the_limit_is_slower_or_faster_but_no_regression() -> None:
    assert outcome(JCT_S, 1.02 * JCT_S) == "slower"
    assert outcome(JCT_S, 0.9 * JCT_S) == "faster"


def test_a_change_is_new_over_base_minus_one_of_the_paired_jobs() -> None:
    (change,) = compare_sides(side([10, 20, 30]), side([11, 19, 33]), ["jct.mean"], 0.03).changes
    assert (change.base, change.new, change.pairs) == (20.0, 21.0, 3)
    assert change.change.value == pytest.approx(0.05)
    assert change.outcome == "noise"  # three programs say nothing


def test_noise_about_zero_is_not_reported_as_a_change() -> None:
    shaken = JCT_S * RNG.lognormal(0, 0.2, 100)
    assert outcome(JCT_S, shaken * JCT_S.mean() / shaken.mean(), most=0.0) == "noise"


@given(seed=st.integers(0, 10_000))
def test_equal_runs_with_noise_rarely_regress(seed: int) -> None:
    """An interval of 95% excludes zero upwards in 2.5%, and a regression must also exceed 5%."""
    rng = np.random.default_rng(seed)
    base = rng.lognormal(3, 0.5, 200)
    noise = base * rng.lognormal(0, 0.05, 200)
    assert outcome(base, noise / noise.mean() * base.mean(), most=0.05) != "regression"


def test_a_change_that_depends_on_the_draw_of_arrivals_is_noise() -> None:
    """Every program is 25% slower under one seed and 10% faster under another. Judged by programs
    alone, that is a significant change of 5%."""
    slower = {1: 1.25, 2: 0.9, 3: 1.0}
    base, new = (
        Side("run", SETTINGS, pd.concat(side(JCT_S * by[s], seed=s).jobs for s in by), {})
        for by in (dict.fromkeys(slower, 1.0), slower)
    )
    (change,) = compare_sides(base, new, ["jct.mean"], 0.03).changes
    assert change.change.value == pytest.approx(0.05)
    assert change.outcome == "noise"


def test_a_job_that_failed_in_one_run_or_seed_is_left_out_of_the_pairs_and_not_identical() -> None:
    base = side([10, 20, 30, 40])
    new = Side("new", base.settings, base.jobs.iloc[:3], {})
    verdict = compare_sides(base, new, ["jct.mean"], 0.03)
    (change,) = verdict.changes
    assert (change.pairs, change.change.value, change.outcome) == (3, 0.0, "noise")
    (different,) = verdict.different
    assert mentions(different, "fcfs at 0.1 jobs/s, seed 1", "1 job", "one run only")


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        (
            "steady_state",
            True,
            r"run measured a stream of jobs and run a fixed set \(--once\)",
        ),
        ("hardware", "b200", "hardware a100-80g and b200"),
        ("profile", {"base_ps": 2, "kv_blocks": 100}, "profile: base_ps"),
        ("profile", None, "profile: base_ps and kv_blocks; run one of them again with"),
        ("workload", {**SETTINGS["workload"], "trace_sha256": "xyz"}, "workload.trace_sha256 abc"),
        ("engine", "vllm", "engine sim and vllm"),
    ],
)
def test_runs_with_different_settings_are_refused_with_what_differs(
    field: str, value: Any, message: str
) -> None:
    with pytest.raises(NotComparable, match=message):
        compare_sides(side(JCT_S), side(JCT_S, **{field: value}), ["jct.mean"], 0.03)


def test_options_that_explain_a_different_profile_are_named_first() -> None:
    base = side(JCT_S, scheduling="async", profile={"base_ps": 1, "provenance": "analytic"})
    other = {"base_ps": 2, "provenance": "operator-table"}
    new = side(JCT_S, scheduling="sync", kv_cache_dtype="fp8", profile=other)
    options = (
        "scheduling: async against sync; kv-cache-dtype: auto against fp8; "
        "step-times: analytic against operator-table; profile"
    )
    with pytest.raises(NotComparable, match=options):
        compare_sides(base, new, ["jct.mean"], 0.03)


def test_without_a_common_policy_there_is_nothing_to_compare() -> None:
    with pytest.raises(NotComparable, match="no policy in common: fcfs, and other"):
        compare_sides(side(JCT_S), side(JCT_S, variant="other"), ["jct.mean"], 0.03)


def test_an_invalid_cell_fails_the_comparison() -> None:
    verdict = compare_sides(
        side(JCT_S), side(JCT_S, invalid={"fcfs_jps0.1": "residual"}), ["jct.mean"], 0.03
    )
    assert not verdict.good
    assert headline(verdict, 0.03) == "no regression, but 1 invalid cell"


def test_markup_in_names_is_text() -> None:
    verdict = compare_sides(
        side(JCT_S, "<b>|evil|</b>"), side(1.5 * JCT_S, "<b>|evil|</b>"), ["jct.mean"], 0.03
    )
    text = markdown(verdict, 0.03)
    assert "❌" in text
    assert "<b>" not in text
    row = next(line for line in text.splitlines() if "REGRESSION" in line)
    assert row.count("|") == 9


def test_a_change_that_rounds_to_zero_has_no_minus_sign() -> None:
    (change,) = compared(side(TENS), side([9.9999] * 6)).changes
    assert row(change)[5:7] == ("+0.0%", "+0.0% to +0.0%")


def test_a_cell_that_lost_or_gained_a_steady_state_is_named_with_its_run() -> None:
    stable, lost = stream((1, TENS)), stream((1, 39))
    cell = "fcfs at 0.1 jobs/s, seed 1:"
    assert compared(stable, lost).different == (f"{cell} stable in BASE, unstable in NEW",)
    assert compared(lost, stable).different == (f"{cell} unstable in BASE, stable in NEW",)


def test_runs_of_other_jobs_have_no_job_in_common() -> None:
    new = side(JCT_S)
    new = replace(new, jobs=new.jobs.assign(job_id="other-" + new.jobs["job_id"]))
    with pytest.raises(NotComparable, match="no job in common"):
        compared(side(JCT_S), new)


def both(*sides: Side, **changed: Any) -> Side:
    jobs = pd.concat([each.jobs for each in sides])
    return Side("both", {**SETTINGS, **changed}, jobs, {}, changed.pop("capacities", None))


def capacities(**jobs_per_s: dict[int, float]) -> Side:
    return Side(
        "run",
        SETTINGS,
        side(JCT_S).jobs,
        {},
        Capacities(slo="mean<=2x", jobs_per_s=jobs_per_s),
    )


def test_rates_seeds_and_policies_of_one_run_only_are_named_and_the_others_compared() -> None:
    base = both(side(JCT_S), side(JCT_S, seed=2), side(JCT_S, "continuum"), seeds=[1, 2])
    faster = both(side(0.8 * JCT_S), side(0.8 * JCT_S, seed=3), seeds=[1, 3], jps=[0.1, 0.2])
    verdict = compare_sides(base, faster, ["jct.mean"], 0.03)
    (change,) = verdict.changes
    assert (change.variant, change.outcome) == ("fcfs", "faster")
    assert change.change.value == pytest.approx(-0.2)
    assert verdict.unpaired == ("continuum (both)", "seed 2 (both)", "seed 3 (both)")
    assert not verdict.identical


def test_rates_of_one_run_only_are_named_in_one_phrase() -> None:
    base = side(JCT_S)
    more = [base.jobs.assign(load=f"{rate} jobs/s") for rate in (0.2, 0.3, 0.4, 0.5, 0.6)]
    new = Side("new", SETTINGS, pd.concat([base.jobs, *more]), {})
    verdict = compare_sides(base, new, ["jct.mean"], 0.03)
    assert verdict.unpaired == ("fcfs at 0.2, 0.3, 0.4, 0.5 and 1 more jobs/s (new)",)


def test_capacities_are_compared_by_seed_and_a_lower_one_is_a_regression() -> None:
    """A tenth less in one seed and a ninth in the other: 1 - sqrt(0.9 * 8/9) is 10.6%."""
    base = capacities(fcfs={1: 1.0, 2: 0.9}, continuum={1: 2.0, 2: 1.0}, lmcache={1: 1.0})
    new = capacities(fcfs={1: 0.9, 2: 0.8}, continuum={1: 2.0, 2: 1.0}, lmcache={1: 0.5})
    verdict = compare_sides(base, new, ["jct.mean"], 0.03)
    found = {c.variant: c for c in verdict.changes if c.is_capacity}
    assert found["fcfs"].change.value == pytest.approx(-0.10557, abs=1e-5)
    assert (found["fcfs"].pairs, found["fcfs"].outcome) == (2, "regression")
    assert found["continuum"].outcome == "identical"
    assert found["lmcache"].outcome == "unknown"  # one seed says nothing about others
    assert headline(verdict, 0.03) == "1 regression above 3.0%: capacity of fcfs -10.6%"


def test_a_higher_capacity_is_no_regression() -> None:
    base, new = capacities(fcfs={1: 1.0, 2: 1.0}), capacities(fcfs={1: 1.2, 2: 1.21})
    (change, _) = compare_sides(base, new, ["jct.mean"], 0.03).changes
    assert (change.is_capacity, change.outcome) == (True, "faster")
    assert "| higher |" in markdown(compare_sides(base, new, ["jct.mean"], 0.03), 0.03)


def test_capacities_with_different_slos_are_refused() -> None:
    base = capacities(fcfs={1: 1.0})
    new = Side("new", SETTINGS, base.jobs, {}, Capacities(slo="p95<=3x", jobs_per_s={}))
    with pytest.raises(NotComparable, match="different SLOs, mean<=2x and p95<=3x"):
        compare_sides(base, new, ["jct.mean"], 0.03)


def test_a_baseline_file_keeps_capacities(tmp_path: Path) -> None:
    base = capacities(fcfs={1: 0.5, 2: 0.25})
    save(base, tmp_path / "base.json.gz")
    assert read_side(tmp_path / "base.json.gz").capacities == base.capacities


def test_in_steady_state_jobs_are_compared_within_their_seed() -> None:
    """Jobs of two seeds have the same numbers but are different programs. The mean is 10% longer
    in one seed and 21% in the other: the geometric mean of the ratios is 1.1537."""
    base = both(side([10, 20, 30, 40]), side([20, 40, 60], seed=2), steady_state=True)
    new = both(side([11, 22, 33, 44, 99]), side([24.2, 48.4, 72.6], seed=2), steady_state=True)
    (change,) = compare_sides(base, new, ["jct.mean"], 0.03).changes
    assert change.pairs == 7  # the fifth job of the new run is in one window only
    assert change.change.value == pytest.approx(0.15369, abs=1e-5)
    assert change.outcome == "noise"  # two seeds: t with one degree of freedom is 12.7


def test_equal_jobs_of_different_windows_are_not_identical() -> None:
    base = both(side(JCT_S[:20]), steady_state=True)
    new = both(side(JCT_S[:30]), steady_state=True)
    (change,) = compare_sides(base, new, ["jct.mean"], 0.03).changes
    assert (change.change.value, change.outcome) == (0.0, "unknown")


def stream(*cells: tuple[int, list[float] | int], name: str = "run") -> Side:
    """Return a run in steady state with a cell per seed: the JCTs of its jobs, or the number of
    programs that finished in a cell without a steady state."""
    stable = [side(cell, seed=seed).jobs for seed, cell in cells if isinstance(cell, list)]
    jobs = pd.concat(stable) if stable else side([]).jobs
    unstable = {
        Place("fcfs", "0.1 jobs/s", seed): Unstable("51 jobs in the system", cell, {"job-0": 9.0})
        for seed, cell in cells
        if isinstance(cell, int)
    }
    return Side(name, {**SETTINGS, "steady_state": True}, jobs, {}, unstable=unstable)


def compared(base: Side, new: Side) -> Verdict:
    return compare_sides(base, new, ["jct.mean"], 0.03)


TENS, DOUBLE = [10.0] * 6, [20.0] * 6


def test_a_policy_that_lost_its_steady_state_is_the_largest_regression() -> None:
    verdict = compared(stream((1, TENS), (2, TENS)), stream((1, 39), (2, 33)))
    assert row(verdict.changes[0]) == (
        "0.1 jobs/s", "fcfs", "steady state", "stable", "no steady state", "–", "–", "REGRESSION",
    )  # fmt: skip
    assert len(verdict.changes) == 1
    assert not verdict.good
    lost = "1 regression", "fcfs at 0.1 jobs/s", "stable, now no steady state"
    assert mentions(headline(verdict, 0.03), *lost)
    assert "❌" in markdown(verdict, 0.03)


def test_a_policy_that_gained_a_steady_state_is_improved() -> None:
    verdict = compared(stream((1, 39), (2, 33)), stream((1, TENS), (2, TENS)))
    assert [row(change)[3:] for change in verdict.changes] == [
        ("no steady state", "stable", "–", "–", "now stable")
    ]
    assert verdict.good


def test_one_seed_of_three_that_lost_its_steady_state_is_a_regression_listed_first() -> None:
    """The JCTs of the other two seeds vary too much to be more than noise."""
    base = stream((1, TENS), (2, TENS), (3, TENS))
    new = stream((1, 39), (2, TENS), (3, DOUBLE))
    steady, mean = compared(base, new).changes
    assert row(steady)[3:] == ("stable", "2 of 3 seeds stable", "–", "–", "REGRESSION (seed 1)")
    assert (mean.pairs, mean.outcome, mean.note) == (12, "noise", "seeds 2 and 3")
    assert mean.change.value == pytest.approx(2**0.5 - 1)


def test_a_seed_that_gained_a_steady_state_does_not_make_up_for_one_that_lost_it() -> None:
    verdict = compared(stream((1, TENS), (2, 39)), stream((1, 39), (2, TENS)))
    assert [row(change)[3:] for change in verdict.changes] == [
        ("1 of 2 seeds stable", "1 of 2 seeds stable", "–", "–", "REGRESSION (seed 1)")
    ]


def test_no_steady_state_in_both_runs_is_said_and_not_identical_if_the_cells_differ() -> None:
    base, new = stream((1, 39), (2, TENS)), stream((1, 33), (2, TENS))
    verdict = compared(base, new)
    steady, mean = verdict.changes
    assert row(steady)[3:7] == ("1 of 2 seeds stable", "1 of 2 seeds stable", "–", "–")
    assert mentions(row(steady)[7], "no steady state", "seed 1")
    assert mean.outcome == "identical"
    assert verdict.unstable == ("fcfs at 0.1 jobs/s with seed 1",)
    assert mentions(markdown(verdict, 0.03), "- no steady state", *verdict.unstable)
    assert verdict.good
    strict = replace(verdict, must_be_identical=True)
    assert not strict.good
    (different,) = strict.different
    assert mentions(different, "fcfs at 0.1 jobs/s, seed 1", "39 and 33 finished programs")
    assert mentions(headline(strict, 0.03), "1 of 2 numbers and 1 cell")
    assert mentions(markdown(strict, 0.03), "- not identical", "fcfs at 0.1 jobs/s, seed 1")


def test_equal_cells_without_a_steady_state_are_identical_and_said() -> None:
    verdict = compared(stream((1, 39)), stream((1, 39)))
    assert verdict.identical
    assert verdict.unstable == ("fcfs at 0.1 jobs/s",)


def test_a_baseline_file_keeps_cells_without_a_steady_state(tmp_path: Path) -> None:
    base = stream((1, 39), (2, TENS))
    save(base, tmp_path / "base.json.gz")
    assert read_side(tmp_path / "base.json.gz").unstable == base.unstable
    kept = read_side(tmp_path / "base.json.gz")
    assert compared(kept, kept).identical


def baseline_text(cell: str = "", capacities: str = "null") -> str:
    fields = f'"invalid": {{}}, "cells": [{cell}], "capacities": {capacities}'
    return f'{{"format": "turnstile-baseline-1", {fields}}}'


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ('{"cells": [], "invalid": {}}', "format is None, this version reads '"),
        ('{"format": "other"}', "format is 'other', this version reads 'turnstile-baseline-1'"),
        ('{"cells": [NaN]}', "not JSON (JSON is malformed: invalid character (byte 11))"),
        (
            baseline_text('{"variant": "a", "load": "1", "seed": 1, "jct_s": {"o": 1, "p.q": -2}}'),
            "cells[0].jct_s['p.q'] is -2: expected float >= 0.0",
        ),
        (
            baseline_text(capacities='{"slo": "x", "jobs_per_s": {"a": {"1": 2, "3": 0}}}'),
            "capacities.jobs_per_s['a']['3'] is 0: expected float > 0.0",
        ),
        (
            baseline_text('{"variant": "a", "load": "1", "seed": 1, "jct_s": {"p": -2, "p": 2}}'),
            "cells[0].jct_s[...]: expected float >= 0.0",
        ),
    ],
)
def test_a_file_that_is_no_baseline_is_refused_with_its_first_problem(
    tmp_path: Path, content: str, why: str
) -> None:
    (tmp_path / "base.json.gz").write_bytes(gzip.compress(content.encode()))
    with pytest.raises(InvalidInput) as raised:
        read_side(tmp_path / "base.json.gz")
    assert f"base.json.gz: not a baseline ({why}" in str(raised.value)


def test_a_run_without_jobs_is_no_baseline(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="no job finished"):
        save(side([]), tmp_path / "base.json.gz")
    assert not (tmp_path / "base.json.gz").exists()


NEVER = Bounds(kind=Kind.NEVER, sustained=None, not_sustained=0.01)
ALWAYS = Bounds(kind=Kind.ALWAYS, sustained=5.0, not_sustained=None)
OPEN = Bounds(kind=Kind.OPEN, sustained=0.2, not_sustained=None)


def searched(*found: float | Bounds, unit: str = "jobs/s") -> Side:
    """Return a run in which these are the capacities of fcfs with seeds 1, 2, ..."""
    seeds = dict(enumerate(found, start=1))
    numbers = {seed: each for seed, each in seeds.items() if isinstance(each, float)}
    bounds = {seed: each for seed, each in seeds.items() if isinstance(each, Bounds)}
    own = Capacities(
        slo="mean<=2x", jobs_per_s={"fcfs": numbers}, bounds={"fcfs": bounds}, unit=unit
    )
    return Side("run", SETTINGS, side(JCT_S).jobs, {}, own)


@pytest.mark.parametrize(
    ("base", "new", "cells"),
    [
        ((0.2,), (NEVER,), ("0.2 jobs/s", "none sustained", "–", "–", "REGRESSION")),
        ((NEVER,), (0.2,), ("none sustained", "0.2 jobs/s", "–", "–", "higher")),
        (
            (0.2, 0.3, 0.3),
            (NEVER, 0.3, 0.3),
            ("0.2 jobs/s", "none sustained", "–", "–", "REGRESSION (seed 1)"),
        ),
        # At least 5 jobs/s before, now 4.
        ((ALWAYS,), (4.0,), ("above 5 jobs/s", "4 jobs/s", "-20.0%", "–", "REGRESSION")),
        ((4.0,), (ALWAYS,), ("4 jobs/s", "above 5 jobs/s", "–", "–", "higher")),
        ((ALWAYS,), (6.0,), ("above 5 jobs/s", "6 jobs/s", "–", "–", "cannot be compared")),
        ((0.3,), (OPEN,), ("0.3 jobs/s", "search not finished", "–", "–", "cannot be compared")),
        ((0.1,), (OPEN,), ("0.1 jobs/s", "search not finished", "–", "–", "higher")),
        ((NEVER,), (NEVER,), ("none sustained", "none sustained", "–", "–", "identical")),
    ],
)
def test_a_capacity_without_a_number_is_compared_by_its_bounds(
    base: tuple[float | Bounds, ...], new: tuple[float | Bounds, ...], cells: tuple[str, ...]
) -> None:
    (found,) = (
        change
        for change in compared(searched(*base), searched(*new)).changes
        if change.metric == SUSTAINED
    )
    assert row(found)[3:] == cells


def test_capacities_in_agents_are_not_compared_with_those_in_jobs_per_second() -> None:
    verdict = compared(searched(0.2, 0.3), searched(4.0, 5.0, unit="agents"))
    assert not [change for change in verdict.changes if change.is_capacity]


def test_capacities_in_agents_are_compared_in_agents() -> None:
    base, new = searched(20.0, ALWAYS, unit="agents"), searched(10.0, 4.0, unit="agents")
    found = [change for change in compared(base, new).changes if change.is_capacity]
    numbers, bounds = sorted(found, key=lambda change: change.metric)
    assert row(numbers)[3:5] == ("20 agents", "10 agents")
    assert row(bounds)[3:5] == ("above 5 agents", "4 agents")


def test_a_capacity_of_none_comes_before_a_lower_capacity() -> None:
    base, new = searched(0.2, 0.3, 0.3), searched(NEVER, 0.2, 0.2)
    none, lower, _ = compared(base, new).changes
    assert (none.metric, none.outcome) == (SUSTAINED, "regression")
    assert (lower.pairs, lower.outcome, lower.note) == (2, "regression", "seeds 2 and 3")
    said = headline(compared(base, new), 0.03)
    assert mentions(said, "largest", "fcfs", "0.2 jobs/s, now none sustained")


def test_a_baseline_file_keeps_capacities_without_a_number(tmp_path: Path) -> None:
    save(searched(NEVER, 0.2, ALWAYS), tmp_path / "base.json.gz")
    kept = read_side(tmp_path / "base.json.gz").capacities
    assert kept == searched(NEVER, 0.2, ALWAYS).capacities


def test_the_page_names_what_lost_its_steady_state(tmp_path: Path) -> None:
    new = stream((1, 39), (2, DOUBLE), (3, DOUBLE))
    verdict = compared(stream((1, TENS), (2, TENS), (3, TENS)), new)
    draw(verdict, "base", "new", 0.03, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert mentions(page, "fcfs at 0.1 jobs/s (stable, now 2 of 3 seeds stable)")
    assert "<td>REGRESSION (seed 1)</td>" in page
    draw(compared(stream((1, TENS)), stream((1, 39))), "base", "new", 0.03, tmp_path / "page.html")
    assert "<td>no steady state</td>" in (tmp_path / "page.html").read_text()


def test_settings_that_differ_are_compared_if_the_user_names_them() -> None:
    base = side(JCT_S)
    new = side(JCT_S, profile={"base_ps": 1, "kv_blocks": 90}, limits={"max_num_seqs": 1})
    with pytest.raises(
        NotComparable,
        match=r"the same with --allow-different profile\.kv_blocks,limits\.max_num_seqs\. ",
    ):  # fmt: skip
        compare_sides(base, new, ["jct.mean"], 0.03)
    with pytest.raises(NotComparable, match="settings: limits: max_num_seqs; run one"):
        compare_sides(base, new, ["jct.mean"], 0.03, allowed=["profile"])
    verdict = compare_sides(base, new, ["jct.mean"], 0.03, allowed=["profile.kv_blocks", "limits"])
    assert verdict.allowed == ("profile: kv_blocks", "limits: max_num_seqs")
    assert "- different settings: profile: kv&#95;blocks\n" in markdown(verdict, 0.03)


def test_a_name_that_is_no_setting_is_refused() -> None:
    with pytest.raises(InvalidInput, match="--allow-different kv: unknown; use engine, hardware,"):
        parse_allowed("limits,kv")


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("kv-blocks", "profile.kv_blocks"),
        ("profil.kv_blocks", "profile.kv_blocks"),
        ("step_tokens", "limits.step_tokens"),
        ("limit", "limits"),
    ],
)
def test_a_misspelt_setting_is_answered_with_the_nearest(name: str, meant: str) -> None:
    with pytest.raises(InvalidInput, match=f"{name}: unknown; did you mean {meant}[?]"):
        parse_allowed(name)
