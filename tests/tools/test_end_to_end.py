"""Errors against end-to-end measurements: the numbers of their tables are computed again here."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.sentences import mentions
from tools.silicon.errors import Prediction, apart_rows, by, headline, judge, pair_rows, summary
from tools.silicon.rows import Checkpoint, Row

ROW = Row(
    id="a",
    hardware="h200",
    checkpoint=Checkpoint("dense-model"),
    precision="fp8",
    gpus=2,
    clients=4,
    prompt_tokens=1024,
    output_tokens=128,
    ttft_s=0.100,
    tpot_s=0.010,
    engine_version="",
    measured="",
    public=True,
)
EXPERTS = replace(ROW, checkpoint=Checkpoint("experts", dense=False))
POINTS = [
    Prediction(ROW, 0.090, 0.0107),
    Prediction(replace(ROW, clients=8), 0.140, 0.0095),
    Prediction(replace(ROW, clients=200), 0.080, 0.012),
    Prediction(EXPERTS, 0.090, 0.020),
]
"""Errors of TTFT: -10, +40, -20, -10%; of TPOT: +7, -5, +20, +100%."""


def test_a_summary_has_the_median_and_p90_of_sizes_and_the_median_of_signed_errors() -> None:
    found = summary(POINTS[:3])
    assert found.rows == 3
    assert found.ttft.median == pytest.approx(0.20)
    assert found.ttft.bias == pytest.approx(-0.10)
    assert found.ttft.p90 == pytest.approx(0.20 + 0.8 * (0.40 - 0.20))
    assert (found.tpot.median, found.tpot.bias) == pytest.approx((0.07, 0.07))


def test_groups_have_their_own_summaries() -> None:
    clients = {clients: each.rows for clients, each in by(POINTS, lambda row: row.clients).items()}
    assert clients == {4: 2, 8: 1, 200: 1}


def test_targets_are_for_dense_models() -> None:
    ttft, tpot = judge(POINTS).checks
    assert (ttft.held, tpot.held) == (False, True)
    assert mentions(tpot.found, "7.0%", "3 measurements", "dense models")
    assert [check.held for check in judge(POINTS[3:]).checks] == [None, None]


def test_the_headline_has_the_medians_of_all_measurements() -> None:
    text = headline(POINTS, judge(POINTS))
    assert mentions(text, "TTFT", "15.0%", "TPOT", "13.5%", "4")


def test_each_gpu_and_model_has_a_row() -> None:
    dense, experts = pair_rows(POINTS)
    assert dense[:4] == ["h200", "dense-model", "3", "20.0%"]
    assert experts == ["h200", "experts", "1", "10.0%", "10.0%", "-10.0%"] + ["100.0%"] * 2 + [
        "+100.0%"
    ]


def test_kinds_of_measurements_that_are_the_same_have_one_row() -> None:
    assert [row[0] for row in apart_rows(POINTS[3:])] == ["other models"]
