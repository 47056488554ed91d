"""The card of end-to-end measurements: its numbers are computed again here."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.sentences import mentions
from tools.silicon.card import apart_rows, write_end_to_end
from tools.silicon.errors import Point, by, judge, summary, worst

POINT = Point(
    id="a",
    hardware="h200",
    model="dense-model",
    precision="fp8",
    gpus=2,
    clients=4,
    prompt_tokens=1024,
    output_tokens=128,
    engine_version="",
    public=True,
    dense=True,
    measured_ttft_s=0.100,
    virtual_ttft_s=0.090,
    measured_tpot_s=0.010,
    virtual_tpot_s=0.0109,
)
POINTS = [
    POINT,
    replace(POINT, id="b", clients=8, virtual_ttft_s=0.140, virtual_tpot_s=0.0092),
    replace(POINT, id="c", clients=200, virtual_ttft_s=0.080, virtual_tpot_s=0.012),
    replace(POINT, id="d", model="<experts>", dense=False, virtual_tpot_s=0.020),
]
"""Errors of TTFT: -10, +40, -20, -10%; of TPOT: +9, -8, +20, +100%."""


def test_a_summary_has_the_median_and_p90_of_sizes_and_the_median_of_signed_errors() -> None:
    found = summary(POINTS[:3])
    assert found.rows == 3
    assert found.ttft.median == pytest.approx(0.20)
    assert found.ttft.bias == pytest.approx(-0.10)
    assert found.ttft.p90 == pytest.approx(0.20 + 0.8 * (0.40 - 0.20))
    assert (found.tpot.median, found.tpot.bias) == pytest.approx((0.09, 0.09))


def test_loads_have_limits() -> None:
    loads = by(POINTS, lambda p: p.load)
    assert {load: each.rows for load, each in loads.items()} == {
        "1 to 4": 2,
        "5 to 8": 1,
        "more than 128": 1,
    }


def test_the_largest_errors_come_first_in_multiples_of_their_targets() -> None:
    # Largest of TTFT ÷ 15% and TPOT ÷ 10%: a 0.9, b 2.7, c 2.0, d 10.
    assert [point.id for point in worst(POINTS)] == ["d", "b", "c", "a"]


def test_targets_are_for_dense_models() -> None:
    ttft, tpot = judge(POINTS).checks
    assert (ttft.held, tpot.held) == (False, True)
    assert mentions(tpot.found, "9.0%", "3 measurements", "dense models")
    assert [check.held for check in judge(POINTS[3:]).checks] == [None, None]


def test_the_card_has_the_same_numbers_as_its_points(tmp_path: Path) -> None:
    card = write_end_to_end(POINTS, {"why <not>": 7}, {"step times": "toy"}, tmp_path)
    value = json.loads((tmp_path / "end-to-end.json").read_text())
    assert card.headline == value["headline"]
    assert mentions(card.headline, "TTFT", "15.0%", "TPOT", "14.5%", "4")
    assert value["within_targets"] is False
    assert value["left_out"] == {"why <not>": 7}
    assert [point["tpot_error"] for point in value["points"]] == pytest.approx(
        [0.09, -0.08, 0.2, 1]
    )
    [experts, dense] = value["by_model"]
    assert (experts["model"], dense["model"]) == ("<experts>", "dense-model")
    assert dense["ttft"]["median"] == pytest.approx(0.20)


@pytest.mark.parametrize(("left_out", "tables"), [({}, 0), ({"pipeline parallelism": 2}, 1)])
def test_measurements_left_out_have_a_table_if_there_are_any(
    left_out: dict[str, int], tables: int, tmp_path: Path
) -> None:
    write_end_to_end(POINTS, left_out, {}, tmp_path)
    page = (tmp_path / "end-to-end.html").read_text()
    assert page.count("Measurements left out") == tables


def test_kinds_of_measurements_that_are_the_same_have_one_row() -> None:
    assert [row[0] for row in apart_rows(POINTS[3:])] == ["other models"]


def test_the_page_escapes_names_and_needs_no_script(tmp_path: Path) -> None:
    write_end_to_end(POINTS, {"why <not>": 7}, {}, tmp_path)
    page = (tmp_path / "end-to-end.html").read_text()
    assert "<experts>" not in page
    assert "<script" not in page
    assert "why &lt;not&gt;" in page
