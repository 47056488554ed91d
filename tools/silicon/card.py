"""Writes the card of `make silicon`: `end-to-end.html` and `end-to-end.json`.

In: points, and measurements that were left out. Out: the files, and the card to print. The page
needs no network and no script, and its template escapes names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orjson

from reports.fidelity.targets import TargetVerdict
from reports.page.environment import environment
from servers.basics.atomic import write_file
from servers.basics.phrasing import counted
from tools.silicon.errors import (
    LOADS,
    ErrorSummary,
    Point,
    by,
    judge,
    summary,
    worst,
)

TEMPLATE = Path(__file__).parent / "end-to-end.html.j2"
COLUMNS = (
    *("Rows", "TTFT: median |error|", "P90 |error|", "bias"),
    *("TPOT: median |error|", "P90 |error|", "bias"),
)
KNOWN = (
    "Rows of the public benchmark InferenceX: its scripts show the client (closed loop, ten "
    "requests per client, lengths drawn from 80% to 100% of the nominal ones, no warm-up that "
    "counts) and the flags of the server.",
    "Other rows: client and server are not public. Lengths are taken as exact, the load as a "
    "closed loop with ten requests per client, and the server's settings as vLLM's defaults.",
    "We assume that the numbers are means over requests, as in the public tool of the same "
    "authors.",
    "Step times are those of operator tables of a later vLLM than the measured one, with the CPU "
    "time per step of asynchronous scheduling, or of synchronous scheduling where the measured "
    "vLLM had that by default. A request takes no time outside the engine.",
)


@dataclass(frozen=True, slots=True)
class EndToEndCard:
    path: Path
    """The HTML file."""
    headline: str
    verdict: TargetVerdict
    points: Sequence[Point]


def write_end_to_end(
    points: Sequence[Point], left_out: Mapping[str, int], about: Mapping[str, str], out: Path
) -> EndToEndCard:
    """`points` must not be empty. `left_out` has numbers of measurements by reason."""
    verdict = judge(points)
    out.mkdir(parents=True, exist_ok=True)
    write_file(out / "end-to-end.html", _page(points, left_out, about, verdict).encode())
    write_file(out / "end-to-end.json", _json(points, left_out, about, verdict))
    return EndToEndCard(out / "end-to-end.html", headline(points, verdict), verdict, points)


def headline(points: Sequence[Point], verdict: TargetVerdict) -> str:
    found = summary(points)
    met = f"{len(verdict.checks) - len(verdict.missed)} of {len(verdict.checks)} targets met"
    return (
        f"TTFT is off by {found.ttft.median:.1%} and TPOT by {found.tpot.median:.1%} at the median "
        f"of {counted(found.rows, 'measurement')}: {met}."
    )


def pair_rows(points: Sequence[Point]) -> list[list[str]]:
    """Return the table by GPU and model."""
    found = by(points, lambda p: (p.hardware, p.model))
    return [[*pair, *_texts(each)] for pair, each in sorted(found.items())]


def load_rows(points: Sequence[Point]) -> list[list[str]]:
    """Return the table by GPU, model and load."""
    found = by(points, lambda p: (p.hardware, p.model, p.load))
    order = list(LOADS.values())
    ordered = sorted(found.items(), key=lambda item: (*item[0][:2], order.index(item[0][2])))
    return [[*group, *_texts(each)] for group, each in ordered]


def apart_rows(points: Sequence[Point]) -> list[list[str]]:
    """Return the table of dense models and others, and of public and other measurements."""
    kinds = (
        ("dense models in 16 or 8 bits", [p for p in points if p.dense]),
        ("of these, with public settings", [p for p in points if p.dense and p.public]),
        ("of these, with other settings", [p for p in points if p.dense and not p.public]),
        ("other models", [p for p in points if not p.dense]),
        ("all", list(points)),
    )
    alike: list[list[Point]] = []
    rows = []
    for name, members in kinds:
        # A row whose measurements are those of another row has the same numbers.
        if members and (members not in alike):
            rows.append([name, *_texts(summary(members))])
            alike.append(members)
    return rows


def _texts(found: ErrorSummary) -> list[str]:
    texts = [str(found.rows)]
    for errors in (found.ttft, found.tpot):
        texts += [f"{errors.median:.1%}", f"{errors.p90:.1%}", f"{errors.bias:+.1%}"]
    return texts


def worst_rows(points: Sequence[Point]) -> list[list[str]]:
    return [
        [
            f"{p.gpus} x {p.hardware}",
            p.model,
            p.engine_version or "unknown",
            f"{p.prompt_tokens} + {p.output_tokens}",
            str(p.clients),
            f"{1000 * p.measured_ttft_s:,.0f}",
            f"{1000 * p.virtual_ttft_s:,.0f}",
            f"{p.ttft_error:+.0%}",
            f"{1000 * p.measured_tpot_s:,.1f}",
            f"{1000 * p.virtual_tpot_s:,.1f}",
            f"{p.tpot_error:+.0%}",
        ]
        for p in worst(points)
    ]


WORST_COLUMNS = (
    *("GPUs", "Model", "vLLM", "Tokens", "Clients", "TTFT measured, ms", "Virtual", "Error"),
    *("TPOT measured, ms", "Virtual", "Error"),
)


def _page(
    points: Sequence[Point],
    left_out: Mapping[str, int],
    about: Mapping[str, str],
    verdict: TargetVerdict,
) -> str:
    found = summary(points)
    return (
        environment()
        .from_string(TEMPLATE.read_text(encoding="utf-8"))
        .render(
            heading=[about.get("measurements", ""), about.get("step times", "")],
            headline=headline(points, verdict),
            tiles=[
                (
                    f"{errors.median:.1%}",
                    f"median absolute error of {what}",
                    f"P90 {errors.p90:.0%}; bias {errors.bias:+.1%}",
                )
                for what, errors in (("TTFT", found.ttft), ("TPOT", found.tpot))
            ],
            checks=verdict.checks,
            caveats=KNOWN,
            tables=[
                ("Dense models apart", ("Measurements", *COLUMNS), apart_rows(points)),
                ("By GPU and model", ("GPU", "Model", *COLUMNS), pair_rows(points)),
                ("By load", ("GPU", "Model", "Clients", *COLUMNS), load_rows(points)),
                ("Largest errors", WORST_COLUMNS, worst_rows(points)),
                *_left_out(left_out),
            ],
            facts=list(about.items()),
        )
    )


def _left_out(
    left_out: Mapping[str, int],
) -> list[tuple[str, tuple[str, ...], list[list[str]]]]:
    """Return the table of measurements left out; none if all were compared."""
    rows = [[why, str(n)] for why, n in _most_first(left_out)]
    return [("Measurements left out", ("Reason", "Rows"), rows)] if rows else []


def _most_first(left_out: Mapping[str, int]) -> list[tuple[str, int]]:
    return sorted(left_out.items(), key=lambda item: -item[1])


def _json(
    points: Sequence[Point],
    left_out: Mapping[str, int],
    about: Mapping[str, str],
    verdict: TargetVerdict,
) -> bytes:
    def groups(names: Sequence[str]) -> list[dict[str, Any]]:
        found = by(points, lambda p: tuple(getattr(p, name) for name in names))
        return [
            {**dict(zip(names, group, strict=True)), **asdict(each)}
            for group, each in sorted(found.items())
        ]

    value = {
        "format": "turnstile-end-to-end-1",
        "headline": headline(points, verdict),
        "within_targets": verdict.good,
        "checks": [check._asdict() for check in verdict.checks],
        "about": about,
        "assumptions": KNOWN,
        "all": asdict(summary(points)),
        "by_model": groups(("hardware", "model")),
        "by_gpus": groups(("hardware", "model", "gpus")),
        "by_load": groups(("hardware", "model", "load")),
        "worst": [point.id for point in worst(points)],
        "left_out": dict(_most_first(left_out)),
        "points": [
            {**asdict(p), "ttft_error": p.ttft_error, "tpot_error": p.tpot_error} for p in points
        ],
    }
    return orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
