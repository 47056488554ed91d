"""Make docs/report.png, the picture in README.md: python -m tests.docs.picture

It shows the first screen of the report of one sweep in virtual time.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from playwright.sync_api import Page, sync_playwright

from tests.docs.pages import DOCS

SWEEP = ("sweep", "--policies", "fcfs,continuum,lmcache")
"""As in docs/start.md."""
WIDTH, HEIGHT = 1400, 900


def make_report(folder: Path, *options: str) -> Path:
    """Run the sweep with more `options`; return the path of its report."""
    bench = Path(sys.executable).parent / "bench"
    subprocess.run(
        [bench, *SWEEP, *options, "--out", folder / "run"],
        cwd=folder,
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    return folder / "run/report.html"


@contextmanager
def first_screen(report: Path) -> Iterator[Page]:
    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=sandbox)
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light")
        page.goto(report.as_uri())
        page.wait_for_selector("html[data-figures=drawn]", state="attached")
        yield page
        browser.close()


if __name__ == "__main__":
    with TemporaryDirectory() as folder:
        report = make_report(Path(folder))
        with first_screen(report) as page:
            page.screenshot(path=DOCS / "report.png")
