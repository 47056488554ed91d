"""Renders all pages, which need no network and explain their terms as docs/glossary.md does.
Templates escape by default.

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

MARKUP = re.compile(r"<(script|style)\b[^<]*(?:<(?!/\1>)[^<]*)*</\1>|<[^>]*>")
"""Scripts, styles and tags of a page."""

DEFINITION = re.compile(r"^- \*\*(.+?)\*\*: (.+)$", re.MULTILINE)
EMPHASIS = re.compile(r"\*([^*]+)\*")
TEMPLATES = files("reports") / "templates"
TERMS: dict[str, str] = {
    term: EMPHASIS.sub(r"\1", text)
    for term, text in DEFINITION.findall((TEMPLATES / "glossary.md").read_text(encoding="utf-8"))
}
"""Definitions of docs/glossary.md by term. Some terms include the words that they abbreviate."""


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
    text = MARKUP.sub(" ", rest).lower()

    def kept(entry: re.Match[str]) -> str:
        words = entry["term"].lower().partition(" (")[0].split(", ")
        found = [re.escape(word) for word in words if word in text]  # faster than the next line
        is_named = found and re.search(rf"(?<!\w)({'|'.join(found)})s?(?!\w)", text)
        return entry[0] if is_named or f'href="#{entry["id"]}"' in rest else ""

    glossary = ENTRY.sub(kept, glossary)
    return before + section + glossary + end + after


COUNT = re.compile(r" x (?<=\d x )(?=\w[^<>]*<)")
"""Matches counts of machines such as "2 x h100" in the text of a page, but not in its tags."""

HEADLINE = re.compile(r"<h1\b.*?</h1>")
TAG_OR_HYPHENATED = re.compile(r"<[^>]*>|[\w.]+(?:-[\w.]+)+[,;:)]*")


def _unbroken(headline: re.Match[str]) -> str:
    """Keep each word with a hyphen, such as "a100-80g,", on one line if it fits on one."""
    return TAG_OR_HYPHENATED.sub(
        lambda m: m[0] if m[0].startswith("<") else f'<span class="word">{m[0]}</span>', headline[0]
    )


class _Page(Template):
    """Explains only the terms that a page uses, and keeps counts of machines on one line, and words
    of the headline."""

    def render(self, *args: Any, **kwargs: Any) -> str:
        page = without_unused_terms(super().render(*args, **kwargs))
        return HEADLINE.sub(_unbroken, COUNT.sub("\u00a0x\u00a0", page))


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
    return "".join((TEMPLATES / name).read_text(encoding="utf-8") for name in names)


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
