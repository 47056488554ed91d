"""A sweep of a person's sessions: the command, and what the run says of where they were."""

from __future__ import annotations

import base64
import gzip
import json
import re
import zipfile
import zlib
from pathlib import Path

import pytest

from servers.policies.base import SHELL_PREAMBLE
from servers.policies.context_serve import FAST_TOOLS, SLOW_TOOLS
from tests.harness.in_process import bench
from tests.lines import read_plain
from tests.sentences import mentions
from tests.traces.claude_code import answer, result, session, tool, user
from tests.traces.formats.test_claude_code import SECRETS, private_history
from tests.traces.formats.test_codex import Counter, asked, called, meta, output, said
from tests.traces.samples import SAMPLES
from traces import Program, read_traces
from traces.anonymize import KNOWN_TOOLS, anonymized

SWEEP = ("sweep", "--once", "--jps", "1", "--policies", "fcfs", "--no-capacity", "--out", "run")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_traces_can_be_arguments_of_a_sweep(tmp_path: Path) -> None:
    for name, data in SAMPLES["claude-code"].files.items():
        (tmp_path / name).write_bytes(data)
    code, out, err = bench(*SWEEP, "a.jsonl", "b.jsonl")
    assert code == 0, err
    assert out.splitlines()[1].startswith("claude-code sessions: 2 programs, 3 turns;")
    settings = (tmp_path / "run/sweep.toml").read_text()
    assert 'traces = [\n    "a.jsonl",\n    "b.jsonl",\n]' in settings


def test_an_argument_that_is_no_file_is_refused() -> None:
    code, _, err = bench(*SWEEP, "no-such-folder")
    assert code == 2
    assert "no-such-folder" in err


@pytest.mark.parametrize("option", [["--traces"], []])
def test_only_the_settings_of_a_run_name_the_folder_of_a_private_history(
    tmp_path: Path, option: list[str]
) -> None:
    project = private_history(tmp_path) / "-home-ada-acme"
    code, out, err = bench(*SWEEP[:1], *option, str(project), *SWEEP[1:])
    assert code == 0, err
    run = tmp_path / "run"
    texts = {path.name: readable(path) for path in run.rglob("*.*") if path.is_file()}
    assert str(project) in texts.pop("sweep.toml")
    everything = "\n".join([*texts.values(), out.replace(str(tmp_path), "")])
    assert [secret for secret in (*SECRETS, "-home-ada") if secret in everything] == []
    argv = json.loads(texts["sweep.json"])["made_by"]["argv"]
    assert argv == ["bench", "sweep", *option, "TRACES", *SWEEP[1:]]


def named_after_acme(folder: Path) -> Path:
    """Write a history of each agent whose sessions, files, models, sub-agents and tools of MCP
    servers are named after a company."""
    folder.mkdir()
    side = {"isSidechain": True, "agentId": "acme-7"}
    lines = [
        user("u", None, 0),
        answer("a", "u", 4, "m1", tool("t", "mcp__acme__deploy"), tool("k", "Read"), model="acme"),
        result("r", "a", 9, "t"),
        answer("b", "r", 12, "m2", tool("w", "Task", subagent_type="acme-reviewer"), new=200),
        user("x", None, 13, "find", **side),
        answer("y", "x", 15, "m4", tool("z", "mcp__acme__audit"), **side),
        result("q", "y", 16, "z", **side),
        answer("p", "q", 18, "m5", new=300, **side),
        result("s", "b", 20, "w"),
        answer("c", "s", 25, "m3", new=300),
    ]
    mine = session(*(each | {"sessionId": "acme-1"} for each in lines))
    (folder / "acme-1.jsonl").write_bytes(mine)
    (folder / "acme-broken.jsonl").write_bytes(session(user("u", None, 0, sessionId="acme-2")))
    count = Counter()
    rollout = [meta("acme-3"), asked(1), called(4, "c", "acme_deploy"), count(4.1, 100)]
    rollout += [output(6, "c"), said(9), count(9.1, 150, cached=100)]
    (folder / "rollout-acme-3.jsonl").write_bytes(session(*rollout))
    gemini = SAMPLES["gemini-cli"].files["session-a.jsonl"]
    gemini = gemini.replace(b"run_shell_command", b"acme_deploy").replace(b'"a"', b'"acme-4"')
    (folder / "session-acme-4.jsonl").write_bytes(gemini)
    return folder


PRIVATE = ("acme", "Acme", "ACME")


def readable(path: Path) -> str:
    """Return the contents of a file, decompressed, with the packed data of a page."""
    if path.suffix == ".packed":
        with zipfile.ZipFile(path) as archive:
            return "".join(repr(archive.read(name)) for name in archive.namelist())
    data = read_plain(path)
    text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode(errors="replace")
    packed = re.findall(r"<script[^>]*>(eJ[A-Za-z0-9+/=]+)<", text)
    return text + "".join(zlib.decompress(base64.b64decode(each)).decode() for each in packed)


def leaks(folder: Path) -> dict[str, list[str]]:
    texts = {f"{path}": readable(path) for path in folder.rglob("*") if path.is_file()}
    assert texts
    found = {
        name: [each for each in PRIVATE if each in name + text] for name, text in texts.items()
    }
    return {name: words for name, words in found.items() if words}


def make_everything() -> None:
    """Make every file that a history can become."""
    made = [
        (*SWEEP, "history"),
        ("report", "run"),
        *(("export", "run", "--format", f, "--out", f"out/{f}") for f in ("csv", "chrome")),
        ("compare", "run", "--save", "out/baseline.json"),
        ("traces", "convert", "history", "--out", "out/mine.jsonl"),
        ("traces", "convert", "history", "--out", "out/otel.jsonl", "--to", "otel"),
        ("traces", "convert", "--to", "packed", "history", "--out", "out/mine.packed"),
        ("traces", "fit", "history", "--out", "out/mine.toml"),
        ("traces", "inspect", "history", "--html", "out/workload.html"),
    ]
    Path("out").mkdir()
    for command in made:
        code, _, err = bench(*command)
        assert code == 0, (command, err)


def test_no_file_that_is_made_from_a_history_names_its_sessions_or_own_tools(
    tmp_path: Path,
) -> None:
    named_after_acme(tmp_path / "history")
    make_everything()
    assert leaks(tmp_path / "run") | leaks(tmp_path / "out") == {}
    assert mentions(Path("run/report.html").read_text(), "numbered", "well-known tools")
    turns = read_plain(Path("run/fcfs_jps1_seed1/turns.jsonl")).decode()
    assert '"tool-1"' in turns
    assert '"Read"' in turns
    assert [p.id for p in read_traces("out/mine.jsonl").programs] == ["p1", "p1/1", "p2", "p3"]


def test_names_are_kept_if_that_is_asked_for_and_the_page_says_so(tmp_path: Path) -> None:
    named_after_acme(tmp_path / "history")
    assert bench(*SWEEP, "--keep-names", "history")[0] == 0
    assert (
        bench(
            "traces", "convert", "--to", "packed", "history", "--keep-names", "--out", "mine.packed"
        )[0]
        == 0
    )
    assert leaks(tmp_path / "run").keys() >= {f"{tmp_path}/run/fcfs_jps1_seed1/turns.jsonl.zst"}
    assert "mcp__acme__deploy" in readable(tmp_path / "mine.packed")
    assert "kept from the private history (--keep-names)" in Path("run/report.html").read_text()


def test_inspect_prints_the_ids_of_sessions_with_their_numbers_in_runs(tmp_path: Path) -> None:
    named_after_acme(tmp_path / "history")
    _, out, err = bench("traces", "inspect", "history")
    rows = [line.split() for line in out.splitlines() if "acme-" in line]
    numbers = {row[0]: row[-1] for row in rows}
    assert numbers == {
        "acme-1": "p1",
        "acme-1/agent-acme-7": "p1/1",
        "acme-3": "p2",
        "acme-4": "p3",
    }
    assert "acme-broken.jsonl" in err


def test_names_are_equal_where_they_were_equal_in_any_file(tmp_path: Path) -> None:
    """`acme_deploy` is a tool of Codex's and of Gemini CLI's session."""
    history = named_after_acme(tmp_path / "history")
    named = _tools(read_traces(history, keep_names=True).programs)
    numbered = _tools(read_traces(history).programs)
    assert named == ["mcp__acme__deploy", "Read", "Task", "mcp__acme__audit"] + ["acme_deploy"] * 2
    assert numbered == ["tool-1", "Read", "Task", "tool-2"] + ["tool-3"] * 2


def _tools(programs: tuple[Program, ...]) -> list[str]:
    return [name for program in programs for turn in program.turns for name in turn.tools]


def test_anonymizing_what_is_numbered_changes_no_number(tmp_path: Path) -> None:
    programs = read_traces(named_after_acme(tmp_path / "history")).programs
    again = anonymized(programs)
    assert [p.id for p in again] == [p.id for p in programs]
    assert _tools(tuple(again)) == _tools(programs)


def test_tools_that_a_policy_knows_by_name_are_well_known() -> None:
    assert FAST_TOOLS | SLOW_TOOLS | set(SHELL_PREAMBLE) <= KNOWN_TOOLS
