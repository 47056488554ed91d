"""Renders all pages, which need no network. Templates escape by default.

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
from reports.page.glossary import TERMS, anchor, without_unused_terms
from servers.basics.atomic import write_file

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
