"""A report in a browser, with the errors and requests of loading it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from playwright.sync_api import Page

DRAW_TIMEOUT_MS = 180_000
"""Enough for a busy machine; playwright's default is 30 s."""


@dataclass(slots=True)
class Opened:
    page: Page
    complaints: list[str] = field(default_factory=list)
    """Errors and warnings of the console, and uncaught errors."""
    requests: list[str] = field(default_factory=list)


Open = Callable[..., Opened]
"""`opened(path, **context)` returns the page once all its figures are drawn."""


def wait_until_drawn(page: Page) -> None:
    page.wait_for_selector("html[data-figures=drawn]", state="attached", timeout=DRAW_TIMEOUT_MS)


def names(page: Page, figure: str) -> list[str]:
    """Return the names at the ends of lines."""
    return page.locator(f"#{figure} .annotation-text").all_text_contents()


def problems_on(page: Page, axe: str) -> list[str]:
    """Return the accessibility problems that axe-core finds."""
    page.evaluate(axe)
    found: list[dict[str, Any]] = page.evaluate("axe.run().then(r => r.violations)")
    return [
        f"{v['id']}: {node['target']} {node['failureSummary']}"
        for v in found
        for node in v["nodes"]
    ]
