from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from msgspec import structs

from reports.answer.caveats import caveats_of
from reports.answer.headline import Contender, Ranking
from reports.answer.provenance import basis
from reports.answer.verdict import Answer, answer
from reports.metrics.cells import collect
from reports.run_folder.read import load_run
from reports.statistics.bootstrap import Estimate
from reports.statistics.points import points
from tests.reports.make_run import turn, workload, write_cell, write_sweep
from tests.sentences import mentions


def answer_of(run: Path) -> Answer:
    loaded = load_run(run)
    results = collect(loaded)
    return answer(points(results, loaded.sweep.baseline), results, loaded.sweep)


def idle(jct_s: float, spread_s: Sequence[float] = (0.0,) * 20) -> list[dict[str, Any]]:
    """Return 20 jobs, 10 s apart, that never wait."""
    return [
        turn(f"p{k:02d}", 0, 10.0 * k, decode_s=jct_s + extra_s)
        for k, extra_s in enumerate(spread_s)
    ]


def swamped(growth_s: float) -> list[dict[str, Any]]:
    """Return 20 jobs, 10 s apart, each of which waits longer than the one before."""
    return [turn(f"p{k:02d}", 0, 10.0 * k, queue_s=growth_s * k) for k in range(20)]


def run_of(run: Path, **variants: list[dict[str, Any]]) -> Path:
    write_sweep(run, list(variants), workload=workload(idle(1.0)))
    for name, turns in variants.items():
        write_cell(run, name, turns)
    return run


def test_the_answer_opens_with_the_winner_and_its_speedup(tmp_path: Path) -> None:
    found = answer_of(run_of(tmp_path, fcfs=idle(19.0), continuum=idle(10.0), autellix=idle(20.0)))
    speedup = "10.0 s at 0.5 jobs/s", "1.9x as fast as fcfs", "95% CI 1.9–1.9"
    assert mentions(found.headline, "continuum", *speedup)


def test_a_reference_never_wins_but_gives_the_possible_gain(tmp_path: Path) -> None:
    # The winner saves 20 - 12.8 = 7.2 s of the 20 - 8 = 12 s that the reference saves.
    found = answer_of(
        run_of(tmp_path, fcfs=idle(20.0), continuum=idle(12.8), clairvoyant=idle(8.0))
    )
    assert found.winner is not None
    assert found.winner.variant == "continuum"
    assert mentions(found.findings, "clairvoyant", "2.5x", "continuum", "60%")


def test_a_reference_without_offload_is_compared_with_policies_without_offload(
    tmp_path: Path,
) -> None:
    run = write_sweep(tmp_path, ["fcfs", "continuum", "continuum+", "clairvoyant"])
    for name, jct_s in [("fcfs", 20.0), ("continuum", 14), ("continuum+", 5), ("clairvoyant", 10)]:
        write_cell(run, name, idle(jct_s))
    found = answer_of(run)
    assert mentions(found.headline, "continuum+", "4.0x as fast")
    assert found.possible is None
    assert mentions(found.findings, "clairvoyant", "2.0x, without offload", "continuum", "60%")


def test_that_a_policy_beats_a_reference_is_reported(tmp_path: Path) -> None:
    found = answer_of(
        run_of(tmp_path, fcfs=idle(20.0), continuum=idle(8.0), clairvoyant=idle(10.0))
    )
    assert any("less than continuum." in f for f in found.findings)


def test_unlimited_kv_is_not_compared_with_schedulers_of_the_machine(tmp_path: Path) -> None:
    times = {"fcfs": idle(20.0), "continuum": idle(12.8), "clairvoyant": idle(8.0)}
    without = answer_of(run_of(tmp_path / "without", **times))
    run = write_sweep(tmp_path / "with", [*times, "unlimited-kv"], workload=workload(idle(1.0)))
    for name, turns in times.items():
        write_cell(run, name, turns)
    write_cell(run, "unlimited-kv", idle(5.0), reference="unlimited KV")
    assert answer_of(run).headline == without.headline
    assert answer_of(run).findings == without.findings
    found = {p.variant: p for p in points(collect(load_run(run)), "fcfs")}
    assert found["unlimited-kv"].against is None


def test_variants_without_a_significant_difference_are_not_ranked(tmp_path: Path) -> None:
    # The same times for other programs, so the means are equal.
    up = [float(k) for k in range(20)]
    run = run_of(tmp_path, fcfs=idle(20.0, up), continuum=idle(20.0, up[::-1]))
    assert mentions(answer_of(run).headline, "2 schedulers are not distinguished with 1 seed")


def test_equal_results_have_the_wording_of_almost_equal_ones(tmp_path: Path) -> None:
    times = {"fcfs": idle(40.0), "continuum": idle(20.0), "las": idle(20.0)}
    headline = answer_of(run_of(tmp_path, **times)).headline
    assert mentions(headline, "Two schedulers", "2%", "continuum and las", "about 20.0 s")


def test_a_rival_within_the_interval_is_named(tmp_path: Path) -> None:
    up = [float(k) for k in range(20)]
    run = run_of(
        tmp_path, fcfs=idle(60.0, up), continuum=idle(20.0, up), infercept=idle(20.1, up[::-1])
    )
    found = answer_of(run)
    tie = "Two schedulers", "1 seed", "continuum and infercept", "about 29.5 s at 0.5 jobs/s"
    assert mentions(found.headline, *tie, "2.4x as fast as fcfs")


def test_a_gain_that_is_not_certain_is_in_the_headline_with_its_interval() -> None:
    ranking = Ranking(
        [
            Contender("continuum", 10.0, "10.0 s", Estimate(1.5, 0.9, 2.4)),
            Contender("fcfs", 15.0, "15.0 s", None),
        ],
        everyone=False,
        baseline="fcfs",
        within=0.02,
        tie="are not distinguished with 3 seeds",
        noun="scheduler",
        place="at 0.5 jobs/s",
        has="has a mean JCT of",
        is_better="is faster",
    )
    assert ranking.sentence() == (
        "No scheduler is faster than fcfs, which has a mean JCT of 15.0 s at 0.5 jobs/s; it and "
        "continuum are not distinguished with 3 seeds (continuum: 10.0 s, 1.5x, 95% CI 0.90–2.40)."
    )


def test_of_many_that_tie_the_headline_names_the_first_and_the_last(tmp_path: Path) -> None:
    # The offsets of 20 jobs are 0 to 19 s, in another order for each variant: means 9.5 s higher.
    up = [float(k) for k in range(20)]
    names = ["continuum", "infercept", "autellix", "las", "turnstile"]
    run = run_of(
        tmp_path,
        fcfs=idle(60.0, up),
        **{name: idle(20 + k / 2, up[4 * k :] + up[: 4 * k]) for k, name in enumerate(names)},
    )
    found = answer_of(run)
    ends = (
        "continuum",
        "29.5 s at 0.5 jobs/s",
        "2.4x as fast as fcfs",
        "turnstile with 31.5 s (2.2x)",
    )
    assert mentions(found.headline, "Five schedulers", "1 seed", *ends)


def test_saturation_at_some_rates_only_is_not_said_of_all_higher_ones(tmp_path: Path) -> None:
    run = write_sweep(tmp_path, ["fcfs", "continuum"], jps=[0.1, 0.2, 0.3])
    for jps in (0.1, 0.2, 0.3):
        write_cell(run, "fcfs", swamped(9.0) if jps != 0.2 else idle(10.0), jps=jps)
        write_cell(run, "continuum", idle(10.0), jps=jps)
    (past,) = [text for text in answer_of(run).caveats if text.startswith("Past saturation")]
    assert past.endswith("fcfs at 0.1 jobs/s and 0.3 jobs/s.")


def test_a_gain_of_less_than_two_percent_is_none(tmp_path: Path) -> None:
    run = run_of(tmp_path, fcfs=idle(20.0), continuum=idle(19.8), las=idle(40.0))
    headline = answer_of(run).headline
    assert mentions(headline, "No scheduler", "than fcfs", "20.0 s", "it and continuum", "2%")


def test_a_saturated_variant_does_not_tie_with_one_that_is_not(tmp_path: Path) -> None:
    # Both finish jobs in 20 s on average: autellix by waits of 0, 2, … 38 s and 1 s of decode.
    run = run_of(tmp_path, fcfs=idle(60.0), continuum=idle(20.0, [0.1] * 20), autellix=swamped(2.0))
    found = answer_of(run)
    assert found.winners == ("continuum",)


def test_if_all_tie_the_headline_gives_their_jct_once(tmp_path: Path) -> None:
    up = [float(k) for k in range(20)]
    shuffled = [*up[10:], *up[:10]]
    run = run_of(
        tmp_path, fcfs=idle(19.9, up), continuum=idle(20.0, up[::-1]), autellix=idle(20.0, shuffled)
    )
    assert mentions(answer_of(run).headline, "3 schedulers", "1 seed", "about 29.4 s at 0.5 jobs/s")


def test_the_headline_is_read_at_the_highest_rate_that_the_winner_sustains(tmp_path: Path) -> None:
    run = write_sweep(tmp_path, ["fcfs", "continuum"], jps=[0.1, 0.2, 0.3])
    cells = {
        0.1: (idle(10.0), idle(9.9)),
        0.2: (swamped(9.0), idle(10.0)),
        0.3: (swamped(20.0),) * 2,
    }
    for jps, (fcfs, continuum) in cells.items():
        write_cell(run, "fcfs", fcfs, jps=jps)
        write_cell(run, "continuum", continuum, jps=jps)
    found = answer_of(run)
    assert found.load == "0.2 jobs/s"
    assert mentions(found.findings, "0.1 jobs/s", "little difference", "2%", "fcfs")
    assert found.caveats[0].endswith("fcfs from 0.2 jobs/s; continuum from 0.3 jobs/s.")


def test_a_saturated_variant_does_not_win_while_another_keeps_up(tmp_path: Path) -> None:
    # The jobs of autellix wait 0, 2, … 38 s and decode for one second: 20 s on average, but of
    # twelve jobs that arrive only ten get served.
    run = run_of(tmp_path, fcfs=idle(50.0), continuum=idle(25.0), autellix=swamped(2.0))
    found = answer_of(run)
    assert found.winner is not None
    assert (found.winner.variant, found.winner.saturated) == ("continuum", False)
    behind = "It is shorter with autellix (20.0 s), but there jobs arrive faster than they finish."
    assert found.headline.endswith(behind)


def test_no_variant_is_called_the_fastest_without_the_saturated_ones_that_are_faster(
    tmp_path: Path,
) -> None:
    run = run_of(tmp_path, fcfs=idle(25.0), continuum=idle(50.0), autellix=swamped(2.0))
    keeps_up = "No scheduler that finishes jobs as fast as they arrive is faster than fcfs"
    assert mentions(answer_of(run).headline, keeps_up, "shorter with autellix (20.0 s)")


def test_a_variant_is_saturated_if_it_is_in_one_seed(tmp_path: Path) -> None:
    run = write_sweep(tmp_path, ["fcfs", "continuum"], seeds=[1, 2, 3])
    for seed in (1, 2, 3):
        write_cell(run, "fcfs", idle(10.0), seed=seed)
        write_cell(run, "continuum", swamped(9.0) if seed == 2 else idle(9.0), seed=seed)
    loaded = load_run(run)
    pooled = points(collect(loaded), "fcfs")
    assert {point.variant: point.saturated for point in pooled} == {
        "fcfs": False,
        "continuum": True,
    }


def test_saturation_everywhere_is_the_first_finding(tmp_path: Path) -> None:
    found = answer_of(run_of(tmp_path, fcfs=swamped(30.0), continuum=swamped(20.0)))
    assert mentions(found.findings[0], "Every variant", "saturation", "0.5 jobs/s")
    assert found.caveats[0].endswith("every variant at 0.5 jobs/s.")


def test_a_run_of_one_variant_has_a_headline_without_a_comparison(tmp_path: Path) -> None:
    headline = answer_of(run_of(tmp_path, fcfs=idle(10.0))).headline
    assert mentions(headline, "fcfs", "10.0 s at 0.5 jobs/s", "no variant")


def test_if_the_baseline_wins_the_headline_says_that_none_is_faster(tmp_path: Path) -> None:
    headline = answer_of(run_of(tmp_path, fcfs=idle(10.0), continuum=idle(12.0))).headline
    assert mentions(headline, "No scheduler", "faster than fcfs", "10.0 s at 0.5 jobs/s")


def test_a_baseline_without_a_result_is_named_in_the_headline(tmp_path: Path) -> None:
    run = write_sweep(tmp_path, ["fcfs", "continuum", "autellix"])
    write_cell(run, "continuum", idle(5.0))
    write_cell(run, "autellix", idle(6.0))
    found = answer_of(run)
    assert mentions(found.headline, "fcfs has no result")
    assert mentions(found.caveats, "1 cell of 3", "fcfs_jps0.5_seed1")


def test_a_run_without_results_has_no_answer_yet(tmp_path: Path) -> None:
    found = answer_of(write_sweep(tmp_path, ["fcfs"]))
    assert "no answer yet" in found.headline
    assert found.winners == ()


def test_a_closed_loop_has_no_rate(tmp_path: Path) -> None:
    run = write_sweep(tmp_path, ["fcfs", "continuum"], arrivals="closed:8", jps=[None])  # type: ignore[list-item]
    for name, jct_s in (("fcfs", 10.0), ("continuum", 5.0)):
        write_cell(run, name, idle(jct_s), jps=None, arrivals="closed:8")
    assert mentions(answer_of(run).headline, "continuum", "with arrivals closed:8", "2.0x as fast")


def test_failed_gates_are_the_first_caveat_with_their_reason(tmp_path: Path) -> None:
    broken = idle(10.0)
    broken[3]["error"] = "connection reset"
    first, *others = answer_of(run_of(tmp_path, fcfs=broken, continuum=idle(5.0))).caveats
    assert "1 cell of 2 failed a validity gate" in first
    assert "connection reset" in first
    assert not [caveat for caveat in others if "validity gate" in caveat]


def test_the_last_sentence_names_what_was_measured_and_what_was_not(tmp_path: Path) -> None:
    shape = workload(idle(1.0)) | {"gap_provenance": {"inferred": 25, "measured": 75}}
    run = write_sweep(tmp_path, ["fcfs"], workload=shape)
    write_cell(run, "fcfs", idle(1.0))
    (*_, basis) = answer_of(run).sentences
    machine = "virtual time", "llama-3.1-8b", "a100-80g", "analytic"
    trace = "20 turns of swe-bench", "measured 75%", "inferred 25%"
    assert mentions(basis, *machine, *trace, "not a capacity")


def test_the_last_sentence_names_inferred_token_counts(tmp_path: Path) -> None:
    shape = workload(idle(1.0)) | {"programs": 40, "inferred_token_programs": 30}
    run = write_sweep(tmp_path, ["fcfs"], workload=shape)
    write_cell(run, "fcfs", idle(1.0))
    assert mentions(answer_of(run).sentences[-1], "token counts inferred", "75%")


def test_the_scheduling_time_of_offload_and_what_was_left_out_are_caveats(tmp_path: Path) -> None:
    write_cell(tmp_path, "fcfs", idle(10.0), jps=0.1)
    write_cell(tmp_path, "lmcache", idle(12.0), jps=0.1)
    workload = {"left_out": [{"program_id": "long", "reason": "200000 tokens"}]}
    run = write_sweep(
        tmp_path,
        ["fcfs", "lmcache"],
        jps=[0.1],
        profile={"base_ps": 950_000_000},
        profile_with_offload={"base_ps": 2_330_000_000},
        workload=workload,
    )
    caveats = answer_of(run).caveats
    assert mentions(caveats, "1 program", "long: 200000 tokens")
    assert mentions(caveats, "offload", "1.38 ms", "(Continuum v3, Table 4)")


def test_a_short_run_gets_a_caveat_with_the_number_of_programs_needed(tmp_path: Path) -> None:
    # 20 jobs within 200 s that take 50 s each: 8 x 50 s x 0.1 jobs/s = 40, rounded up to 100.
    write_cell(tmp_path, "fcfs", idle(50.0), jps=0.1)
    run = write_sweep(tmp_path, ["fcfs"], jps=[0.1])
    short = [caveat for caveat in answer_of(run).caveats if caveat.startswith("Short run")]
    assert len(short) == 1
    assert mentions(short[0], "20 jobs", "200 s", "50.0 s", "--programs 100", "repeats")


def test_one_job_cannot_compare_schedulers(tmp_path: Path) -> None:
    run = write_sweep(tmp_path, ["fcfs", "continuum"], jps=[0.1])
    for name, jct_s in (("fcfs", 50.0), ("continuum", 40.0)):
        write_cell(run, name, idle(jct_s, (0.0,)), jps=0.1)
    found = answer_of(run)
    assert "it took 40.0 s to 50.0 s" in found.headline
    assert (found.winners, found.findings) == ((), ())
    assert not [caveat for caveat in found.caveats if caveat.startswith("Short run")]


def test_a_short_run_is_not_advised_to_use_higher_and_lower_rates_at_once(tmp_path: Path) -> None:
    # 20 jobs within 40 s that take 500 s each: 8 x 500 s x 0.5 jobs/s are more than 20 x 20 jobs.
    run = run_of(tmp_path, fcfs=idle(500.0), continuum=idle(500.0))
    found = answer_of(run)
    assert "Use lower rates." in " ".join(found.caveats)
    assert "Higher rates" not in " ".join(found.findings)
    # 20 jobs within 200 s that take 5 s: long enough.
    calm = write_sweep(tmp_path / "calm", ["fcfs", "continuum"], jps=[0.1])
    for name in ("fcfs", "continuum"):
        write_cell(calm, name, idle(5.0), jps=0.1)
    assert "Higher rates or a smaller machine" in " ".join(answer_of(calm).findings)


def test_a_long_run_gets_no_short_run_caveat(tmp_path: Path) -> None:
    write_cell(tmp_path, "fcfs", idle(20.0), jps=0.1)
    run = write_sweep(tmp_path, ["fcfs"], jps=[0.1])
    assert not [caveat for caveat in answer_of(run).caveats if caveat.startswith("Short run")]


def test_simulated_times_name_the_speculative_decoding_that_they_assume(tmp_path: Path) -> None:
    limits = {"speculate": "mtp:2,accept=0.8,0.6"}
    drafts = write_sweep(tmp_path, ["fcfs"], limits=limits, virtual_time="virtual time")
    assert mentions(basis(load_run(drafts).sweep), "mtp:2,accept=0.8,0.6")


def test_only_a_finite_set_of_jobs_at_a_rate_is_said_to_be_no_capacity(tmp_path: Path) -> None:
    once = write_sweep(tmp_path / "once", ["fcfs"])
    closed = write_sweep(tmp_path / "closed", ["fcfs"], jps=[None], arrivals="closed:8")  # type: ignore[list-item]
    stream = write_sweep(tmp_path / "stream", ["fcfs"], steady_state=True)
    said = ["not a capacity" in basis(load_run(run).sweep) for run in (once, closed, stream)]
    assert said == [True, False, False]


@pytest.mark.parametrize(
    ("shape", "steady", "says"),
    [
        ({"programs": 13}, True, "Few programs: 13 distinct programs"),
        ({"programs": 400, "distinct_programs": 1}, False, "Few programs: 1 distinct program is"),
        ({"programs": 30}, True, ""),
        ({"programs": 13}, False, ""),
        ({"programs": 13, "recipe": "swe-bench"}, True, ""),
    ],
    ids=["stream", "repeated set", "enough", "each once", "drawn afresh"],
)
def test_few_programs_that_are_repeated_are_a_caveat(
    tmp_path: Path, shape: dict[str, Any], steady: bool, says: str
) -> None:
    run = write_sweep(tmp_path, ["fcfs"], workload=shape)
    write_cell(run, "fcfs", idle(10.0))
    loaded = load_run(run)
    results = collect(loaded)
    sweep = structs.replace(loaded.sweep, steady_state=steady)
    for at_rates in (True, False):
        caveats = caveats_of([], results, sweep, at_rates=at_rates)
        few = [caveat for caveat in caveats if caveat.startswith("Few programs")]
        assert [caveat.startswith(says) for caveat in few] == [True] * bool(says)


WHOLE_PROMPT = {"admission": "whole-prompt"}


@pytest.mark.parametrize(
    ("names", "fields", "says"),
    [
        (["fcfs", "turnstile"], {}, True),
        (["fcfs", "turnstile"], {"engine": "vllm-virtual", "virtual_time": "of vLLM"}, True),
        (["fcfs", "turnstile"], {"limits": WHOLE_PROMPT | {"step_tokens": 8192}}, True),
        (["fcfs", "turnstile"], {"limits": WHOLE_PROMPT | {"long_prefill": 512}}, False),
        (["fcfs@sticky", "turnstile@sticky"], {"baseline": "fcfs@sticky"}, True),
        (["fcfs", "fcfs(victim=lcf)"], {}, True),
        (["fcfs", "turnstile(long_prefill=512)"], {}, True),
        (["fcfs", "fcfs(step_tokens=8192)", "turnstile"], {}, False),
        (["fcfs", "fcfs-tuned(long_prefill=0)", "turnstile"], {}, False),
        (["continuum", "turnstile"], {"baseline": "continuum"}, False),
        (["fcfs"], {}, False),
        (["fcfs", "clairvoyant"], {}, False),
        (["fcfs", "turnstile"], {"engine": "vllm"}, False),
        (
            ["fcfs", "lpm"],
            {"engine": "sglang-sim", "virtual_time": "of SGLang", "limits": {}},
            False,
        ),
    ],
)
def test_a_gain_over_stock_vllm_in_virtual_time_says_that_no_tuned_one_was_measured(
    tmp_path: Path, names: list[str], fields: dict[str, Any], says: bool
) -> None:
    fields = {"limits": WHOLE_PROMPT} | fields
    run = write_sweep(tmp_path, names, workload=workload(idle(10.0)), **fields)
    write_cell(run, names[0], idle(10.0))
    loaded = load_run(run)
    for at_rates in (True, False):
        caveats = caveats_of([], collect(loaded), loaded.sweep, at_rates=at_rates)
        found = [each for each in caveats if each.startswith("Gains over a tuned vLLM")]
        assert [mentions(each, "fcfs-tuned", "--policies") for each in found] == [True] * says


@pytest.mark.parametrize(
    ("shape", "says"),
    [
        (
            {"programs": 20, "sub_agents": 3},
            ("Few programs: 20", "40 agents of fcfs_agents40_seed1", "250", "17", "15 times"),
        ),
        (
            {"programs": 39},
            ("Repeated sessions", "40 agents of fcfs_agents40_seed1", "250", "39", "6 times"),
        ),
        ({"programs": 40}, ()),
        ({"programs": 40, "sub_agents": 1}, ("Repeated sessions", "40 agents")),
        ({"programs": 39, "recipe": "swe-bench"}, ()),
    ],
    ids=["few", "fewer sessions than agents", "as many", "with a sub-agent", "drawn afresh"],
)
def test_fewer_recorded_sessions_than_agents_are_a_caveat_with_how_often_each_ran(
    tmp_path: Path, shape: dict[str, Any], says: tuple[str, ...]
) -> None:
    """250 ÷ 17 = 14.7 and 250 ÷ 39 = 6.4."""
    run = write_sweep(tmp_path, ["fcfs"], workload=shape)
    write_cell(run, "fcfs", idle(10.0))
    loaded = load_run(run)
    cell = {"cell": "fcfs_agents40_seed1", "agents": 40, "jobs": 250, "steady": True}
    fewer = {**cell, "cell": "fcfs_agents30_seed1", "agents": 30}
    drifts = {**cell, "cell": "fcfs_agents50_seed1", "agents": 50, "steady": False}
    found = collect(loaded)
    row = found.cells.iloc[0].to_dict()
    results = replace(found, cells=pd.DataFrame([{**row, **c} for c in (fewer, cell, drifts)]))
    sweep = structs.replace(loaded.sweep, steady_state=True)
    caveats = caveats_of([], results, sweep, at_rates=False)
    about = [each for each in caveats if each.startswith(("Few programs", "Repeated sessions"))]
    assert [mentions(each, *says) for each in about] == [True] * bool(says)
