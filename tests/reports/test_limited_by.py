"""What limits a capacity, by comparison with `unlimited-kv`: worked by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import orjson
import pytest
from msgspec import convert
from test_capacity_answer import NEVER, SWEEP, answer_of, chains, number, point

from reports.answer.capacity_context import MachinePrice
from reports.answer.capacity_rows import capacity_table
from reports.answer.document import document
from reports.answer.fails_first import Bottleneck, limited_by, unlimited_kv_sentences
from reports.capacity.estimate import Capacity
from reports.capacity.search import Chain
from reports.loads import RATES
from reports.statistics.capacities import VariantCapacity, capacities
from servers.policies.base import UNLIMITED_KV
from servers.records.sweep import SweepRecord
from tests.sentences import mentions

JCT, NONE = "mean<=2x", ""
"""What the load above a capacity misses: the SLO, or a steady state."""
Found = Mapping[Chain, Capacity]


def failing(load: float, *limits: str) -> list[Capacity]:
    """Return the capacities of one seed per limit."""
    return [replace(number(load), limit=limit) for limit in limits]


def of_all(found: Found) -> list[VariantCapacity]:
    names = dict.fromkeys(chain.variant for chain in found)
    references = {name: UNLIMITED_KV if name.startswith("unlimited-kv") else "" for name in names}
    return capacities(found, references, "fcfs")


def by_name(**per_seed: Sequence[float | Capacity]) -> Found:
    found = chains(**per_seed)
    return {
        Chain(c.variant.replace("unlimited", "unlimited-kv").replace("+", "@"), c.seed): each
        for c, each in found.items()
    }


@pytest.mark.parametrize(
    ("load", "limits", "burst", "expected"),
    [
        (0.098, (JCT,) * 3, True, Bottleneck.SLO),
        (0.098, (NONE,) * 3, True, Bottleneck.COMPUTE),
        (0.12, (JCT,) * 3, True, Bottleneck.SLO),  # in another order turns wait less
        (0.05, (JCT,) * 3, True, Bottleneck.KV_MEMORY),
        (0.05, (NONE,) * 3, True, Bottleneck.RECOVERY),
        (0.05, (NONE,) * 3, False, Bottleneck.KV_MEMORY),
        (0.05, (NONE, NONE, JCT), True, Bottleneck.RECOVERY),  # most seeds decide
        # With the prior of 2 · 0.1² the interval of three equal ratios is a factor of e^0.113 up
        # and down (test_capacity_answer): 0.92 reaches 1.03, and 0.88 reaches 0.985.
        (0.092, (JCT,) * 3, True, Bottleneck.UNCLEAR),
        (0.088, (JCT,) * 3, True, Bottleneck.KV_MEMORY),
        (0.092, (JCT,), True, Bottleneck.KV_MEMORY),  # one seed has no interval
    ],
)
def test_the_limit_follows_from_the_share_of_unlimited_kv_and_what_fails_first(
    load: float, limits: Sequence[str], burst: bool, expected: Bottleneck
) -> None:
    found = by_name(a=failing(load, *limits), unlimited=failing(0.1, *[JCT] * len(limits)))
    (only,) = limited_by(of_all(found), burst=burst).items()
    assert (only[0], only[1].bottleneck) == ("a", expected)
    assert only[1].share.value == pytest.approx(load / 0.1)


def test_each_variant_is_compared_behind_its_own_router() -> None:
    found = by_name(
        a_x=failing(0.05, JCT), a_y=failing(0.05, JCT), a_z=failing(0.05, JCT),
        unlimited_x=failing(0.05, JCT), unlimited_y=failing(0.1, JCT),
    )  # fmt: skip
    every = of_all(found)
    limits = limited_by(every, burst=True)
    assert {name: limit.bottleneck for name, limit in limits.items()} == {
        "a@x": Bottleneck.SLO,
        "a@y": Bottleneck.KV_MEMORY,
    }
    x, y = unlimited_kv_sentences(every[:2], every, limits)
    assert mentions(x, "fcfs@x", "0.05 jobs/s", "a@x reaches 100%")
    assert mentions(y, "fcfs@y", "0.1 jobs/s", "a@y reaches 50%")


WITH_REFERENCE = by_name(
    fcfs=failing(0.05, *[NONE] * 3), a=failing(0.099, *[JCT] * 3), unlimited=[0.1] * 3
)


def test_the_answer_says_what_kv_memory_costs_the_best_and_the_baseline() -> None:
    answer = answer_of(WITH_REFERENCE, references={"unlimited-kv": UNLIMITED_KV})
    (sentence,) = [each for each in answer.findings if "KV memory" in each]
    assert mentions(sentence, "fcfs", "0.1 jobs/s", "a reaches 99% and fcfs 50%")
    agents = answer_of(WITH_REFERENCE, references={"unlimited-kv": UNLIMITED_KV}, arrivals="agents")
    assert agents.limited_by["fcfs"].bottleneck is Bottleneck.KV_MEMORY


def test_a_rate_that_only_the_reference_sustains_is_said() -> None:
    answer = answer_of(
        by_name(fcfs=[NEVER] * 3, a=[NEVER] * 3, unlimited=[0.1] * 3),
        references={"unlimited-kv": UNLIMITED_KV},
    )
    assert mentions(answer.headline, "No scheduler", "b200")
    assert mentions(answer.findings, "unlimited KV memory", "fcfs", "0.1 jobs/s.")


def test_unlimited_kv_has_no_ratio_no_cost_and_no_rate_bound() -> None:
    points = [point("fcfs", 0.04, 90), point("a", 0.04, 60), point("unlimited-kv", 0.04, 50)]
    points[2] = replace(points[2], reference=UNLIMITED_KV, pooled={"rate_bound_jobs_per_s": 9.0})
    answer = answer_of(WITH_REFERENCE, points=points, references={"unlimited-kv": UNLIMITED_KV})
    table = capacity_table(answer, MachinePrice(1, 1.0))
    assert table is not None
    rows = {
        row.name: dict(zip(table.heads[1:], (cell.text for cell in row.cells), strict=True))
        for row in table.rows
    }
    columns = ("Ratio", "GPUs per job/s", RATES.cost)
    assert [rows["unlimited-kv"][column] for column in columns] == ["–", "–", "–"]
    assert rows["a"]["GPUs per job/s"] == "10.1"
    assert answer.winners == ("a",)
    assert not any("9 jobs/s" in each for each in answer.findings)


def test_the_table_and_answer_json_have_a_word_per_capacity() -> None:
    answer = answer_of(WITH_REFERENCE, references={"unlimited-kv": UNLIMITED_KV})
    table = capacity_table(answer, MachinePrice(1, 1.0))
    assert table is not None
    column = table.heads.index("Limited by") - 1
    words = {row.name: row.cells[column].text for row in table.rows}
    assert words == {"unlimited-kv": "–", "a": "SLO", "fcfs": "recovery"}
    found = orjson.loads(document(answer, (), convert(SWEEP, SweepRecord)))["capacities"]
    assert {name: each["limited_by"] for name, each in found.items()} == {
        "unlimited-kv": None,
        "a": "SLO",
        "fcfs": "recovery",
    }
    assert found["fcfs"]["share_of_unlimited_kv"]["value"] == pytest.approx(0.5)
    assert found["unlimited-kv"]["gpus_per_job_per_s"] is None


def test_without_the_reference_nothing_is_said() -> None:
    answer = answer_of(by_name(fcfs=[0.05] * 3, a=[0.1] * 3))
    table = capacity_table(answer, MachinePrice(1, 1.0))
    assert table is not None
    assert "Limited by" not in table.heads
    assert not any("KV memory" in each for each in answer.findings)
