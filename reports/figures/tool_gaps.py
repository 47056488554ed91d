"""Draws the distribution of tool times, one line per tool, as in Continuum v3, Fig. 5.

In: the turns of one cell. Out: a figure. A gap counts for the first tool that the program's
previous turn called, as in `bench traces inspect`. All cells of a sweep have the same gaps.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field

from reports.figures.drawing import (
    Figure,
    KeyEntry,
    Spec,
    Trace,
    distribution,
    line,
    numbers,
    plain,
    short,
)
from reports.figures.styles import FIRST_COLOUR
from reports.run_folder.lines import read_records
from reports.run_folder.read import CellRun
from servers.basics.phrasing import counted, listed, seconds, share
from servers.records.turns import TurnRecord

NO_TOOL_TIMES = "Tool times are not drawn: no tool took any time."
MAX_TOOLS = 8
MAX_POINTS = 120
DASHES = ("solid", "dash")


@dataclass(slots=True)
class Gaps:
    """The tool gaps of a cell."""

    by_tool: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    """Seconds."""
    provenance: Counter[str] = field(default_factory=Counter)
    pauses: int = 0
    """Gaps after a turn that called no tool."""
    of_sub_agents: int = 0
    """Gaps after a tool in sub-agents."""


def tool_gaps(cell: CellRun) -> Figure | None:
    """Return the figure, or None if no tool took any time. `turns.jsonl` must be valid."""
    gaps = _read(cell)
    if not any(map(any, gaps.by_tool.values())):
        return None
    by_time = sorted(gaps.by_tool.items(), key=lambda tool: (-sum(tool[1]), tool[0]))
    shown = by_time[:MAX_TOOLS]
    looks = [(f"s{FIRST_COLOUR + k}", DASHES[k % len(DASHES)]) for k in range(MAX_TOOLS)]
    key = tuple(
        KeyEntry(*look, f"{short(name)}, {counted(len(own), 'call')}")
        for (name, own), look in zip(shown, looks, strict=False)
    )
    spec: Spec = {
        "data": [_line(name, own, *look) for (name, own), look in zip(shown, looks, strict=False)],
        "layout": {
            "xaxis": {"title": {"text": "tool time, seconds"}},
            "yaxis": {"title": {"text": "share of calls"}, "range": [0, 1.02], "tickformat": ".0%"},
        },
        "alt": f"Lines, one per tool: the share of its calls that ended within a time."
        f" {counted(len(by_time), 'tool')}; {shown[0][0]} took the most time.",
        "value": "x",
        "note": _note(gaps, len(by_time)),
    }
    return Figure("tool-gaps", "How long tools run", {"": spec}, True, key=key, terms=("Tool gap",))


def _read(cell: CellRun) -> Gaps:
    gaps = Gaps()
    called: dict[str, tuple[str, ...]] = {}
    for turn in read_records(cell.folder / "turns.jsonl", TurnRecord):
        tools = called.get(turn.program_id)
        called[turn.program_id] = turn.tools or ()
        if tools is None or turn.gap_s is None:
            continue
        gaps.provenance[turn.gap_provenance or "unstated"] += 1
        if tools:
            gaps.by_tool[tools[0]].append(turn.gap_s)
            gaps.of_sub_agents += turn.program_id != turn.job_id
        else:
            gaps.pauses += 1
    return gaps


def _line(name: str, gaps_s: list[float], colour: str, dash: str) -> Trace:
    values, shares = distribution(gaps_s, MAX_POINTS)
    shown = values > 0
    return line(
        *(numbers(values[shown]), numbers(shares[shown]), colour, dash),
        shape="hv",
        hover=f"<b>{plain(short(name))}</b><br>%{{y:.0%}} of calls within %{{x:,.3~r}} s",
        name=plain(name),
    )


def _note(gaps: Gaps, tools: int) -> str:
    all_s = [gap for own in gaps.by_tool.values() for gap in own]
    sources = listed([f"{n:,} {how}" for how, n in sorted(gaps.provenance.items())])
    calls = " over all calls, including sub-agents'" if gaps.of_sub_agents else ""
    sentences = [
        f"The gap after a turn counts for the first tool that it called: {seconds(_mean(all_s))}"
        f" on average{calls}. Gaps by source: {sources}."
    ]
    if tools > MAX_TOOLS:
        rest = sum(sorted(map(sum, gaps.by_tool.values()), reverse=True)[MAX_TOOLS:])
        sentences.append(
            f"The figure shows the {MAX_TOOLS} tools with the most time;"
            f" {counted(tools - MAX_TOOLS, 'other tool')} took"
            f" {share(rest / max(sum(all_s), 1e-9))} of the time."
        )
    if gaps.pauses:
        sentences.append(f"Not shown: {counted(gaps.pauses, 'gap')} after a turn without a tool.")
    return " ".join(sentences)


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)
