"""Saves each figure of a report as an SVG or PDF file, in the style of a paper.

In: the `report.html` of a run folder. Out: a file per figure. The page draws its figures itself, so
this opens it in an installed Chromium, Chrome or Edge without a window; `report.html#figure=ID`
shows one figure on a sheet of its size, as light vector graphics. A library such as Kaleido needs
such a browser too.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import unquote

from reports.page.write import REPORT, write
from servers.basics.atomic import atomic_path, write_file
from servers.basics.errors import InvalidRunFolder, Unavailable

BROWSERS = (
    *("chromium", "chromium-browser", "google-chrome", "google-chrome-stable"),
    *("chrome", "microsoft-edge"),
)
FIGURE = re.compile(r'class="plot" id="([a-z0-9-]+)"')
DRAWN = re.compile(r'data-svg="data:image/svg\+xml,([^"]+)"')
TIMEOUT_S = 180
LOAD_MS = 60_000
"""Time of the page's own clock within which a figure must be drawn. The browser stops earlier if it
has nothing left to do."""


@dataclass(frozen=True, slots=True)
class Browser:
    path: str
    profile: Path
    """An empty folder, so that the browser of a person who works here is left alone."""

    def run(self, page: str, *options: str) -> str:
        """Open a page and return what the browser prints. Raise Unavailable if it fails."""
        command = [
            *(self.path, "--headless", "--disable-gpu", f"--user-data-dir={self.profile}"),
            *(["--no-sandbox"] if os.geteuid() == 0 else []),  # which it refuses to root
            *(f"--virtual-time-budget={LOAD_MS}", *options, page),
        ]
        try:
            done = subprocess.run(  # noqa: S603
                command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
            )
        except subprocess.TimeoutExpired:
            raise Unavailable(f"{self.path}: no answer within {TIMEOUT_S} s") from None
        if done.returncode:
            last = (done.stderr.strip() or "no message").splitlines()[-1]
            raise Unavailable(f"{self.path}: exit code {done.returncode}: {last}")
        return done.stdout


def pictures(run_folder: Path, form: str, out: Path) -> list[Path]:
    """Save the figures of the run's report as "svg" or "pdf". If there is no report, write it."""
    report = run_folder / REPORT
    if not report.is_file():
        write(run_folder)
    page = report.resolve().as_uri()
    save: Callable[[Browser, str, Path], None] = _save_svg if form == "svg" else _save_pdf
    paths = []
    with _browser(form) as browser:
        for figure in FIGURE.findall(report.read_text(encoding="utf-8")):
            path = out / f"{figure}.{form}"
            save(browser, f"{page}#figure={figure}", path)
            paths.append(path)
    return paths


@contextmanager
def _browser(form: str) -> Iterator[Browser]:
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        raise Unavailable(
            f"--format {form} needs Chromium, Chrome or Edge, and none is installed; install one"
            " (apt-get install chromium), or save figures with the buttons of report.html"
        )
    with TemporaryDirectory(prefix="turnstile-browser-", ignore_cleanup_errors=True) as profile:
        yield Browser(found, Path(profile))


def _save_svg(browser: Browser, page: str, path: Path) -> None:
    drawn = DRAWN.search(browser.run(page, "--dump-dom"))
    if drawn is None:
        raise InvalidRunFolder(
            f"{page.partition('#')[0]}: draws no single figures; write it again with bench report"
        )
    write_file(path, unquote(drawn[1]).encode())


def _save_pdf(browser: Browser, page: str, path: Path) -> None:
    with atomic_path(path) as partial:
        browser.run(page, "--no-pdf-header-footer", f"--print-to-pdf={partial.resolve()}")
