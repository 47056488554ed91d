"""The commands of README and docs work: these tests run most of them, page by page. Commands that
need a server or minutes are parsed here and run by the test that `RUN_ELSEWHERE` names."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import typer

from harness.cli.main import app
from servers.profiles import MODELS
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
from tests.traces.samples import SAMPLES

README = ROOT / "README.md"
ALL = [command for page in PAGES for command in commands(page, "bench")]
RUN_ELSEWHERE = {
    "--until": "tests/harness/test_until.py",
    "--slo": "tests/harness/test_capacity_search.py",
    "compare --across": "tests/reports/test_across.py",
    "compare --prometheus": "tests/reports/test_compare_servers.py",
    "plan ": "tests/harness/test_plan.py",
    "--engine vllm ": "tests/real/test_sweep.py",
    "--engine vllm-virtual": "tests/real/test_vllm_virtual.py",
    "--engine sglang ": "tests/sglang/test_engine.py",
    "--engine sglang-virtual": "tests/sglang/test_scheduling.py",
    "--engine http": "tests/harness/test_url_engine.py",
    "--engine dynamo-mocker": "tests/foreign_routers/test_dynamo_sweep.py",
    "serve --from": "tests/harness/test_recipes.py",
    "--print": "tests/harness/test_recipes.py",
    "serve": "tests/real/test_launcher.py",
    "-- claude": "tests/gateway/test_recording.py",
    "-- codex": "tests/gateway/test_recording.py",
    "doctor --pins": "tests/real/test_pins.py",
    "profile --show": "tests/harness/test_profile_cli.py",
    "profile --from": "tests/harness/test_profile_cli.py",
    "profile": "tests/real/test_profile.py",
    "--hardware here.json": "tests/real/test_profile.py",
    "fidelity": "tests/real/test_sweep.py",
    "gateway": "tests/gateway/test_recording.py",
    "experiment --all": "tests/harness/test_experiment.py",
    "experiment world-": "tests/harness/test_experiment.py",
    "--shard": "tests/harness/test_shards.py",
    "/shared/run": "tests/harness/test_shards.py",
    "--cluster": "tests/cluster/test_ray.py",
    "--synthesise-gaps": "tests/traces/test_synthesised_gaps.py",
}
"""Commands that need vLLM, a server or minutes, by part of the command: the test that runs each."""
SHORTER = {
    "sweep": ("--once", "--programs", "5", "--seeds", "1"),
    "experiment": ("--jps", "0.3", "--seeds", "1"),
}
"""Options appended to a command, so that it runs fewer programs, rates or seeds."""
NOT_ALL = {"sweep": {"--jps": "0.3", "--policies": "fcfs,continuum"}}
"""Options appended to a command without them, which would run each policy at nine rates."""
PRINTED = {
    "my_policies.py": "# my_policies.py",
    "my-own.toml": "title = ",
    "my-gpu.toml": "# my-gpu.toml",
}
"""Files of the user whose content a page shows: the beginning of the code block by file name."""
HISTORIES = {
    "~/.claude/projects": ("claude-code", "claude-projects"),
    "~/.codex/sessions": ("codex", "codex-sessions"),
}
"""Folders of an agent's sessions: their format, and the folder that has samples instead."""
SERVER = "http://127.0.0.1:8000"
AGENT = """
import json, os, urllib.request
ask = {"model": "m", "messages": [{"role": "user", "content": "list it"}]}
url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
urllib.request.urlopen(urllib.request.Request(url, json.dumps(ask).encode())).read()
"""


def covering_test(command: Command) -> str | None:
    """Return the test that runs this command, or None if it is run here."""
    words = " ".join(command.words[1:])
    return next((test for named, test in RUN_ELSEWHERE.items() if named in words), None)


RUN_HERE = [command for command in ALL if covering_test(command) is None]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's folder with traces, an agent and a model."""
    folder = tmp_path_factory.mktemp("user")
    shutil.copytree(ROOT / "examples", folder / "examples")
    shutil.copy(ROOT / "examples/tasks.jsonl", folder)
    (folder / "my-trajectories").mkdir()
    shutil.copy(ROOT / "examples/recorded.jsonl", folder / "my-trajectories")
    (folder / "calls.csv").write_text("session_id,ts,in,out,fn\na,0,100,10,ls\na,5000,150,10,\n")
    chat = {"timestamp": 0, "input_length": 100, "output_length": 10}
    (folder / "chat.jsonl").write_text(json.dumps(chat) + "\n")
    (folder / "requests.csv").write_text("in,out\n100,10\n")
    for format, sessions in HISTORIES.values():
        (folder / sessions).mkdir()
        for name, data in SAMPLES[format].files.items():
            (folder / sessions / name).write_bytes(data)
    (folder / "my_agent.py").write_text(AGENT)
    (folder / "my-model").mkdir()
    (folder / "my-model/config.json").write_text(json.dumps(dict(MODELS["qwen3-8b"].config)))
    return folder


@pytest.fixture(scope="module")
def prepared(files: Path, warm_of_session: Warm, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, with copies of one run under all names on the pages."""
    folder = tmp_path_factory.mktemp("prepared") / "user"
    shutil.copytree(files, folder)
    small_sweep = (
        "sweep",
        "--once",
        "--jps",
        "0.3",
        "--policies",
        "fcfs,continuum",
        "--programs",
        "4",
        "--out",
        "runs/main",
    )
    assert warm_of_session.run(folder, small_sweep) == 0, output_of(folder)
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
    [page for page in PAGES if str(page.relative_to(ROOT)) in {c.page for c in RUN_HERE}],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_the_commands_of_a_page_run_in_order(
    page: Path, bench: str, warm: Warm, prepared: Path, server: str, tmp_path: Path
) -> None:
    """The first command of README is started as users do, the others are forked from `warm`."""
    folder = tmp_path / "user"
    shutil.copytree(prepared, folder)
    for name, beginning in PRINTED.items():
        if text := code(page, beginning):
            (folder / name).write_text(text)
    shown = [command for command in RUN_HERE if command.page == str(page.relative_to(ROOT))]
    if page == README:
        first = shown.pop(0)
        words = arguments_of(first, folder, server)
        started = subprocess.run([bench, *words], cwd=folder, capture_output=True, text=True)
        assert started.returncode == 0, f"{first}: {words}\n{started.stdout}\n{started.stderr}"
    for command in shown:
        words = arguments_of(command, folder, server)
        assert warm.run(folder, words) == 0, f"{command}: {words}\n{output_of(folder)}"


def arguments_of(command: Command, folder: Path, server: str) -> list[str]:
    words = [fill_in(word, folder, server) for word in command.words[1:]]
    if not {"--help", "list"}.isdisjoint(words):
        return words
    if "--horizon" in words:  # --once has none
        at = words.index("--horizon")
        del words[at : at + 2]
    missing = [pair for pair in NOT_ALL.get(words[0], {}).items() if pair[0] not in words]
    return [*words, *chain.from_iterable(missing), *SHORTER.get(words[0], ())]


def fill_in(word: str, folder: Path, server: str) -> str:
    """Replace names that a page leaves to its reader."""
    if word == "PATH":
        return "my-trajectories"
    if word in HISTORIES:
        return HISTORIES[word][1]
    if word == "Qwen/Qwen3-14B":
        return "my-model"  # tests/profiles/test_model_files.py reads ids from a cache
    if word == "python":
        return sys.executable
    if word.startswith("runs/record/"):
        return str(next(folder.glob("runs/record/*/trace.jsonl")))
    return word.replace(SERVER, server)


def resolve(words: tuple[str, ...] | list[str]) -> tuple[Any, list[str]]:
    """Return the command that `bench WORDS` calls, and its arguments."""
    command: Any = typer.main.get_command(app)
    rest = list(words)
    while hasattr(command, "resolve_command") and rest:
        _, command, rest = command.resolve_command(typer.Context(command), rest)
    return command, rest


@pytest.mark.parametrize("command", [c for c in ALL if covering_test(c)], ids=str)
def test_a_command_that_is_run_elsewhere_is_valid(
    command: Command, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(files)
    called, rest = resolve(command.words[1:])
    called.make_context("bench", rest)
    assert (ROOT / str(covering_test(command))).is_file()


SOURCES = [
    path
    for top in ("harness", "agents", "servers", "traces", "reports")
    for path in (ROOT / top).rglob("*.py")
]
MENTIONED = sorted(
    {
        text
        for path in [*PAGES, *SOURCES]
        for text in mentioned(path.read_text(), "bench")
        if " --help" not in text
    }
)


@pytest.mark.parametrize("text", MENTIONED)
def test_a_command_mentioned_in_a_sentence_exists_with_its_options(text: str) -> None:
    called, rest = resolve(text.split()[1:])
    known = {name for parameter in called.params for name in parameter.opts}
    options = {word.partition("=")[0] for word in rest if re.match("--[a-z]", word)}
    assert options <= known


def test_each_make_target_mentioned_on_a_page_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in PAGES:
        named = [command.words[1:] for command in commands(page, "make")]
        named += [tuple(text.split()[1:]) for text in mentioned(page.read_text(), "make")]
        for words in named:
            assert {word for word in words if "=" not in word} <= targets, (page.name, words)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_each_link_leads_to_an_existing_file_and_heading(page: Path) -> None:
    for link in links(page):
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        assert target.exists() or target.resolve() == GENERATED, link
        assert not anchor or anchor in anchors(target), link
