"""Recipes that are fitted to a set: their model, their files, and their distance to the set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from servers.basics.errors import InvalidTrace
from tests.growth import LINEAR, growth
from traces import Fork, Program, Provenance, SharedPrefix, Turn, read_traces, synthesize
from traces.check import check
from traces.synthesis.figures import Distance, distances, figure, figures
from traces.synthesis.fit import fit
from traces.synthesis.fit_series import case_of
from traces.synthesis.fitted import FittedRecipe, Origin
from traces.synthesis.known import FOLDER, fitted_recipe, shipped
from traces.synthesis.quantiles import AT, fit_quantiles
from traces.synthesis.recipe_files import read_recipe, write_recipe

ORIGIN = Origin(
    set="a set", licence="MIT", fitted="2026-11-23", programs=2, sub_agents=0, turns=5, gaps={},
    trace_sha256="0" * 64,
)  # fmt: skip


def program(
    id: str, turns: Sequence[tuple[int, int, int, str, float]], fork: Fork | None = None
) -> Program:
    """Return a program of turns (prompt, kept, output, tool, gap)."""
    made = [
        Turn(prompt, output, kept, (tool,) if tool else (), tool_gap_s=gap_s)
        for prompt, kept, output, tool, gap_s in turns
    ]
    return Program(id, made, fork=fork)


TWO = (
    program("a", [(100, 0, 10, "ls", 1.0), (150, 110, 20, "cat", 2.0), (200, 170, 5, "", 0.0)]),
    program("b", [(300, 0, 10, "ls", 3.0), (330, 300, 5, "", 0.0)]),
)


def fitted(programs: Sequence[Program] = TWO) -> FittedRecipe:
    return fit(programs, "two", "two programs", ORIGIN)


def test_a_table_keeps_the_mean_and_the_order_of_a_sample_with_a_heavy_tail() -> None:
    sample = [0.0] * 600 + [1.0] * 390 + [100.0] * 10
    table = fit_quantiles(sample)
    assert np.trapezoid(table, AT) == pytest.approx(np.mean(sample), rel=0.05)  # 1.39
    assert list(table) == sorted(table)
    assert table[AT.index(0.5)] == 0
    assert table[AT.index(0.8)] == pytest.approx(1, abs=0.2)


def test_a_small_sample_is_interpolated() -> None:
    # The midpoints of three equal parts are at 1/6, 1/2 and 5/6.
    table = fit_quantiles([10, 40, 70])
    assert table[AT.index(0.5)] == 40
    assert table[AT.index(0.4)] == pytest.approx(10 + 30 * (0.4 - 1 / 6) / (1 / 3))
    assert table[0] == 10
    assert table[-1] == 70


def test_a_next_prompt_repeats_all_of_the_context_or_a_part_of_it() -> None:
    before = Turn(100, 20)
    cases = [case_of(before, Turn(200, 5, kept)) for kept in (120, 100, 70, 30)]
    assert cases == ["appended", "answer_dropped", "edited", "rewritten"]


def test_a_fit_counts_tools_what_follows_them_and_what_prompts_repeat() -> None:
    kind = fitted().jobs["plain"]
    assert {name: (tool.first, tool.next) for name, tool in kind.tools.items()} == {
        "ls": (2, {"cat": 1}),
        "cat": (0, {}),
    }
    assert kind.history.first.model_dump() == {
        "appended": 1, "answer_dropped": 1, "edited": 0, "rewritten": 0,
    }  # fmt: skip
    assert kind.history.tool.appended == 1
    assert (kind.turns[0], kind.turns[-1]) == (2, 3)
    assert (kind.tools["ls"].gap_s[0], kind.tools["ls"].gap_s[-1]) == (1, 3)
    # Only appended prompts count here: 150 - 110 after ls, 200 - 170 after cat.
    assert set(kind.tools["ls"].new_tokens) == {40}
    assert set(kind.tools["cat"].new_tokens) == {30}
    assert kind.history.answer_dropped_new_tokens == (30.0,) * len(AT)  # 330 - 300


def test_sub_agents_make_a_kind_of_their_own() -> None:
    agents = [
        replace(program(f"a/{n}", [(50, 0, 5, "ls", 1.0), (60, 55, 5, "", 0.0)]),
                fork=Fork("a", 1, 0.5, 2 if n else None), prefix=SharedPrefix("a:x", 40))
        for n in range(2)
    ]  # fmt: skip
    recipe = fitted((*TWO, *agents))
    assert {name: kind.programs for name, kind in recipe.jobs.items()} == {
        "plain": 1,
        "with-sub-agents": 1,
    }
    forks = recipe.jobs["with-sub-agents"].forks
    assert forks is not None
    assert (forks.groups, forks.group_sizes) == ((1,), (2,))
    assert forks.joined == 0.5
    assert forks.position[0] == 1  # after the last turn but one
    assert forks.shared_prefix_tokens == 40
    assert forks.sub_agent.programs == 2


def test_a_prefix_of_several_jobs_is_shared_by_as_many_drawn_ones(tmp_path: Path) -> None:
    some = [
        replace(TWO[n % 2], id=str(n), prefix=SharedPrefix("system", 60) if n < 3 else None)
        for n in range(4)
    ]
    path = tmp_path / "some.toml"
    write_recipe(path, fitted(some))
    assert [(p.tokens, p.jobs) for p in read_recipe(path).shared_prefixes] == [(60, 3)]
    drawn = synthesize(str(path), 400, 1)
    prefixes = [p.prefix for p in drawn if p.prefix]
    assert len({(prefix.id, prefix.tokens) for prefix in prefixes}) == 1
    assert len(prefixes) == pytest.approx(300, abs=40)  # 4.6 standard deviations


@pytest.mark.parametrize("jobs", [1, 2, 7, 150])
@pytest.mark.parametrize("name", shipped())
def test_any_number_of_jobs_is_valid_and_synthesised(name: str, jobs: int) -> None:
    drawn = synthesize(name, jobs, 3)
    check(drawn)
    assert sum(p.fork is None for p in drawn) == jobs
    gaps = {turn.gap_provenance for p in drawn for turn in p.turns}
    assert gaps == {Provenance.SYNTHESISED}
    assert {p.fork.delay_provenance for p in drawn if p.fork} <= {Provenance.SYNTHESISED}
    assert synthesize(name, jobs, 3) == drawn
    assert synthesize(name, jobs, 4) != drawn


def test_claude_code_has_sub_agents_and_rewritten_histories() -> None:
    drawn = synthesize("claude-code", 300, 1)
    agents = [p for p in drawn if p.fork]
    assert 0.03 < len({p.fork.program_id for p in agents if p.fork}) / 300 < 0.12  # 3 of 43
    assert any(p.prefix and p.prefix.tokens > 5000 for p in agents)
    steps = [
        (before, after) for p in drawn for before, after in zip(p.turns, p.turns[1:], strict=False)
    ]
    rewritten = sum(case_of(*step) == "rewritten" for step in steps)
    assert rewritten / len(steps) == pytest.approx(28 / 2026, rel=0.4)


@pytest.fixture(scope="module", params=shipped())
def distance(request: pytest.FixtureRequest) -> dict[str, Distance]:
    drawn = synthesize(request.param, 1500, 5)
    real = fitted_recipe(request.param).figures
    return {found.quantity: found for found in distances(real, drawn)}


LIMITS = {
    "turns": (0.05, 0.03),
    "first prompt": (0.08, 0.05),
    "new tokens per later turn": (0.06, 0.08),
    "output tokens": (0.03, 0.06),
    "gap after a tool": (0.05, 0.06),
    "final context": (0.15, 0.06),
    "new tokens, sum": (0.16, 0.08),
    "contexts, sum": (0.15, 0.08),
    "contexts, sum over 11 turns": (0.15, 0.08),
    "kept share of prompts": (0.17, 0.01),
    "gaps, sum": (0.15, 0.15),
}
"""The largest KS distance to the set, and the largest relative error of the mean. With 43 programs,
two samples of the same distribution differ by up to 0.21 in 95% of the cases."""


@pytest.mark.parametrize("quantity", LIMITS)
def test_drawn_programs_are_distributed_as_the_set(
    distance: dict[str, Distance], quantity: str
) -> None:
    ks, error = LIMITS[quantity]
    found = distance[quantity]
    assert found.ks <= ks
    assert found.relative_error("mean") == pytest.approx(0, abs=error)


@pytest.mark.parametrize("statistic", ["mean", "p95", "p99"])
def test_gaps_after_each_tool_are_those_of_the_set(
    distance: dict[str, Distance], statistic: str
) -> None:
    for quantity, found in distance.items():
        if quantity.startswith("gap after") and found.real.count >= 300:
            limit = 0.12 if statistic == "mean" else 0.35
            assert found.relative_error(statistic) == pytest.approx(0, abs=limit), quantity


def test_the_time_to_draw_programs_is_linear_in_their_number() -> None:
    assert growth(lambda programs: synthesize("claude-code", programs, 2), 60) < LINEAR


def test_any_readable_set_can_be_fitted(tmp_path: Path) -> None:
    programs = read_traces("swe-bench").programs[:40]
    path = tmp_path / "again.toml"
    write_recipe(path, fit(programs, "again", "the pack again", ORIGIN))
    drawn = synthesize(str(path), 400, 0)
    check(drawn)
    for found in distances(figures(programs), drawn):
        if found.quantity in ("turns", "first prompt", "output tokens", "final context"):
            assert found.relative_error("mean") == pytest.approx(0, abs=0.08), found.quantity


def test_the_distance_of_a_sample_to_itself_is_at_most_the_part_of_one_value() -> None:
    programs = read_traces("swe-bench").programs
    for found in distances(figures(programs), programs):
        assert found.ks <= 0.011, found.quantity


def test_the_distance_is_the_largest_difference_of_the_distribution_functions() -> None:
    real = figure([float(n) for n in range(1, 101)])
    fast = program("a", [(1, 0, 1, "x", 0.0)] * 2)
    # All programs have two turns, of the set's programs 2%. P99 of the set is 99.01.
    found = next(distances({"turns": real}, [fast] * 10))
    assert found.ks == pytest.approx(0.95, abs=0.01)  # at the 5% quantile, 5.95, all are below
    assert found.relative_error("mean") == pytest.approx(2 / 50.5 - 1)


def test_a_recipe_is_read_as_it_was_written(tmp_path: Path) -> None:
    recipe = fitted()
    write_recipe(tmp_path / "r.toml", recipe)
    assert read_recipe(tmp_path / "r.toml") == recipe


@pytest.mark.parametrize("name", shipped())
def test_shipped_recipes_name_their_set_and_are_small(name: str) -> None:
    recipe = fitted_recipe(name)
    assert recipe.name == name
    assert recipe.origin.licence in ("MIT", "Apache-2.0")
    assert recipe.origin.programs >= 43
    assert (FOLDER / f"{name}.toml").stat().st_size < 30_000


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('name = "two"', 'name = "two"\nextra = 1', "extra"),
        ("decay = 0", "decay = 1", "decay"),
        ("turns = [2,", "turns = [9,", "turns"),
        ("[[1, 0, 0]", "[[1, 2, 0]", "step_correlation"),
        ("next = {cat = 1}", "next = {dog = 1}", "dog"),
        ("quantiles = [0, 0.05", "quantiles = [0, 0.06", "quantiles"),
        ("format = ", "format", "Expected"),
    ],
)
def test_an_invalid_recipe_is_refused_with_the_field(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    path = tmp_path / "two.toml"
    write_recipe(path, fitted())
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(InvalidTrace, match=message) as error:
        synthesize(str(path), 1, 0)
    assert str(error.value).startswith(str(path))


def test_a_missing_recipe_is_refused() -> None:
    with pytest.raises(InvalidTrace, match="cannot be read"):
        synthesize("missing.toml", 1, 0)


def test_sub_agents_of_one_turn_can_be_fitted(tmp_path: Path) -> None:
    agent = program("a/x", [(50, 0, 5, "", 0.0)], Fork("a", 0, 0.0, 1))
    write_recipe(tmp_path / "one.toml", fitted((*TWO, agent)))
    drawn = synthesize(str(tmp_path / "one.toml"), 50, 0)
    check(drawn)
    assert {len(p.turns) for p in drawn if p.fork} == {1}


def test_a_set_beyond_the_limits_of_a_recipe_is_refused_with_the_figure() -> None:
    endless = program("a", [(n, n - 1, 1, "ls", 0.0) for n in range(1, 12_001)])
    endless = replace(endless, turns=(replace(endless.turns[0], kept_tokens=0), *endless.turns[1:]))
    with pytest.raises(InvalidTrace, match=r"turns must be 1 to 10,000"):
        fitted([endless])


def test_a_set_without_a_second_turn_cannot_be_fitted() -> None:
    with pytest.raises(InvalidTrace, match="no program has two turns"):
        fitted([program("a", [(10, 0, 1, "", 0.0)])])


@pytest.mark.parametrize(
    "options", [{"turn_scale": 2}, {"tokens": "sum"}, {"scale": 2.0}, {"output_tokens": (1, 2)}]
)
def test_options_of_published_statistics_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(InvalidTrace, match="mini-swe-agent is fitted to real programs"):
        synthesize("mini-swe-agent", 1, 0, **options)  # type: ignore[arg-type]
