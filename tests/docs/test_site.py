"""The documentation site builds without a warning, and its pages need no network."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from harness.cli.main import COMMANDS
from tests.docs.pages import DOCS, GENERATED, ROOT
from tools import agentx_picture, reference_tables
from tools import command_reference as reference
from tools.agentx import read_agentx


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built with --strict as by `make docs`."""
    folder = tmp_path_factory.mktemp("documentation")
    shutil.copy(ROOT / "mkdocs.yml", folder)
    shutil.copytree(DOCS, folder / "docs")
    (folder / GENERATED.relative_to(ROOT)).write_text(reference.page())
    zensical = Path(sys.executable).parent / "zensical"
    built = subprocess.run(
        [zensical, "build", "--strict"], cwd=folder, capture_output=True, text=True
    )
    assert built.returncode == 0, built.stdout + built.stderr
    return folder / "build/site"


def test_every_page_is_in_the_navigation(site: Path) -> None:
    nav = str(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"])
    listed = set(re.findall(r"'([\w/-]+\.md)'", nav))
    existing = {str(page.relative_to(DOCS)) for page in {*DOCS.rglob("*.md"), GENERATED}}
    assert listed == existing
    assert all((site / name).with_suffix(".html").is_file() for name in listed)


def test_no_page_loads_anything_from_the_network(site: Path) -> None:
    external = r"<(?:script|img|iframe|source)[^>]+src=\"?https?:|<link[^>]+href=\"?https?:"
    for page in site.rglob("*.html"):
        assert not re.findall(external, page.read_text()), page.name
    for style in site.rglob("*.css"):
        assert not re.findall(r"(?:@import|url\()\s*[\"']?https?:", style.read_text()), style.name


def test_the_command_line_reference_has_every_command_with_its_options() -> None:
    text = reference.page()
    headings = set(re.findall(r"^#+ `(bench[\w ]*)`$", text, re.MULTILINE))
    assert {f"bench {name}" for name in COMMANDS} <= headings
    assert {"bench traces convert", "bench traces fit"} <= headings
    assert "| `--jps RATES` |" in text
    assert "[bold]" not in text


@pytest.mark.parametrize("path", sorted(DOCS.rglob("*.md")), ids=lambda p: p.name)
def test_generated_tables_are_current(path: Path) -> None:
    text = path.read_text()
    assert reference_tables.page(text) == text, "run: make reference"


def test_the_picture_of_agentx_is_current() -> None:
    drawn = agentx_picture.picture(read_agentx())
    assert agentx_picture.FILE.read_text() == drawn, "run: make reference"


def test_every_generated_table_is_on_a_page() -> None:
    text = "".join(path.read_text() for path in DOCS.rglob("*.md"))
    found = {match[2] for match in reference_tables.TABLE.finditer(text)}
    assert found == reference_tables.tables().keys()
