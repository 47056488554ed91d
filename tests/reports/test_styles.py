"""Colours, markers and dashes of variants: the same on all pages, and distinct for all readers."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from reports import write_report
from reports.experiment.arms import ArmRun
from reports.experiment.page import ExperimentText, write_experiment
from reports.figures.styles import COLOURS, OURS, Style, styles
from reports.numbers import short
from servers.records.sweep import VariantRecord
from servers.variants import ALL
from tests.reports.make_run import turn, write_cell, write_sweep

CSS = (Path(__file__).parents[2] / "reports/templates/report.css").read_text()
SYSTEMS = ("fcfs", "lmcache", "continuum", "autellix", "infercept")
"""What published comparisons compare."""


def styles_of(*names: str) -> dict[str, Style]:
    return styles([VariantRecord(name=name) for name in names])


@pytest.mark.parametrize("name", ALL)
def test_a_variant_has_the_same_style_alone_and_among_all_others(name: str) -> None:
    assert styles_of(name)[name] == styles_of(*ALL)[name] == styles_of(*ALL[::-1])[name]


def test_variants_of_a_policy_share_colour_and_marker_and_differ_in_the_dash() -> None:
    found = styles_of("continuum", "continuum+", "continuum+native")
    assert {(style.slot, style.marker) for style in found.values()} == {(5, "triangle-down")}
    assert [style.dash for style in found.values()] == ["solid", "dash", "dashdot"]


def test_no_two_policies_share_both_colour_and_marker() -> None:
    policies = [s for name, s in styles_of(*ALL).items() if not name.endswith("+")]
    assert len({(style.slot, style.marker) for style in policies}) == len(policies)
    first = styles_of(*[*OURS][: COLOURS + 1]).values()
    assert len({style.slot for style in first}) == len({style.marker for style in first}) == 11


def test_references_are_grey_and_dotted() -> None:
    found = styles(
        [VariantRecord(name="clairvoyant"), VariantRecord(name="mine", reference="the future")]
    )
    assert list(found.values()) == [Style(1, "x", "dot")] * 2
    assert styles_of("unlimited-kv") == {"unlimited-kv": Style(1, "cross", "dot")}


def test_a_variant_with_arguments_has_its_policys_colour_and_a_marker_of_its_own() -> None:
    names = ["continuum", *(f"continuum(k={k})" for k in range(5))]
    found = styles_of(*names)
    assert {style.slot for style in found.values()} == {5}
    assert len({style.marker for style in found.values()}) == 6


def test_other_peoples_policies_have_different_colours_while_there_are_enough() -> None:
    names = [f"mine-{k}" for k in range(COLOURS)]
    assert len({style.slot for style in styles_of(*names).values()}) == COLOURS
    one = styles_of("mine-3")["mine-3"]
    assert styles_of("fcfs", "mine-3")["mine-3"] == one


def test_a_name_that_is_no_variant_has_a_style() -> None:
    assert styles_of("</script>(")["</script>("].dash == "solid"


def test_pages_give_a_variant_the_same_button(tmp_path: Path) -> None:
    """The run of two variants has other neighbours for `infercept` than the run of three."""
    pages = []
    for number, names in enumerate((("fcfs", "infercept"), ("infercept", "autellix", "fcfs"))):
        run = write_sweep(tmp_path / str(number), names)
        for name in names:
            write_cell(run, name, [turn(), turn("p1", 0, 1.0)])
        pages.append(write_report(run).path)
    about = ExperimentText("small", "A small one", "", "", "", "", "", "")
    pages.append(write_experiment(about, [ArmRun("all", None, (run,))], [], tmp_path).path)
    found = [button("infercept", page.read_text()) for page in pages]
    assert found[0]
    assert len(found) == 3
    assert set(found) == {found[0]}


def button(name: str, page: str) -> str:
    """Return colour and drawing of the button of a variant."""
    (colour, drawing), *_ = re.findall(
        rf'data-variant="{name}"[^>]*style="([^"]+)">(<svg.*?</svg>)', page
    )
    return colour + drawing


# Colours, in linear RGB and in Oklab (Ottosson, 2020) times 100 -----------------------------------

SIMULATED = {
    "all cones": np.eye(3),
    "no green cones": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413],
                       [-0.011820, 0.042940, 0.968881]],
    "no red cones": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216],
                     [-0.003882, -0.048116, 1.051998]],
    "no blue cones": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602],
                      [0.004733, 0.691367, 0.303900]],
}  # fmt: skip
"""What a reader sees, after Machado, Oliveira and Fernandes (2009), severity 1."""
LMS = np.array([[0.4122214708, 0.5363325363, 0.0514459929],
                [0.2119034982, 0.6806995451, 0.1073969566],
                [0.0883024619, 0.2817188376, 0.6299787005]])  # fmt: skip
OKLAB = np.array([[0.2104542553, 0.7936177850, -0.0040720468],
                  [1.9779984951, -2.4285922050, 0.4505937099],
                  [0.0259040371, 0.7827717662, -0.8086757660]])  # fmt: skip
LUMINANCE = np.array([0.2126729, 0.7151522, 0.0721750])


def palette(scheme: str) -> dict[str, np.ndarray]:
    """Return the colours of the light or the dark page as linear RGB."""
    light, dark = CSS.split("@media screen and (prefers-color-scheme: dark)", 1)
    text = light if scheme == "light" else dark
    return {name: linear(value) for name, value in re.findall(r"--(\w+): #(\w{6});", text)}


def linear(value: str) -> np.ndarray:
    rgb = np.array([int(value[i : i + 2], 16) for i in (0, 2, 4)]) / 255
    return np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)


def least_difference(colours: Iterable[np.ndarray], seen: object) -> float:
    shown = [np.clip(np.asarray(seen) @ colour, 0, 1) for colour in colours]
    places = [100 * OKLAB @ np.cbrt(LMS @ colour) for colour in shown]
    return min(float(np.linalg.norm(a - b)) for a, b in combinations(places, 2))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_colour_stands_out_from_the_background(scheme: str) -> None:
    colours = palette(scheme)
    card = LUMINANCE @ colours["card"]
    for slot in range(COLOURS + 2):
        low, high = sorted([card, LUMINANCE @ colours[f"s{slot}"]])
        assert (high + 0.05) / (low + 0.05) >= 3, f"s{slot}"  # WCAG 2.2, 1.4.11


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("seen", SIMULATED)
def test_colours_differ_for_readers_with_any_kind_of_colour_blindness(
    scheme: str, seen: str
) -> None:
    colours, found = palette(scheme), styles_of(*SYSTEMS)
    systems = [colours[style.colour] for style in found.values()]
    assert least_difference(systems, SIMULATED[seen]) >= 15
    everything = [colours[f"s{slot}"] for slot in range(COLOURS + 2)]
    assert least_difference(everything, SIMULATED[seen]) >= 5.5


def test_a_long_name_keeps_its_policy_and_its_router() -> None:
    assert short("program-fcfs@thunderagent") == "program-fcfs@thunderagent"
    long = "continuum(k=50,reclaim_when=pressure)@program-scheduling"
    assert short(long) == "continuum(k=50…gram-scheduling"
