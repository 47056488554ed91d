import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reports.figures.drawing import distribution
from reports.figures.job_time import job_time
from reports.figures.styles import Style
from reports.metrics.waterfall import WATERFALL
from tests.sentences import mentions

STYLE = {"fcfs": Style(0, "circle", "solid"), "continuum": Style(2, "square", "solid")}


def job(name: str, variant: str, arrival_s: float, **fields: object) -> dict[str, object]:
    """Return a job at 0.5 jobs/s; the parts that are not given take no time."""
    row = {"job_id": name, "variant": variant, "load": "0.5 jobs/s", "seed": 1}
    row |= {"arrival_s": arrival_s, "bubble_s": 0.0, "slowdown": 1.0} | dict.fromkeys(
        WATERFALL, 0.0
    )
    row |= fields
    return {"jct_s": sum(float(row[part]) for part in WATERFALL)} | row


def drawn(*jobs: dict[str, object], load: str = "0.5 jobs/s") -> dict[str, dict]:
    """Return the figures' drawings for this load, by figure."""
    figures = job_time(pd.DataFrame(jobs), STYLE, ["fcfs", "continuum"], load)
    return {figure.id: figure.specs[load] for figure in figures}


def test_a_bar_is_the_mean_time_of_a_part_and_parts_that_never_occur_have_no_bar() -> None:
    spec = drawn(
        job("a", "fcfs", 0.0, requeue_s=30.0, decode_s=10.0),
        job("b", "fcfs", 1.0, requeue_s=10.0, decode_s=12.0),
        job("a", "continuum", 0.0, decode_s=10.0),
        job("b", "continuum", 1.0, decode_s=12.0),
    )["waterfall"]
    bars = {t["name"]: dict(zip(t["y"], t["x"], strict=True)) for t in spec["data"] if "name" in t}
    assert bars == {
        "re-queue bubbles": {"continuum": 0.0, "fcfs": 20.0},
        "decode": {"continuum": 11.0, "fcfs": 11.0},
    }
    assert [name for name, _ in spec["rows"]] == ["continuum", "fcfs"]  # the fastest on top
    assert spec["data"][0]["text"][1] == "<b>fcfs</b><br>re-queue bubbles 20.0 s, 65%"
    assert mentions(spec["note"], "mean JCT", "sum of the parts.")


def test_tool_time_that_contains_pauses_is_labelled_so() -> None:
    jobs = pd.DataFrame([job("a", "fcfs", 0.0, tool_s=30.0, decode_s=10.0)])
    for pauses, label in ((False, "tool time"), (True, "tool time and pauses")):
        figure, *_ = job_time(jobs, STYLE, ["fcfs"], "0.5 jobs/s", pauses=pauses)
        assert [entry.label for entry in figure.key] == ["decode", label]
        assert f"its largest part is {label}, 30.0 s" in figure.specs["0.5 jobs/s"]["alt"]


def test_the_note_names_the_time_that_no_part_explains() -> None:
    spec = drawn(job("a", "fcfs", 0.0, decode_s=9.9, jct_s=10.0))["waterfall"]
    assert mentions(spec["note"], "fcfs", "sum of the parts by 1.0%")


def test_bubbles_are_in_order_of_arrival_of_the_first_seed() -> None:
    spec = drawn(
        job("late", "fcfs", 9.0, bubble_s=5.0),
        job("early", "fcfs", 2.0, bubble_s=1.0),
        job("early", "fcfs", 0.0, bubble_s=70.0, seed=2),
        job("late", "continuum", 9.0, bubble_s=3.0),  # its early one failed
    )["bubbles"]
    lines = {t["meta"]["variant"]: t for t in spec["data"]}
    assert lines["fcfs"]["x"] == [1, 2]
    assert lines["fcfs"]["text"] == ["early", "late"]
    assert lines["fcfs"]["y"] == [1.0, 5.0]
    assert lines["continuum"]["y"] == [None, 3.0]
    assert "seed 1" in spec["note"]


def test_with_very_many_programs_a_point_is_the_mean_of_several() -> None:
    jobs = [job(f"{k:04d}", "fcfs", float(k), bubble_s=float(k)) for k in range(400)]
    spec = drawn(*jobs)["bubbles"]
    assert spec["data"][0]["y"][:2] == [0.5, 2.5]
    assert spec["data"][0]["text"][0] == "0000 and 1 more program"
    assert "mean of up to 2 programs" in spec["note"]


def test_jcts_spread_over_all_seeds() -> None:
    jobs = [job("a", "fcfs", 0.0, decode_s=float(s), seed=s) for s in (4, 2, 1, 3)]
    line = drawn(*jobs)["jct-spread"]["data"][0]
    assert line["x"] == [1.0, 2.0, 3.0, 4.0]
    assert line["y"] == [0.25, 0.5, 0.75, 1.0]


def test_each_load_has_a_drawing_and_that_of_the_answer_is_first() -> None:
    jobs = [
        job("a", "fcfs", 0.0, decode_s=1.0),
        job("a", "fcfs", 0.0, decode_s=8.0, load="1 jobs/s"),
    ]
    for figure in job_time(pd.DataFrame(jobs), STYLE, ["fcfs"], "1 jobs/s"):
        assert list(figure.specs) == ["0.5 jobs/s", "1 jobs/s"]
        assert figure.first == "1 jobs/s"


def test_without_finished_jobs_there_is_no_figure() -> None:
    assert job_time(pd.DataFrame(), STYLE, [], None) == []


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=300), st.integers(2, 100))
def test_a_thinned_distribution_keeps_its_ends_and_its_shares(
    values: list[float], most: int
) -> None:
    kept, shares = distribution(values, most)
    assert len(kept) <= most
    assert (kept[-1], shares[-1]) == (max(values), 1.0)
    assert kept[0] == min(values)
    for value, share in zip(kept, shares, strict=True):
        assert sum(v <= value for v in values) / len(values) >= share - 1e-9
    assert list(shares) == sorted(shares)


@pytest.mark.parametrize("name", ["%{x}", "<b>bold</b>"])
def test_names_are_text_and_neither_tags_nor_templates(name: str) -> None:
    figures = job_time(
        pd.DataFrame([job("a", name, 0.0, decode_s=1.0)]), {name: STYLE["fcfs"]}, [], "0.5 jobs/s"
    )
    hovering = [
        t for f in figures for t in f.spec["data"] if t.get("hovertemplate", "").startswith("<b>")
    ]
    assert hovering
    assert not any(name in t["hovertemplate"] for t in hovering)
