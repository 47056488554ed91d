"""The commands of `bench traces`."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from harness.cli.commands.traces import app
from tests.sentences import mentions, without_tags
from tests.traces.formats import test_codex as codex
from tests.traces.sample import json_lines
from tests.traces.samples import SAMPLES
from traces import read_traces
from traces.files import PACKS


def bench(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_synthesize_writes_the_shipped_pack(tmp_path: Path) -> None:
    out = tmp_path / "p.jsonl.gz"
    ran = bench("synthesize", "swe-bench", "--programs", "100", "--seed", "0", "--out", out)
    assert ran.exit_code == 0, ran.output
    shipped = (PACKS / "swe-bench.jsonl.gz").read_bytes()
    assert gzip.decompress(out.read_bytes()) == gzip.decompress(shipped)


def test_inspect_prints_table_2_and_figure_5() -> None:
    shown = bench("inspect", "swe-bench")
    assert shown.exit_code == 0
    assert "turns per program" in shown.stdout
    assert "share of slowest 10%" in shown.stdout
    assert "994 synthesised" in shown.stdout
    assert "\x1b" not in shown.stdout


def test_inspect_prints_the_kept_share_once() -> None:
    assert bench("inspect", "swe-bench").stdout.count("kept") == 1


def test_a_page_is_written_and_its_headline_printed(tmp_path: Path) -> None:
    out = tmp_path / "workload.html"
    ran = bench("inspect", "swe-bench", "--html", out)
    assert ran.exit_code == 0, ran.output
    headline, page = ran.stdout.splitlines()
    assert headline.endswith("Nearest recipe: swe-bench.")
    assert page == f"page: {out}"
    assert headline in without_tags(out.read_text())


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("synthesize swe-bench --programs 1", "a.jsonl"),
        ("synthesize swe-bench --programs 1", "a.jsonl.gz"),
        ("convert {trace}", "a.jsonl"),
        ("convert {trace} --to mooncake", "a.jsonl"),
        ("convert {trace} --to weka", "folder"),
        ("convert {trace} --to packed", "a.packed"),
        ("anonymize {trace}", "a.jsonl"),
        ("fit {trace}", "a.toml"),
        ("inspect {trace}", "a.html"),
    ],
)
def test_every_command_names_an_output_that_cannot_be_written_and_the_remedy(
    tmp_path: Path, command: str, name: str
) -> None:
    trace, out = tmp_path / "trace.jsonl", tmp_path / "file" / name
    (tmp_path / "file").touch()
    bench("synthesize", "swe-bench", "--programs", "20", "--out", trace)
    option = "--html" if command.startswith("inspect") else "--out"
    ran = bench(*command.format(trace=trace).split(), option, out)
    assert ran.exit_code == 2
    where = rf"{tmp_path}/file(/{name})?: (file exists|not a directory); .+"
    assert re.fullmatch(rf"bench: cannot write {where}", ran.stderr.splitlines()[-1])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "trace.jsonl"]


def test_statistics_can_be_printed_as_json() -> None:
    stats = json.loads(bench("inspect", "swe-bench", "--json").stdout)["statistics"]
    assert stats["programs"] == 100
    assert stats["turns"]["mean"] == pytest.approx(10.9, rel=0.02)


def test_how_often_a_law_held_can_be_printed_as_json(tmp_path: Path) -> None:
    count = codex.Counter()
    lines = codex.meta("a"), codex.asked(1), codex.said(4), count(4, 500)
    (tmp_path / "rollout.jsonl").write_bytes(json_lines(*lines))
    laws = json.loads(bench("inspect", tmp_path, "--json").stdout)["laws"]
    assert laws["totals"] == {"checked": 1, "failed": 0}


def test_inspect_lists_repairs_and_rejections_with_file_and_reason(tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text("{}")
    request = {"t": 0, "in": 90, "out": 0, "hash_ids": [1]}
    (tmp_path / "good.json").write_text(json.dumps({"id": "s", "requests": [request]}))
    shown = bench("inspect", tmp_path)
    assert shown.exit_code == 0
    counts = "1 program (0 sub-agents)", "1 weka file", "3 repairs, 1 rejection"
    assert mentions(shown.stdout, *counts)
    assert "rejected: bad.json: unknown format" in shown.stderr
    assert mentions(shown.stderr, "repaired: good.json", "0 output tokens: set to 1")
    as_json = json.loads(bench("inspect", tmp_path, "--json").stdout)
    assert as_json["rejections"][0]["file"] == "bad.json"
    assert as_json["programs"][0]["id"] == "s"


def test_a_converted_trace_has_the_same_programs(tmp_path: Path) -> None:
    out = tmp_path / "again.jsonl"
    assert bench("convert", "swe-bench", "--out", out).exit_code == 0
    assert read_traces(out).programs == read_traces("swe-bench").programs


@pytest.mark.parametrize(
    "arguments",
    [
        ("inspect", "no-such-pack"),
        ("inspect", "/no/such/file"),
        ("convert", "swe-bench", "--out", "x.csv"),
        ("convert", "swe-bench", "--out", "/dev/null/x.jsonl"),
        ("synthesize", "nope", "--out", "x.jsonl"),
        ("inspect", "swe-bench", "--html", "x.pdf"),
        ("inspect", "swe-bench", "--html", "x.html", "--json"),
        ("fit", "swe-bench"),
        ("fit", "--out", "x.toml"),
        ("fit", "swe-bench", "--out", "x.toml", "--seed", "1"),
        ("fit", "--check", "mini-swe-agent", "--out", "x.toml"),
        ("convert", "swe-bench", "--to", "packed", "--out", "x.jsonl"),
        ("convert", "swe-bench", "--to", "packed", "--programs", "2", "--out", "x.packed"),
        ("convert", "swe-bench", "--to", "pack", "--out", "x.packed"),
        ("anonymize", "swe-bench"),
        ("anonymize", "swe-bench", "--json", "--out", "x.jsonl"),
        ("anonymize", "--check", "a.jsonl", "b.jsonl"),
        ("anonymize", "--check", "a.jsonl", "--out", "x.jsonl"),
        ("synthesize", "execution-note", "--output-tokens", "7", "--out", "x.jsonl"),
    ],
)
def test_invalid_input_gives_one_line_and_exit_code_2(
    arguments: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    answer = bench(*arguments)
    assert answer.exit_code == 2
    assert answer.stdout == ""
    assert answer.stderr.count("\n") == 1
    assert answer.stderr.startswith("bench: ")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["inspect", "convert", "synthesize", "fit", "anonymize"])
def test_help_contains_an_example(command: str) -> None:
    assert f"bench traces {command}" in bench(command, "--help").stdout


def test_a_format_can_be_given_for_all_files(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(SAMPLES["turnstile"].files["a.jsonl"])
    assert bench("inspect", tmp_path, "--format", "turnstile").exit_code == 0
    wrong = bench("inspect", tmp_path, "--format", "wekka")
    assert wrong.exit_code == 2
    assert mentions(wrong.output, "--format wekka", "did you mean weka?")


def test_a_fitted_recipe_is_drawn_from_and_compared_with_its_set(tmp_path: Path) -> None:
    recipe, out = tmp_path / "mine.toml", tmp_path / "drawn.jsonl"
    ran = bench("fit", "swe-bench", "--out", recipe, "--set", "a pack", "--licence", "MIT")
    assert ran.exit_code == 0, ran.output
    assert mentions(ran.stdout, f"{recipe}", "100 programs of a pack", "0 files rejected")
    assert bench("synthesize", recipe, "--programs", "3", "--out", out).exit_code == 0
    assert len(read_traces(out).programs) == 3
    shown = bench("fit", "--check", recipe, "--programs", "200")
    assert shown.exit_code == 0, shown.output
    turns = next(line for line in shown.stdout.splitlines() if line.startswith("turns"))
    assert turns.split()[:4] == ["turns", "100", "10.94", "(+0%)"]
    against = json.loads(bench("fit", "--check", recipe, "swe-bench", "--json").stdout)
    assert against["distances"][0]["real"]["count"] == 100


def test_published_statistics_need_files_to_be_compared_with() -> None:
    ran = bench("fit", "--check", "swe-bench")
    assert ran.exit_code == 2
    assert mentions(ran.stderr, "swe-bench is not fitted", "give files")


def test_a_recipe_must_be_a_toml_file(tmp_path: Path) -> None:
    ran = bench("fit", "swe-bench", "--out", tmp_path / "mine.json")
    assert ran.exit_code == 2
    assert "must end in .toml" in ran.stderr


def test_a_recipe_is_named_after_its_file(tmp_path: Path) -> None:
    recipe = tmp_path / "my agent, May.toml"
    assert bench("fit", "execution-note", "--out", recipe).exit_code == 0
    assert 'name = "my-agent-May"' in recipe.read_text()


def test_a_recipe_of_a_private_history_does_not_name_its_folder(tmp_path: Path) -> None:
    folder, recipe = tmp_path / "acme-merger", tmp_path / "mine.toml"
    folder.mkdir()
    for name, data in SAMPLES["claude-code"].files.items():
        (folder / name).write_bytes(data)
    assert bench("fit", folder, "--out", recipe).exit_code == 0
    assert "claude-code sessions" in recipe.read_text()
    assert "acme" not in recipe.read_text()


def test_a_recipe_that_is_given_as_a_trace_is_named_with_what_to_do(tmp_path: Path) -> None:
    recipe = tmp_path / "mine.toml"
    assert bench("fit", "execution-note", "--out", recipe).exit_code == 0
    ran = bench("inspect", recipe)
    assert ran.exit_code == 2
    remedy = "bench traces synthesize mine.toml --out programs.jsonl.gz"
    assert mentions(ran.stderr, "a recipe", "not a trace", remedy)


def test_settings_that_are_given_as_a_trace_are_named_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "sweep.toml").write_text('engine = "sim"\n')
    ran = bench("inspect", tmp_path / "sweep.toml")
    assert ran.exit_code == 2
    assert mentions(ran.stderr, "not a trace", "bench sweep FILE")
