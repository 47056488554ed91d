"""Check that data has not injected markup into a page: elements, attributes or addresses that our
templates do not have, also in the texts for plotly, which interprets a few tags."""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Any

ELEMENTS = frozenset(
    word
    for line in (
        "html head meta title style body header main section nav footer div p ul li dl dt dd",
        "h1 h2 h3 span strong em b i small a pre code table caption thead tbody tr th td button",
        "select option label figure figcaption svg rect path noscript details summary script",
    )
    for word in line.split()
)
ALLOWED_MARKUP = re.compile(r"</?(b|br|extra|i|span|sub|sup)>|&[a-z#0-9]+;")
"""The part of plotly's markup that we use, without attributes."""
SCRIPTS = 5
"""The number of our own scripts: the figures' data, plotly, one unpacks them, two draw."""


class Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.scripts = 0
        self.specs = ""
        self._in_specs = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in ELEMENTS, f"an element <{tag}>"
        attributes = dict(attrs)
        self.scripts += tag == "script"
        self._in_specs = tag == "script" and attributes.get("id") == "specs"
        for name, value in attrs:
            assert re.fullmatch(r"[a-zA-Z-]+", name), f"an attribute {name}"
            assert not name.startswith("on"), f"a handler {name}={value}"
            if name in ("href", "src"):
                assert (value or "").startswith(("#", "data:")), f"an address {value}"

    def handle_data(self, data: str) -> None:
        if self._in_specs:
            self.specs += data

    def handle_endtag(self, tag: str) -> None:
        self._in_specs = self._in_specs and tag != "script"


def check_markup(html: str) -> None:
    page = Page()
    page.feed(html)
    page.close()
    assert page.scripts <= SCRIPTS, f"{page.scripts} scripts"
    if page.specs:
        for text in _shown(json.loads(zlib.decompress(base64.b64decode(page.specs)))):
            assert "<" not in ALLOWED_MARKUP.sub("", text), f"markup for plotly: {text[:200]}"


def _shown(value: Any, key: str = "") -> Iterator[str]:
    """Yield the texts that plotly draws, without those for comparisons and attributes."""
    if isinstance(value, dict):
        for name, inner in value.items():
            if name not in ("meta", "alt", "note", "y", "choice", "rows"):
                yield from _shown(inner, name)
        yield from (label for _, label in value.get("rows") or ())
    elif isinstance(value, list):
        for inner in value:
            yield from _shown(inner, key)
    elif isinstance(value, str):
        yield value
