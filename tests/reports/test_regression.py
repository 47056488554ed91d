"""`bench compare`: which changes are regressions or noise, and what cannot be compared."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reports.compare.baseline import JOBS, Capacities, Side, read_side, save
from reports.compare.regression import Outcome, Verdict, compare_sides
from reports.compare.verdict_files import headline, junit, markdown
from servers.errors import NotComparable

SETTINGS: dict[str, Any] = {
    "engine": "sim",
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


def parsed(verdict: Verdict) -> ElementTree.Element:
    return ElementTree.fromstring(junit(verdict))  # noqa: S314


def test_a_planted_regression_of_3_percent_is_found_and_an_unchanged_run_passes() -> None:
    assert outcome(JCT_S, 1.03 * JCT_S, most=0.02) == "regression"
    assert outcome(JCT_S, JCT_S) == "identical"
    verdict = compare_sides(side(JCT_S), side(1.03 * JCT_S), ["jct.mean", "jct.p95"], 0.02)
    assert not verdict.good
    assert headline(verdict, 0.02) == (
        "2 regressions above 2.0%; the largest: fcfs at 0.1 jobs/s, jct.mean +3.0%"
    )


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


@settings(max_examples=60, deadline=None)
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


def test_a_job_that_failed_in_one_run_or_seed_is_left_out_of_the_pairs() -> None:
    base = side([10, 20, 30, 40])
    new = Side("new", base.settings, base.jobs.iloc[:3], {})
    (change,) = compare_sides(base, new, ["jct.mean"], 0.03).changes
    assert (change.pairs, change.outcome) == (3, "identical")


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        (
            "steady_state",
            True,
            r"run measured a steady state and run a fixed set of jobs \(--once\)",
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
    with pytest.raises(
        NotComparable,
        match="different settings: scheduling: async against sync; kv-cache-dtype: auto against "
        "fp8; step-times: analytic against operator-table; profile: base_ps and provenance;",
    ):
        compare_sides(base, new, ["jct.mean"], 0.03)


def test_without_a_common_policy_there_is_nothing_to_compare() -> None:
    with pytest.raises(
        NotComparable, match="no job finished in both under the same policy, load and seed"
    ):
        compare_sides(side(JCT_S), side(JCT_S, variant="other"), ["jct.mean"], 0.03)


def test_an_invalid_cell_fails_the_comparison() -> None:
    verdict = compare_sides(
        side(JCT_S), side(JCT_S, invalid={"fcfs_jps0.1": "residual"}), ["jct.mean"], 0.03
    )
    assert not verdict.good
    assert headline(verdict, 0.03) == "no regression, but 1 invalid cell"
    assert parsed(verdict).get("failures") == "1"


def test_markdown_and_junit_agree_and_markup_in_names_is_text() -> None:
    verdict = compare_sides(
        side(JCT_S, "<b>|evil|</b>"), side(1.5 * JCT_S, "<b>|evil|</b>"), ["jct.mean"], 0.03
    )
    text = markdown(verdict, 0.03)
    assert "❌" in text
    assert "<b>" not in text
    row = next(line for line in text.splitlines() if "REGRESSION" in line)
    assert row.count("|") == 9
    suite = parsed(verdict)
    assert (suite.get("tests"), suite.get("failures")) == ("1", "1")
    case = suite[0]
    assert case.get("name") == "<b>|evil|</b> at 0.1 jobs/s"
    assert "+50.0%" in str(case[0].get("message"))


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
    assert "the largest: capacity of fcfs -10.6%" in headline(verdict, 0.03)


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
