"""Each command of README and docs is one that works: run where this machine can in a moment,
else read by the same parser, and run by the test that is named here."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from harness.cli.main import app
from tests.docs.pages import (
    GENERATED,
    PAGES,
    ROOT,
    Command,
    anchors,
    code,
    commands,
    links,
    mentioned,
)
from tests.gateway.upstream import Upstream, serving
from tests.threaded import threaded

ALL = [command for page in PAGES for command in commands(page, "bench")]
NOT_HERE = {
    "--engine vllm": "tests/real/test_sweep.py",
    "--engine vllm-virtual": "tests/real/test_vllm_virtual.py",
    "--engine http": "tests/harness/test_url_engine.py",
    "serve": "tests/real/test_launcher.py",
    "verify pins": "tests/real/test_pins.py",
    "profile": "tests/real/test_profile.py",
    "--hardware here.json": "tests/real/test_profile.py",
    "fidelity": "tests/real/test_fidelity.py",
    "gateway": "tests/gateway/test_recording.py",
    "experiment run --all": "tests/harness/test_experiment.py",
}
"""What wants a vLLM, a server, or minutes: words of a command → where that is run."""
FEW = {"sweep": ("--programs", "5"), "experiment": ("--jps", "0.3")}
"""Put behind a command: the same, on fewer programs and rates."""
PRINTED = {"my_policies.py": "# my_policies.py", "my-own.toml": "title = "}
"""Files of the user that a page prints: their names, and how they begin there."""
SERVER = "http://127.0.0.1:8000"
AGENT = """
import json, os, urllib.request
ask = {"model": "m", "messages": [{"role": "user", "content": "list it"}]}
url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
urllib.request.urlopen(urllib.request.Request(url, json.dumps(ask).encode())).read()
"""


def run_by(command: Command) -> str | None:
    """The test that runs it elsewhere."""
    words = " ".join(command.words[1:])
    return next((test for named, test in NOT_HERE.items() if named in words), None)


HERE = [command for command in ALL if run_by(command) is None]


def bench_in(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": f"{folder}:{ROOT}"}
    bench = str(Path(sys.executable).parent / "bench")
    return subprocess.run(
        [bench, *words], cwd=folder, env=environment, capture_output=True, text=True
    )


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's folder: traces, an agent, and equal runs under all names that the pages use."""
    folder = tmp_path_factory.mktemp("user")
    shutil.copytree(ROOT / "examples", folder / "examples")
    shutil.copy(ROOT / "examples/tasks.jsonl", folder)
    (folder / "my-trajectories").mkdir()
    shutil.copy(ROOT / "examples/recorded.jsonl", folder / "my-trajectories")
    (folder / "my_agent.py").write_text(AGENT)
    made = ("sweep", "--jps", "0.3", "--policies", "fcfs,continuum", "--programs", "4")
    assert bench_in(folder, *made, "--out", "runs/main").returncode == 0
    for name in ("before", "after", "now", "NAME"):
        shutil.copytree(folder / "runs/main", folder / "runs" / name)
    return folder


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with threaded(serving(Upstream())) as url:
        yield url


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if str(page.relative_to(ROOT)) in {c.page for c in HERE}],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_the_commands_of_a_page_run_one_after_the_other(
    page: Path, prepared: Path, server: str, tmp_path: Path
) -> None:
    folder = tmp_path / "user"
    shutil.copytree(prepared, folder)
    for name, beginning in PRINTED.items():
        if text := code(page, beginning):
            (folder / name).write_text(text)
    for command in [command for command in HERE if command.page == str(page.relative_to(ROOT))]:
        words = [as_here(word, folder, server) for word in command.words[1:]]
        words += FEW.get(words[0], ()) if {"--help", "list"}.isdisjoint(words) else ()
        ran = bench_in(folder, *words)
        assert ran.returncode == 0, f"{command}: {' '.join(words)}\n{ran.stdout}\n{ran.stderr}"


def as_here(word: str, folder: Path, server: str) -> str:
    """With the names that a page leaves to its reader filled in."""
    if word == "PATH":
        return "my-trajectories"
    if word == "python":
        return sys.executable
    if word.startswith("runs/record/"):
        return str(next(folder.glob("runs/record/*/trace.jsonl")))
    return word.replace(SERVER, server)


def leaf(words: tuple[str, ...] | list[str]) -> tuple[Any, list[str]]:
    """The command that `bench WORDS` calls, and what it is given."""
    command: Any = typer.main.get_command(app)
    rest = list(words)
    while hasattr(command, "resolve_command") and rest:
        _, command, rest = command.resolve_command(typer.Context(command), rest)
    return command, rest


@pytest.mark.parametrize("command", [c for c in ALL if run_by(c)], ids=str)
def test_a_command_that_wants_more_than_this_machine_has_is_read_without_complaint(
    command: Command, prepared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(prepared)
    called, rest = leaf(command.words[1:])
    called.make_context("bench", rest)
    assert (ROOT / str(run_by(command))).is_file()


SOURCES = [
    path
    for top in ("harness", "agents", "servers", "traces", "reports")
    for path in (ROOT / top).rglob("*.py")
]
NAMED = sorted(
    {
        text
        for path in [*PAGES, ROOT / "CHANGELOG.md", *SOURCES]
        for text in mentioned(path.read_text(), "bench")
        if " --help" not in text
    }
)


@pytest.mark.parametrize("text", NAMED)
def test_a_command_that_a_sentence_names_is_there_with_its_options(text: str) -> None:
    called, rest = leaf(text.split()[1:])
    known = {name for parameter in called.params for name in parameter.opts}
    options = {word.partition("=")[0] for word in rest if re.match("--[a-z]", word)}
    assert options <= known


def test_each_target_of_make_that_a_page_names_is_there() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in PAGES:
        named = [command.words[1:] for command in commands(page, "make")]
        named += [tuple(text.split()[1:]) for text in mentioned(page.read_text(), "make")]
        for words in named:
            assert {word for word in words if "=" not in word} <= targets, (page.name, words)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_each_link_leads_to_a_file_and_a_heading_of_ours(page: Path) -> None:
    for link in links(page):
        name, _, place = link.partition("#")
        target = page.parent / name if name else page
        assert target.exists() or target.resolve() == GENERATED, link
        assert not place or place in anchors(target), link
