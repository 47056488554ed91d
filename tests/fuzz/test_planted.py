"""Markup, scripts, formulas and terminal codes in every text of a run have no effect in a page, a
table, an export or a terminal."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from harness.cli.main import app
from reports.exports.write import export
from reports.page.write import write
from reports.run_folder.read import load_run
from reports.table import escape_formula, is_formula
from servers.basics.errors import InvalidRunFolder
from servers.basics.text import has_control
from tests.fuzz import injected
from tests.fuzz.samples import turn
from tests.lines import read_plain
from tests.reports.make_run import write_cell, write_lines, write_sweep
from traces import Program, Turn, read_traces
from traces.formats.native import program_line

MARKUP = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "</script><svg onload=alert(1)>",
    "<a href='javascript:alert(1)'>x</a>",
    "{{ 7 * 7 }}{% raw %}",
    "=HYPERLINK(1)",
    "%{y}<b onclick=x>",
)
CODES = "\x1b[2J\x1b]0;title\x07\u202e\r\n"


def planted(run: Path, text: str) -> Path:
    """Write a run in which every free text is `text`; ids contain it."""
    tools = [turn("p" + text, k, 2.0 * k, job_id="p" + text, tools=[text]) for k in range(3)]
    tools[2] |= {"gap_provenance": text}
    failed = turn("q", 0, 0.2, job_id="q", error=text)
    name = "mine" + text
    workload = {
        "name": text,
        "programs": 1,
        "turns": 4,
        "trace_sha256": text,
        "gap_provenance": {text: 3},
        "left_out": [{"program_id": text, "reason": text}],
    }
    common: dict[str, Any] = {
        "engine": text,
        "hardware": text,
        "model": text,
        "arrivals": text,
        "workload": workload,
        "agent": {"name": text, "version": text},
    }
    write_sweep(
        run,
        ["fcfs", name],
        **common,
        rejected_files=[{"file": text, "reason": text}],
        repairs=[{"file": text, "reason": text}],
        left_out=[{"name": text, "reason": text}],
        profile={"provenance": text, "hardware": text},
        limits={text: text},
        turnstile_version=text,
        code_sha256=text,
        made_by={"argv": [text], "python": text},
    )
    for variant in ("fcfs", name):
        cell = write_cell(run, variant.replace(text, "x"), [*tools, failed], **common)
        config = orjson.loads((cell / "cell.json").read_bytes()) | {"variant": variant}
        (cell / "cell.json").write_bytes(orjson.dumps(config))
        agents = [{"program_id": "p", "task_id": text, "exit_status": text, "error": text}]
        write_lines(cell / "programs.jsonl", agents)
        event = {"t": 1.0, "event": "pinned", "program_id": "p" + text, "turn": 0, "blocks": 3}
        write_lines(cell / "engine.jsonl", [event | {"why": {"reason": text}, "reason": text}])
    broken = write_cell(run, "broken", [failed], done=False)
    (broken / "failed.json").write_bytes(orjson.dumps({"error": text, "traceback": text}))
    return run  # fmt: skip


@pytest.mark.parametrize("text", MARKUP)
def test_no_text_of_a_run_is_markup_in_its_report(text: str, tmp_path: Path) -> None:
    page = write(planted(tmp_path / "run", text)).path.read_text()
    injected.check_markup(page)
    assert "mine" in page


def test_the_search_for_markup_finds_it() -> None:
    for html in ("<img>", "<p onclick='x'>", "<a href='javascript:x'>", "<script></script>" * 9):
        with pytest.raises(AssertionError):
            injected.check_markup(html)


@pytest.mark.parametrize("text", [*MARKUP, "+1", "-1", "@x", "  =1", "\uff1d1", "\t=1"])
def test_no_text_becomes_a_formula_in_a_table(text: str, tmp_path: Path) -> None:
    run = planted(tmp_path / "run", text) if text != "\t=1" else _with_ids(tmp_path / "run", text)
    write(run)
    export(run, "csv", run / "export")
    tables = [run / "cells.csv", run / "export" / "turns.csv", run / "export" / "jobs.csv"]
    for table in tables:
        with table.open(newline="") as file:
            for value in (value for row in csv.reader(file) for value in row):
                assert not is_formula(value) or _is_number(value), (table.name, value)


INVISIBLE = ["", " ", "   ", "\t", "\r", "\n", "\u00a0", "\u3000", "\ufeff", "\u200b", "\x00"]
SIGNS = "=+-@\uff1d\uff0b\uff0d\uff20\ufe66\ufe62\ufe63\ufe6b"
"""The signs, in full width and in small forms."""


@given(st.lists(st.sampled_from(INVISIBLE), max_size=4), st.sampled_from(SIGNS), st.text())
def test_a_formula_begins_with_a_quote_whatever_its_width_and_the_blanks_before_it(
    before: list[str], sign: str, rest: str
) -> None:
    text = "".join(before) + sign + rest
    assert escape_formula(text) == "'" + text


@given(st.characters(categories=("L", "N")), st.text())
def test_text_that_begins_with_a_letter_or_a_digit_is_exported_as_it_is(
    first: str, rest: str
) -> None:
    assert escape_formula(first + rest) == first + rest


def _with_ids(run: Path, text: str) -> Path:
    write_sweep(run, ["fcfs"])
    write_cell(run, "fcfs", [turn(text, 0, 0.0, job_id=text, error=None)])
    return run


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def test_exports_for_viewers_are_valid_json_whatever_the_texts(tmp_path: Path) -> None:
    run = planted(tmp_path / "run", MARKUP[0])
    done = export(run, "chrome", run / "export")
    assert done.paths
    assert all(json.loads(path.read_text()) for path in done.paths)
    assert all(path.is_relative_to(run / "export") for path in done.paths)


def test_names_with_terminal_codes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRunFolder, match="control characters") as refused:
        load_run(planted(tmp_path / "run", CODES))
    assert not has_control(str(refused.value))


def test_a_verdict_is_markdown_without_markup(tmp_path: Path) -> None:
    run = planted(tmp_path / "run", "<b>&]]>|`x`")
    markdown = tmp_path / "v.md"
    command = ["compare", str(run), str(run), "--markdown", str(markdown)]
    CliRunner().invoke(app, command)
    assert "<b>" not in markdown.read_text()


def test_control_characters_in_a_trace_are_escaped(tmp_path: Path) -> None:
    usage = {"prompt_tokens": 9, "completion_tokens": 9}
    message = {
        "role": "assistant",
        "content": f"```bash\n{CODES}ls\n```",
        "extra": {"response": {"usage": usage, "created": 1.7e9}},
    }
    document = {"instance_id": f"a{CODES}b", "messages": [message, message, CODES], CODES: 1}
    path = tmp_path / "a\x1b[31mb.json"
    path.write_text(json.dumps(document))
    (tmp_path / "bad\x1b[31m.json").write_text(json.dumps({CODES: 1}))
    shown = CliRunner().invoke(app, ["traces", "inspect", str(tmp_path)])
    assert shown.exit_code == 0, shown.output
    assert not has_control((shown.stdout + shown.stderr).replace("\n", ""))
    refused = CliRunner().invoke(app, ["sweep", "--traces", str(tmp_path / "no\x1b[31m")])
    assert refused.exit_code == 2
    assert not has_control(refused.stderr.replace("\n", ""))  # fmt: skip


def test_program_ids_cannot_name_folders_outside_the_run(tmp_path: Path) -> None:
    trace = tmp_path / "a.jsonl"
    trace.write_bytes(program_line(Program("../../escaped", (Turn(100, 5), Turn(150, 5)))))
    out = tmp_path / "runs" / "one"
    command = ["sweep", "--traces", str(trace), "--policies", "fcfs", "--jps", "0.5", "--once"]
    done = CliRunner().invoke(app, [*command, "--programs", "1", "--out", str(out)])
    assert done.exit_code == 0, done.output
    turns = out / "turns.jsonl"
    turns.write_bytes(read_plain(out / "fcfs_jps0.5_seed1" / "turns.jsonl"))
    assert read_traces(turns).programs[0].id == "../../escaped"
    assert {path.name for path in tmp_path.iterdir()} == {"a.jsonl", "runs"}
