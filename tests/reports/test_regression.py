"""`bench compare`: which changes are regressions or noise, and what cannot be compared."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reports.compare.baseline import JOBS, Side
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
    assert (change.base_s, change.new_s, change.programs) == (20.0, 21.0, 3)
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
    assert (change.programs, change.outcome) == (3, "identical")


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("jps", [0.2], r"jps \[0.1\] and \[0.2\]"),
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
        NotComparable, match="no job finished in both under the same policy and load"
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
