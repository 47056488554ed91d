"""A report as a browser has it, and what happened on the way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from playwright.sync_api import Page

DRAWN_WITHIN_MS = 180_000
"""On a machine with other work to do; playwright's own limit is 30 s."""


@dataclass(slots=True)
class Opened:
    page: Page
    complaints: list[str] = field(default_factory=list)
    """Errors and warnings of the console, and uncaught errors."""
    requests: list[str] = field(default_factory=list)


Open = Callable[..., Opened]
"""`opened(path, **context)`: the page once all its figures are drawn."""


def all_drawn(page: Page) -> None:
    page.wait_for_selector("html[data-figures=drawn]", state="attached", timeout=DRAWN_WITHIN_MS)
