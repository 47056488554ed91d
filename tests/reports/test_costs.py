"""Costs at capacity, and at an API: worked by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pandas as pd
import pytest

from harness.load.prices import parse_api_price, parse_prices, price_of_gpu
from reports.answer.capacity_context import MachinePrice
from reports.answer.costs import cost_table, job_costs
from reports.capacity.estimate import Capacity, Kind
from reports.loads import AGENTS, RATES
from reports.statistics.capacities import VariantCapacity
from servers.basics.errors import InvalidInput
from servers.records.sweep import ApiPriceRecord, PriceRecord

if TYPE_CHECKING:
    pass

ONE_CENT_PER_S = MachinePrice(2, 18.0)
"""Two GPUs of 18 USD per hour."""
FOUND = Capacity(Kind.FOUND, 12.5, 10.0, 11.0)
CELLS = pd.DataFrame(
    {
        "variant": ["fcfs", "fcfs"],
        "seed": [1, 1],
        "agents": [10.0, 11.0],
        "throughput_jobs_per_s": [0.2, 9.0],
        "hit_ratio": [0.9, 0.0],
        "prompt_tokens_per_job": [1_000_000.0, 1.0],
        "kept_tokens_per_job": [800_000.0, 1.0],
        "output_tokens_per_job": [10_000.0, 1.0],
    }
)
"""The second cell is not sustained."""


def fcfs(**changes: object) -> VariantCapacity:
    capacity = VariantCapacity("fcfs", "", {1: FOUND}, None, AGENTS)
    return replace(capacity, **changes)


def test_a_job_costs_the_machine_divided_by_its_throughput_at_capacity() -> None:
    # 10 agents finish 0.2 jobs/s, so 12.5 finish 0.25, for 0.01 USD per second.
    (cost,) = job_costs([fcfs()], CELLS, ONE_CENT_PER_S, None)
    assert cost.usd_per_job == pytest.approx(0.04)
    # 900,000 tokens of it are cached, 100,000 computed, and 10,000 generated.
    assert cost.usd_per_mtok == pytest.approx({"cached": 0.04 / 0.9, "new": 0.4, "generated": 4.0})


def test_a_sustained_rate_is_the_throughput() -> None:
    cells = CELLS.rename(columns={"agents": "jps"})
    (cost,) = job_costs([fcfs(ladder=RATES)], cells, ONE_CENT_PER_S, None)
    assert cost.usd_per_job == pytest.approx(0.01 / 12.5)


def test_an_api_caches_what_earlier_turns_of_the_job_contain() -> None:
    # 0.8 · 0.05 + 0.2 · 0.2 + 0.01 · 2 = 0.1 USD. An agent does 0.02 jobs/s for 0.002 USD/s,
    # so 5 agents cost as much as the machine.
    (cost,) = job_costs([fcfs()], CELLS, ONE_CENT_PER_S, ApiPriceRecord(0.05, 0.2, 2.0))
    assert cost.api_usd_per_job == pytest.approx(0.1)
    assert cost.even_load == pytest.approx(5)
    table = cost_table([cost])
    assert table is not None
    assert [cell.text for cell in table.rows[0].cells][-2:] == ["0.1", "5 agents"]


def test_a_break_even_between_the_capacity_and_the_next_whole_agent_is_the_capacity() -> None:
    # An agent costs 0.00081 USD/s at this API: 12.35 cost as much as the machine, which has 12.5.
    (cost,) = job_costs([fcfs()], CELLS, ONE_CENT_PER_S, ApiPriceRecord(0.0, 0.2025, 0.0))
    assert cost.api_usd_per_job == pytest.approx(0.0405)
    assert cost.even_load == pytest.approx(12.5)


def test_an_api_that_is_cheaper_even_at_capacity_has_no_break_even() -> None:
    (cost,) = job_costs([fcfs()], CELLS, ONE_CENT_PER_S, ApiPriceRecord(0.01, 0.02, 0.2))
    assert cost.api_usd_per_job == pytest.approx(0.014)
    assert cost.even_load is None  # 35.7 agents, and the machine serves 12.5


def test_nothing_costs_anything_without_a_price() -> None:
    assert job_costs([fcfs()], CELLS, MachinePrice(1, float("nan")), None) == ()
    never = fcfs(by_seed={1: Capacity(Kind.NEVER, float("nan"), None, 1.0)})
    assert job_costs([never], CELLS, ONE_CENT_PER_S, None) == ()


@pytest.mark.parametrize("text", ["2EUR", "-1", "0", "nan", "inf", "", "=2", "2,3", "h100=2,3"])
def test_a_price_that_is_no_amount_of_usd_is_refused_with_the_remedy(text: str) -> None:
    with pytest.raises(InvalidInput, match=r"USD per GPU and hour, above 0.*: 2\.5 for"):
        parse_prices(text, ["h100"])


def test_prices_are_for_all_hardware_or_for_some_of_it() -> None:
    assert parse_prices("2.5", ["h100"]) == {"": 2.5}
    assert parse_prices("h100=2,l4=0.5", ["h100", "l4"]) == {"h100": 2.0, "l4": 0.5}
    with pytest.raises(InvalidInput, match=r"--price h10=2: .* did you mean h100"):
        parse_prices("h10=2", ["h100", "l4"])
    with pytest.raises(InvalidInput, match=r"--price l4=1: .*; runs are on h100$"):
        parse_prices("l4=1", ["h100", "h100"])
    with pytest.raises(InvalidInput, match=r"--price h100=2,h100=3: h100 is given twice; remove"):
        parse_prices("h100=2,h100=3", ["h100"])


def test_the_price_is_the_given_one_or_that_of_the_gpu_file_or_the_list_price() -> None:
    assert price_of_gpu({"": 2.5}, "h100", None) == PriceRecord(2.5, "--price")
    own = {"price_usd_per_hour": 1.2}
    assert price_of_gpu({}, "mine", own) == PriceRecord(1.2, "the GPU file")
    listed = price_of_gpu({"l4": 1.0}, "h100", None)
    assert listed is not None
    assert listed.date
    assert price_of_gpu({}, None, None) is None


@pytest.mark.parametrize("text", ["0.5,5", "0.5,5,25EUR", "-1,5,25", "nan,5,25", "0,0,0"])
def test_api_prices_are_three_numbers(text: str) -> None:
    with pytest.raises(InvalidInput, match="three prices in USD"):
        parse_api_price(text)
    assert parse_api_price("0.5,5,25") == ApiPriceRecord(0.5, 5.0, 25.0)
