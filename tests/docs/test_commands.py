"""Each command of README and docs works: most are run here, one page after the other. The others,
which need a server or minutes, are parsed here and run by the test that `NOT_HERE` names."""

from __future__ import annotations

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
from tests.crash import trials
from tests.crash.small_sweep import output_of
from tests.crash.trials import Warm
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
"""Commands that need vLLM, a server or minutes, by words in them, and the test that runs each."""
FEW = {"sweep": ("--programs", "5"), "experiment": ("--jps", "0.3")}
"""Options appended to a command, so that it runs fewer programs or rates."""
PRINTED = {"my_policies.py": "# my_policies.py", "my-own.toml": "title = "}
"""Files of the user that a page prints, by name, and the beginning of their code blocks."""
SERVER = "http://127.0.0.1:8000"
AGENT = """
import json, os, urllib.request
ask = {"model": "m", "messages": [{"role": "user", "content": "list it"}]}
url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
urllib.request.urlopen(urllib.request.Request(url, json.dumps(ask).encode())).read()
"""


def run_by(command: Command) -> str | None:
    """The test that runs this command, if it is not run here."""
    words = " ".join(command.words[1:])
    return next((test for named, test in NOT_HERE.items() if named in words), None)


HERE = [command for command in ALL if run_by(command) is None]


@pytest.fixture(scope="module")
def warm() -> Iterator[Warm]:
    """Forks `bench` from a process that has imported it, which saves most of each start."""
    with trials.warm() as started:
        yield started


@pytest.fixture(scope="module")
def prepared(warm: Warm, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's folder: traces, an agent, and equal runs under all names that the pages use."""
    folder = tmp_path_factory.mktemp("user")
    shutil.copytree(ROOT / "examples", folder / "examples")
    shutil.copy(ROOT / "examples/tasks.jsonl", folder)
    (folder / "my-trajectories").mkdir()
    shutil.copy(ROOT / "examples/recorded.jsonl", folder / "my-trajectories")
    (folder / "my_agent.py").write_text(AGENT)
    made = ("sweep", "--jps", "0.3", "--policies", "fcfs,continuum", "--programs", "4")
    assert warm.run(folder, (*made, "--out", "runs/main")) == 0, output_of(folder)
    for name in ("before", "after", "now", "NAME"):
        shutil.copytree(folder / "runs/main", folder / "runs" / name)
    return folder


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with threaded(serving(Upstream())) as url:
        yield url


@pytest.mark.acceptance
@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if str(page.relative_to(ROOT)) in {c.page for c in HERE}],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_the_commands_of_a_page_run_one_after_the_other(
    page: Path, bench: str, warm: Warm, prepared: Path, server: str, tmp_path: Path
) -> None:
    """The first command of each page is started as a user starts it, the others from `warm`."""
    folder = tmp_path / "user"
    shutil.copytree(prepared, folder)
    for name, beginning in PRINTED.items():
        if text := code(page, beginning):
            (folder / name).write_text(text)
    first, *others = [command for command in HERE if command.page == str(page.relative_to(ROOT))]
    words = words_here(first, folder, server)
    started = subprocess.run([bench, *words], cwd=folder, capture_output=True, text=True)
    assert started.returncode == 0, f"{first}: {words}\n{started.stdout}\n{started.stderr}"
    for command in others:
        words = words_here(command, folder, server)
        assert warm.run(folder, words) == 0, f"{command}: {words}\n{output_of(folder)}"


def words_here(command: Command, folder: Path, server: str) -> list[str]:
    words = [as_here(word, folder, server) for word in command.words[1:]]
    return words + list(FEW.get(words[0], ()) if {"--help", "list"}.isdisjoint(words) else ())


def as_here(word: str, folder: Path, server: str) -> str:
    """Fill in the names that a page leaves to its reader."""
    if word == "PATH":
        return "my-trajectories"
    if word == "python":
        return sys.executable
    if word.startswith("runs/record/"):
        return str(next(folder.glob("runs/record/*/trace.jsonl")))
    return word.replace(SERVER, server)


def leaf(words: tuple[str, ...] | list[str]) -> tuple[Any, list[str]]:
    """The command that `bench WORDS` calls, and the arguments that it gets."""
    command: Any = typer.main.get_command(app)
    rest = list(words)
    while hasattr(command, "resolve_command") and rest:
        _, command, rest = command.resolve_command(typer.Context(command), rest)
    return command, rest


@pytest.mark.parametrize("command", [c for c in ALL if run_by(c)], ids=str)
def test_a_command_that_is_run_elsewhere_is_parsed_without_an_error(
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
def test_a_command_that_a_sentence_names_exists_with_its_options(text: str) -> None:
    called, rest = leaf(text.split()[1:])
    known = {name for parameter in called.params for name in parameter.opts}
    options = {word.partition("=")[0] for word in rest if re.match("--[a-z]", word)}
    assert options <= known


def test_each_target_of_make_that_a_page_names_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in PAGES:
        named = [command.words[1:] for command in commands(page, "make")]
        named += [tuple(text.split()[1:]) for text in mentioned(page.read_text(), "make")]
        for words in named:
            assert {word for word in words if "=" not in word} <= targets, (page.name, words)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_each_link_leads_to_an_existing_file_and_heading(page: Path) -> None:
    for link in links(page):
        name, _, place = link.partition("#")
        target = page.parent / name if name else page
        assert target.exists() or target.resolve() == GENERATED, link
        assert not place or place in anchors(target), link
