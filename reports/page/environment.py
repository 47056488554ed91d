"""Creates the Jinja environment of all pages. Templates escape by default."""

from __future__ import annotations

from importlib.resources import files

from jinja2 import Environment, PackageLoader, StrictUndefined

from reports.page.glossary import TERMS, anchor


def environment() -> Environment:
    """Return the environment. Templates include styles and scripts with `asset(NAME, …)`."""
    jinja = Environment(
        loader=PackageLoader("reports"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    jinja.globals |= {"asset": _asset, "glossary": TERMS, "anchor": anchor}
    return jinja


def _asset(*names: str) -> str:
    templates = files("reports") / "templates"
    return "".join((templates / name).read_text(encoding="utf-8") for name in names)
