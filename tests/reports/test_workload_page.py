"""The page about a trace: its sentences, its figures, and what it does not contain."""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from reports.workload.compared import Compared, compared
from reports.workload.length_figures import prompt_growth
from reports.workload.lines import survival
from reports.workload.page import HEADS, draw, workload_table
from reports.workload.phrases import caveats, findings, headline, tiles
from reports.workload.time_figures import tools_figure
from tests.sentences import mentions
from tests.traces.claude_code import session_with_an_inferred_count
from tests.traces.formats.test_claude_code import SECRETS, private_history
from traces import Program, Turn, read_traces
from traces.formats.native import write_programs
from traces.program import Fork, Provenance

MEASURED = Provenance.MEASURED


def job(name: str, *gaps: tuple[str, float], start_s: float | None = None) -> Program:
    """Return a job with a turn before each gap and a last one. Each adds 90 tokens, answers 10."""
    turns = [
        Turn(100 * n + 90, 10, 100 * n, (tool,) if tool else (), None, gap_s, MEASURED)
        for n, (tool, gap_s) in enumerate([*gaps, ("", 0.0)])
    ]
    return Program(name, turns, recorded_start_s=start_s)


JOBS = [
    job("a", ("ls", 1.0), ("make", 30.0), start_s=0.0),
    job("b", ("ls", 3.0), ("", 600.0), start_s=10.0),
    Program("a/1", (Turn(50, 5),), fork=Fork("a", 0, joined_before_turn=1)),
    job("c", ("ls", 2.0), start_s=70.0),
]


def page(folder: Path, programs: Sequence[Program] = JOBS) -> tuple[str, dict[str, Any], Compared]:
    """Return the page, its figures, and what it compares."""
    write_programs(folder / "t.jsonl", programs)
    out = folder / "page.html"
    found = draw(read_traces(folder / "t.jsonl"), "t.jsonl", out)
    text = out.read_text()
    return text, figures(text), found


def figures(text: str) -> dict[str, Any]:
    data = re.search(r'id="specs">([^<]*)<', text)
    assert data is not None
    read: dict[str, Any] = json.loads(zlib.decompress(base64.b64decode(data[1])))
    return read


def test_the_headline_says_what_jobs_are_like_and_which_recipe_is_nearest(tmp_path: Path) -> None:
    _, _, found = page(tmp_path)
    # 3, 3 and 2 turns; gaps of tools: 1, 2, 3 and 30 s, whose P99 is 3 + 0.97 * 27 = 29.19.
    jobs = "2.7 turns", "90 tokens", "2.50 s", "29.2 s at P99", found.packs[0].name
    assert mentions(headline(found), *jobs)
    # 700 of 1,470 prompt tokens repeat the turn before.
    assert [tile.number for tile in tiles(found)] == ["3", "2.7", "90", "10", "47.6%", "2.50 s"]


def test_a_pack_is_nearest_to_itself() -> None:
    found = compared(read_traces("bfcl"))
    assert headline(found).endswith("Nearest recipe: bfcl.")
    distances = [pack.distance for pack in found.packs]
    assert distances == sorted(distances, key=lambda d: d or 0.0)


def test_sub_agents_and_pauses_are_told_apart_from_jobs_and_tools(tmp_path: Path) -> None:
    _, _, found = page(tmp_path)
    said = " ".join(findings(found))
    assert mentions(said, "Sub-agents: 1", "1 program", "1.0 turns")
    assert "the parent waits for 1 of them" in said
    assert "a person thinks: 1, 600 s on average" in said


def test_each_figure_says_whether_it_is_measured_inferred_or_synthesised(tmp_path: Path) -> None:
    _, drawn, _ = page(tmp_path)
    assert list(drawn) == ["turns", "prompts", "turn-tokens", "reuse", "tools", "starts"]
    for figure in drawn.values():
        for spec in figure["specs"].values():
            assert re.search("measured|inferred|synthesised", spec["note"])
    assert mentions(drawn["tools"]["specs"][""]["note"], "Tool times", "all measured")


def test_inferred_gaps_are_a_caveat(tmp_path: Path) -> None:
    turns = (Turn(90, 10, tools=("ls",), gap_provenance=Provenance.INFERRED), Turn(190, 10, 100))
    write_programs(tmp_path / "t.jsonl", [Program("a", turns)])
    loaded = read_traces(tmp_path / "t.jsonl")
    first, *_ = caveats(compared(loaded), loaded)
    assert mentions(first, "1 of 1 times", "inferred")


def test_single_requests_have_a_page_without_growth_and_tools(tmp_path: Path) -> None:
    _, drawn, found = page(tmp_path, [Program(str(n), (Turn(100 + n, 10),)) for n in range(4)])
    assert mentions(headline(found), "Single requests", "102 tokens")
    assert list(drawn["turn-tokens"]["specs"]) == ["output"]
    assert not {"tools", "starts"} & drawn.keys()


def test_survival_has_all_of_the_tail() -> None:
    values = [0.0, *(float(n) for n in range(1, 1000))]
    x, y = survival(values)
    assert (x[0], y[0]) == (1.0, 0.999)  # of 1,000 values only the 0 is below 1
    assert list(zip(x, y, strict=True))[-3:] == [(997.0, 0.003), (998.0, 0.002), (999.0, 0.001)]


def test_prompts_are_drawn_while_a_tenth_of_the_jobs_goes_on() -> None:
    jobs = [job(str(n), ("ls", 1.0)) for n in range(19)]
    jobs.append(job("long", *[("ls", 1.0)] * 5))
    growth = prompt_growth(jobs)
    assert [at.turn for at in growth] == [1, 2]  # one of twenty is less than a tenth
    assert [at.median for at in growth] == [90, 190]


def test_tools_are_drawn_by_time_after_all_tools(tmp_path: Path) -> None:
    _, _, found = page(tmp_path)
    figure = tools_figure(found, "all measured")
    assert figure is not None
    labels = [entry.label for entry in figure.key]
    assert labels == ["all tools, 4 calls", "make, 1 call", "ls, 3 calls"]
    make, ls = figure.spec["data"][1:]
    # All lines begin at the shortest time, 1 s.
    assert (make["x"], make["y"]) == ([1.0, 30.0], [1.0, 1.0])
    assert (ls["x"], ls["y"]) == ([1.0, 2.0, 3.0], [1.0, 0.6667, 0.3333])


def test_what_comes_from_the_trace_is_escaped(tmp_path: Path) -> None:
    name = "<img src=x onerror=alert(1)>%{x}"
    text, drawn, _ = page(tmp_path, [job("a", (name, 1.0), ("ls", 2.0))])
    assert "<img" not in text
    assert "<img" not in json.dumps(drawn)
    assert "%{x}" not in json.dumps([t["name"] for t in drawn["tools"]["specs"][""]["data"]])


def test_a_page_names_no_folder_of_a_tool(tmp_path: Path) -> None:
    text, drawn, _ = page(tmp_path, [job("a", ("/home/ada/acme/run.sh", 1.0), ("ls", 2.0))])
    assert "run.sh" in text
    assert "/home" not in text + json.dumps(drawn)


def test_tool_times_say_whether_they_include_those_of_sub_agents(tmp_path: Path) -> None:
    turns = (Turn(50, 5, 0, ("ls",), None, 9.0, MEASURED), Turn(60, 5, 55))
    agent = Program("a/1", turns, fork=Fork("a", 0, joined_before_turn=1))
    text, _, found = page(tmp_path, [*(job for job in JOBS if job.fork is None), agent])
    # Of 1, 2, 3 and 30 s in jobs and 9 s in the sub-agent.
    assert tiles(found)[-1].number == "3.00 s"
    assert tiles(found)[-1].sure.endswith(", with sub-agents")
    (row, *_), at = workload_table(found).rows, HEADS.index("tool P50") - 1
    assert row.cells[at].text == "2.50 s"
    assert "exclude sub-agents, unlike the first screen" in text
    alone = compared(read_traces("bfcl"))
    assert "with sub-agents" not in tiles(alone)[-1].sure


def test_a_page_says_how_many_token_counts_are_inferred(tmp_path: Path) -> None:
    (tmp_path / "s.jsonl").write_bytes(session_with_an_inferred_count())
    for name, lengths in (
        ("s.jsonl", "measured, but 1 inferred (see bench traces inspect)."),
        ("t.jsonl", "measured, since the trace records them."),
    ):
        write_programs(tmp_path / "t.jsonl", JOBS)
        draw(read_traces(tmp_path / name), name, tmp_path / "page.html")
        assert f"Token counts: {lengths}" in (tmp_path / "page.html").read_text()


def test_a_page_says_which_names_of_files_and_folders_it_has(tmp_path: Path) -> None:
    text, _, _ = page(tmp_path)
    assert "names the given files and folders" in text
    assert "t.jsonl" in text
    assert str(tmp_path) not in text
    assert tmp_path.name not in text
    private = read_traces(private_history(tmp_path / "history"))
    draw(private, "sessions", tmp_path / "private.html")
    assert "names none of them and no folder" in (tmp_path / "private.html").read_text()


def test_the_page_of_a_private_history_names_no_project_session_or_command(tmp_path: Path) -> None:
    loaded = read_traces(private_history(tmp_path))
    draw(loaded, "claude-code sessions", tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    everything = text + json.dumps(figures(text))
    hidden = (*SECRETS, "acme", "0a1b", str(tmp_path))
    assert [secret for secret in hidden if secret in everything] == []


def test_the_same_trace_gives_the_same_page(tmp_path: Path) -> None:
    first, _, _ = page(tmp_path)
    assert first == page(tmp_path)[0]
