"""Creates the Jinja environment of all pages. Templates escape by default."""

from __future__ import annotations

import re
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from reports.page.glossary import TERMS, anchor, without_unused_terms

COUNT = re.compile(r"(?<=\d) x (?=\w[^<>]*<)")
"""Matches counts of machines such as "2 x h100" in the text of a page, but not in its tags."""


class _Page(Template):
    """Explains only the terms that a page uses, and keeps counts of machines on one line."""

    def render(self, *args: Any, **kwargs: Any) -> str:
        page = without_unused_terms(super().render(*args, **kwargs))
        return COUNT.sub("\u00a0x\u00a0", page)


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
    return jinja


def _asset(*names: str) -> str:
    templates = files("reports") / "templates"
    return "".join((templates / name).read_text(encoding="utf-8") for name in names)
