"""Renders all pages, which need no network, and defines the terms that they explain, word for word
as in docs/glossary.md. Templates escape by default.

The data of figures is in a page as compressed base64 text, which is safe inside a `script` element;
`templates/inflate.js` decompresses it before the page has loaded. plotly.js is part of the package:
`make plotly` downloads its basic bundle, which has the traces that figures use (`scatter` and
`bar`) and is a quarter of the full bundle.
"""

from __future__ import annotations

import base64
import re
import zlib
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import orjson
from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from reports.figures.drawing import Figure
from servers.basics.atomic import write_file

ENTRY = re.compile(r' *<div id="(?P<id>[^"]+)"><dt>(?P<term>[^<]+)</dt>.*?</div>\n')
"""A term in the glossary of a page."""

TERMS: dict[str, str] = {
    "Program": "One run of an agent: turns of the model with tool calls between them.",
    "Job": "A root program together with its sub-agents. A user waits for a whole job.",
    "Turn": "One request of a program to the engine: a prompt and its output.",
    "Sub-agent": "A program that another program starts. The parent may wait for it.",
    "Tool gap": (
        "The time between the end of a turn and the start of the program's next turn, in "
        "which a tool runs."
    ),
    "Arrival process": (
        "The rule that decides when jobs arrive: Poisson, gamma, constant, recorded, or a "
        "closed loop."
    ),
    "Agents": (
        "Clients that each start a new job when their last one has ended, at once or after a think "
        "time."
    ),
    "Background": (
        "Single requests served alongside the jobs. They do not count as jobs and have their own"
        " metrics."
    ),
    "Rate (jps)": "Jobs that arrive per second.",
    "SLO": (
        "What a sustained load must meet: limits of the JCT or of latencies of turns, such as "
        "a mean JCT of at most twice that on an idle machine."
    ),
    "Capacity": (
        "The highest load that a variant sustains on a machine: a rate of jobs, or a number of "
        "agents. At a sustained load the jobs of a horizon, such as a day, or of a steady "
        "state meet the SLO."
    ),
    "Seed": (
        "The number that initialises the draw of the arrivals and, of a stream of jobs, of the "
        "programs. All variants get the same draws."
    ),
    "KV cache": (
        "Keys and values of the tokens that an engine has computed, in blocks (16 tokens on a GPU)."
    ),
    "Prefill": "Computing a prompt's tokens.",
    "Decode": "Computing output tokens one at a time.",
    "Prefix-cache hit": (
        "Prompt tokens whose KV is still in the cache, so that they are not computed again."
    ),
    "Preemption": (
        "Freeing the KV of a running turn to make room for other turns. The turn's KV is "
        "recomputed later."
    ),
    "Pin": "KV of a finished turn that a policy keeps on the device for the program's next turn.",
    "TTL (time to live)": "The time after which a pin expires.",
    "Offload": (
        "Copying KV to DRAM or SSD when it leaves the device, so that it can be reloaded "
        "instead of recomputed."
    ),
    "Reload": "Copying offloaded KV back to the device before a turn runs.",
    "Tier": "A memory to which KV is offloaded: DRAM or SSD.",
    "Virtual time": (
        "A simulated clock that advances by the step times of a profile, so that no GPU is needed."
    ),
    "Replica": "One of several servers that share the jobs of a cell.",
    "Router": "Decides which replica serves a turn, or holds the turn back for a while.",
    "Policy": "The rules by which a scheduler orders turns, preempts them and keeps their KV.",
    "Variant": "A policy with or without an offload tier.",
    "Baseline": "The variant that the others are compared with.",
    "Reference": (
        "A policy that no real system can run: it knows the future, or has unlimited KV memory. It "
        "shows how much could be gained, and never wins."
    ),
    "Limited by": (
        "What keeps a capacity from being higher. KV memory, or the recovery from a burst, if fcfs "
        "with unlimited KV memory sustains more; otherwise the SLO if it is missed first, or "
        "compute if there is no steady state."
    ),
    "Lower bound": (
        "A mean JCT that no schedule of the same jobs can beat, which follows from the profile."
    ),
    "Load": "A rate, a number of agents, or another arrival process.",
    "Cell": "One variant under one load with one seed.",
    "Validity gate": (
        "A check of whether a cell's numbers can be used. A cell that fails one is marked."
    ),
    "JCT (job completion time)": (
        "The time from a job's arrival to its last token, in seconds. A mean JCT is the mean over "
        "the jobs, and of a stream of jobs over those of each seed, then over the seeds."
    ),
    "Speed-up": (
        "The baseline's mean JCT divided by the variant's, for the same programs under the "
        "same arrivals; of a stream of jobs, the geometric mean over the seeds."
    ),
    "95% CI (confidence interval)": (
        "The range that would contain the true value in 95% of repetitions with other "
        "programs and arrivals."
    ),
    "P50, P95, P99": "Percentiles. For example, 95% of the values are at most P95.",
    "TTFT (time to first token)": "The time from sending a turn to its first output token.",
    "TPOT (time per output token)": "The mean time between the output tokens of a turn.",
    "Bubble": (
        "The time that a job's turns wait in the engine's queue before they are first admitted."
    ),
    "Re-queue bubble": (
        "The part of a bubble after a program's first turn: it was served before and waits again."
    ),
    "Recomputed prefill": (
        "Computing prompt tokens again that the program's previous turn contained, because "
        "their KV is gone."
    ),
    "Preemption loss": "The time from a turn's preemption until its lost KV is recomputed.",
    "Hit ratio": "Prompt tokens that were prefix-cache hits divided by all prompt tokens.",
    "Saturation": (
        "The state in which jobs arrive faster than they finish, so that the mean JCT grows "
        "with the length of the run."
    ),
    "Client lateness": (
        "The delay between the time at which a turn was due and the time at which it was sent."
    ),
    "Slowdown": (
        "A job's JCT divided by the least time that it needs alone on the machine. On a live "
        "server: by its JCT without waiting, reloads, recomputation and preemptions."
    ),
}
"""Definitions by term. Some terms include the words that they abbreviate."""


def _ids() -> dict[str, str]:
    """Return the ids of the definitions by term, with and without the part in parentheses; terms
    that share a definition have their own entries."""
    ids: dict[str, str] = {}
    for term in TERMS:
        short = term.partition(" (")[0]
        own = "term-" + re.sub(r"[^a-z0-9]+", "-", short.lower())
        ids |= dict.fromkeys((term, short, *short.split(", ")), own)
    return ids


IDS = _ids()


def anchor(term: str) -> str:
    """Return the id of a term's definition on a page. Raise KeyError for an unknown term."""
    return IDS[term]


def without_unused_terms(page: str) -> str:
    """Remove the terms from a page's glossary that its text neither links nor contains."""
    before, section, glossary = page.partition('<section aria-labelledby="glossary">')
    glossary, end, after = glossary.partition("</section>")
    rest = before + after
    text = re.sub(r"<(script|style)\b.*?</\1>|<[^>]*>", " ", rest, flags=re.DOTALL)

    def kept(entry: re.Match[str]) -> str:
        words = [re.escape(word) for word in entry["term"].partition(" (")[0].split(", ")]
        is_named = re.search(rf"(?<!\w)({'|'.join(words)})s?(?!\w)", text, re.IGNORECASE)
        return entry[0] if is_named or f'href="#{entry["id"]}"' in rest else ""

    glossary = ENTRY.sub(kept, glossary)
    return before + section + glossary + end + after


COUNT = re.compile(r"(?<=\d) x (?=\w[^<>]*<)")
"""Matches counts of machines such as "2 x h100" in the text of a page, but not in its tags."""


class _Page(Template):
    """Explains only the terms that a page uses, and keeps counts of machines on one line."""

    def render(self, *args: Any, **kwargs: Any) -> str:
        page = without_unused_terms(super().render(*args, **kwargs))
        return COUNT.sub("\u00a0x\u00a0", page)


def write_page(out: Path, template: str, **values: Any) -> None:
    write_file(out, page_of(template, **values).encode())


def page_of(template: str, **values: Any) -> str:
    return environment().get_template(template).render(**values)


@cache
def environment() -> Environment:
    """Return the environment. Templates include styles and scripts with `asset(NAME, …)`."""
    jinja = Environment(
        loader=PackageLoader("reports"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    jinja.template_class = _Page
    jinja.globals |= {"asset": _asset, "glossary": TERMS, "anchor": anchor}
    jinja.globals |= {"packed_plotly": packed_plotly, "packed_specs": _specs}
    return jinja


def _asset(*names: str) -> str:
    templates = files("reports") / "templates"
    return "".join((templates / name).read_text(encoding="utf-8") for name in names)


def _specs(figures: Sequence[Figure]) -> str:
    return packed({f.id: {"choice": f.choice, "specs": f.specs} for f in figures})


PLOTLY = Path(__file__).with_name("plotly-basic.min.js.gz")


def packed(value: Any) -> str:
    """Compress `value` as JSON with zlib. NaN becomes null; NumPy arrays are allowed."""
    content = orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)
    return base64.b64encode(zlib.compress(content, 9)).decode()


@cache
def packed_plotly() -> str:
    """Return the source of plotly.js, compressed with gzip. Its header has no optional fields."""
    return base64.b64encode(PLOTLY.read_bytes()).decode()
