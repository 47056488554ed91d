"""Open reports in a headless Chromium, from file:// and without a network.

Playwright runs an event loop, so its fixtures end with the module.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from browsing import DRAW_TIMEOUT_MS, Open, Opened, wait_until_drawn
from playwright.sync_api import Browser, sync_playwright

from reports import write_members_report, write_report
from tests.reports.make_run import make_run

ROOT = Path(__file__).parents[2]
AXE = ROOT / ".venv/axe/node_modules/axe-core/axe.min.js"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("needs Debian's chromium: apt-get install chromium")
    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=chromium, args=sandbox)
        # Its processes start with the first page, and must not look as if a test had left them.
        launched.new_page().close()
        yield launched
        launched.close()


@contextmanager
def opening(browser: Browser) -> Iterator[Open]:
    contexts = []

    def open_page(path: Path, *, before: str = "", drawn: bool = True, **options: Any) -> Opened:
        context = browser.new_context(**options)
        contexts.append(context)
        context.set_offline(True)
        report_page = Opened(context.new_page())
        report_page.page.on(
            "console", lambda message: _note(report_page, message.type, message.text)
        )
        report_page.page.on("pageerror", lambda error: report_page.complaints.append(str(error)))
        report_page.page.on("request", lambda request: report_page.requests.append(request.url))
        if before:
            report_page.page.add_init_script(before)
        report_page.page.goto(path.as_uri(), timeout=DRAW_TIMEOUT_MS)
        if drawn and report_page.page.locator("#specs").count():
            wait_until_drawn(report_page.page)
        return report_page

    yield open_page
    for context in contexts:
        context.close()


@pytest.fixture
def opened(browser: Browser) -> Iterator[Open]:
    with opening(browser) as open_page:
        yield open_page


@pytest.fixture(scope="module")
def wide(browser: Browser, report: Path) -> Iterator[Opened]:
    """The report on a laptop, opened once for the tests that leave it as it was."""
    with opening(browser) as open_page:
        yield open_page(report, viewport={"width": 1280, "height": 900})


def _note(report_page: Opened, kind: str, text: str) -> None:
    if kind in ("error", "warning"):
        report_page.complaints.append(text)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report on four variants, one of them a reference, at three rates and two seeds."""
    variants = ("fcfs", "continuum", "autellix", "clairvoyant")
    run = tmp_path_factory.mktemp("run")
    make_run(run, variants, jps=(0.05, 0.25, 0.9), seeds=(1, 2), programs=20)
    return write_report(run).path


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The overview of a sweep on two machines."""
    folder = tmp_path_factory.mktemp("several")
    machines = []
    for hardware in ("a100-80g", "h100"):
        make_run(folder / hardware, ("fcfs", "continuum"), jps=(0.05, 0.9), programs=20)
        entry = {"folder": hardware, "hardware": hardware, "model": "llama-3.1-8b"}
        machines.append(entry)
    document = {"format": "turnstile-members-1", "members": machines}
    (folder / "members.json").write_text(json.dumps(document))
    return write_members_report(folder).path


@pytest.fixture(scope="module")
def axe() -> str:
    """The source code of axe-core, which checks accessibility."""
    path = Path(os.environ.get("TURNSTILE_AXE", AXE))
    if not path.is_file():
        pytest.skip(f"needs axe-core at {path}: make test-all installs it, with npm")
    return path.read_text()
