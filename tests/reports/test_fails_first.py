"""What fails first above a capacity, and what turns wait for there."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from reports.answer.fails_first import FailsFirst, fails_first
from reports.capacity.estimate import Capacity, Kind
from reports.capacity.slo import parse_slo
from reports.loads import AGENTS
from reports.metrics.cells import collect
from reports.metrics.turn_time import TURN_TIME
from reports.run_folder.read import load_run
from reports.statistics.capacities import VariantCapacity
from tests.reports.make_run import turn, write_cell, write_sweep
from tests.sentences import mentions

SLO = parse_slo("ttft_p95<=5s,speed_p90>=30")
PARTS = dict.fromkeys(TURN_TIME.columns, 0.0)


def parts_of(run: Path, *turns: Mapping[str, Any]) -> dict[str, float]:
    """Return the parts that are not zero; those of decoding alone are unknown without a machine."""
    write_sweep(run, ["fcfs"])
    write_cell(run, "fcfs", turns)
    (row,) = collect(load_run(run)).cells.to_dict("records")
    values = {name: row[name] for name in TURN_TIME.columns}
    return {name: round(v, 9) for name, v in values.items() if v and not math.isnan(v)}


def test_parts_of_the_time_of_turns_are_means_over_turns(tmp_path: Path) -> None:
    first = turn("p", 0, 0.0, first_token_at_s=3.0, queue_s=2.0, prefill_s=1.0, decode_s=3.0)
    second = turn(
        "p", 1, 10.0, first_token_at_s=15.5, queue_s=4.0, load_s=0.5, prefill_s=1.0, decode_s=2.0,
        preempted_s=5.0, recompute_s=1.0, prompt_tokens=100, kept_tokens=80, device_hit_tokens=20,
    )  # fmt: skip
    # Of 80 computed tokens of the second turn, 60 had been in the context before.
    assert parts_of(tmp_path, first, second) == {
        "turn_queue_s": 3.0,
        "turn_reload_s": 0.25,
        "turn_recompute_s": 0.375,
        "turn_prefill_s": 0.625,
        "turn_preempted_s": 3.0,
        "first_turn_queue_s": 2.0,
        "first_turn_prefill_s": 1.0,
    }


def test_decoding_is_stalled_while_any_other_prompt_is_computed(tmp_path: Path) -> None:
    # p decodes from 1 to 9 s. Prompts are computed from 2 to 4, from 3 to 5 and from 8 to 10 s,
    # so for 3 + 1 of its 8 seconds; q decodes from 4 to 6 s, 1 s of it beside the third prompt,
    # r not beside any, and s from 10 to 11 s.
    turns = [
        turn("p", first_token_at_s=1.0, prefill_s=1.0, decode_s=8.0),
        turn("q", at_s=2.0, first_token_at_s=4.0, prefill_s=2.0, decode_s=2.0),
        turn("r", at_s=3.0, first_token_at_s=5.0, prefill_s=2.0, decode_s=1.0),
        turn("s", at_s=8.0, first_token_at_s=10.0, prefill_s=2.0, decode_s=1.0),
    ]
    assert parts_of(tmp_path, *turns)["turn_stalled_s"] == (4.0 + 1.0) / 4


def capacity(limit: str, *not_sustained: float, kind: Kind = Kind.FOUND) -> VariantCapacity:
    by_seed = {
        seed: Capacity(kind, load - 1, load - 1, load, limit)
        for seed, load in enumerate(not_sustained, start=1)
    }
    return VariantCapacity("a", "", by_seed, None, AGENTS)


def cells(*rows: Mapping[str, Any]) -> pd.DataFrame:
    return pd.DataFrame([{"variant": "a", **PARTS, **row} for row in rows])


def found(each: VariantCapacity, rows: pd.DataFrame) -> FailsFirst:
    return fails_first([each], rows, SLO)["a"]


def test_the_reason_is_the_largest_part_of_the_wait_at_the_first_load_that_is_not_sustained() -> (
    None
):
    rows = cells(
        {"agents": 24, "seed": 1, "turn_recompute_s": 5.0, "turn_queue_s": 1.0, "turn_alone_s": 9},
        {"agents": 24, "seed": 2, "turn_recompute_s": 2.1, "turn_prefill_s": 1.9},
        {"agents": 40, "seed": 1, "turn_queue_s": 99.0},  # is not the first
    )
    limit = found(capacity("ttft_p95<=5s", 24, 24), rows)
    # 7.1 of the 10 s before the first token; the rest of the turn does not count.
    assert limit.shares["recomputing evicted context"] == pytest.approx(0.71)
    first = "a first misses", "P95 TTFT", "24 agents"
    share = "71%", "first token", "recomputing evicted context"
    assert mentions(limit.sentence("a", AGENTS), *first, *share)


def test_a_second_part_is_named_if_it_is_a_fifth_and_seeds_may_fail_at_different_loads() -> None:
    rows = cells(
        {"agents": 24, "seed": 1, "turn_batching_s": 6.0, "turn_queue_s": 2.0},
        {"agents": 26, "seed": 2, "turn_batching_s": 6.0, "turn_stalled_s": 2.0, "turn_queue_s": 4},
    )
    sentence = found(capacity("speed_p90>=30", 24, 26), rows).sentence("a", AGENTS)
    first = "a first misses", "P90 output tokens/s", "24 to 26 agents"
    assert mentions(sentence, *first, "60%", "decoding", "30% queueing")


def test_without_a_steady_state_all_time_counts_and_decoding_as_alone_is_no_reason() -> None:
    rows = cells({"agents": 9, "seed": 1, "turn_queue_s": 4.0, "turn_alone_s": 6.0})
    sentence = found(capacity("", 9), rows).sentence("a", AGENTS)
    assert mentions(sentence, "a has no steady state", "9 agents", "40%", "queueing")


def test_a_server_that_reports_no_parts_has_no_reason() -> None:
    rows = cells({"agents": 9, "seed": 1, "turn_queue_s": math.nan})
    sentence = found(capacity("ttft_p95<=5s", 9), rows).sentence("a", AGENTS)
    assert mentions(sentence, "P95 TTFT", "9 agents")
    assert "There" not in sentence


@pytest.mark.parametrize(("kind", "named"), [(Kind.OPEN, False), (Kind.NEVER, True)])
def test_only_a_search_that_has_found_the_load_says_what_fails(kind: Kind, named: bool) -> None:
    rows = cells({"agents": 1, "seed": 1, "turn_queue_s": 1.0})
    each = capacity("ttft_p95<=5s", 1, kind=kind)
    assert bool(fails_first([each], rows, SLO)) == named


def test_a_seed_that_an_idle_machine_misses_says_nothing_about_the_others() -> None:
    by_seed = {
        1: Capacity(Kind.NEVER, math.nan, None, None),
        2: Capacity(Kind.NEVER, math.nan, None, None),
        3: Capacity(Kind.FOUND, 8.5, 8.0, 9.0, "ttft_p95<=5s"),
    }
    rows = cells({"agents": 9, "seed": 3, "turn_queue_s": 1.0})
    assert str(found(VariantCapacity("a", "", by_seed, None, AGENTS), rows).seeds) == "1/1"
