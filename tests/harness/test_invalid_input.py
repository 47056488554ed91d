"""Invalid options give one line on stderr and exit code 2, and leave no file."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from small import programs
from typer.testing import CliRunner

from harness.cli.main import app
from harness.sweep.resolve import refuse_same_folder
from servers.basics.errors import InvalidInput
from traces import Program, Turn
from traces.formats.native import write_programs


@pytest.fixture
def trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The path of a valid trace, next to the empty folder in which the tests run."""
    working_directory = tmp_path / "working_directory"
    working_directory.mkdir()
    monkeypatch.chdir(working_directory)
    write_programs(tmp_path / "good.jsonl", programs(3))
    return str(tmp_path / "good.jsonl")


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ("--policies contineum", r"no policy is called 'contineum'.*continuum"),
        (
            "--policies continuum(windw=3)",
            r"continuum\(windw=3\): windw is not an argument of continuum; did you mean window\?",
        ),
        ("--policies fcfs,continuum(k=x)", r"continuum\(k=x\): k must be a whole number, not x"),
        ("--policies continuum(k=3", r"--policies continuum\(k=3: write NAME or NAME\(argument"),
        (
            "--policies fcfs,continuum(k=3) --baseline continuum(k=4)",
            r"--baseline continuum\(k=4\): not among the policies .* did you mean continuum\(k=3\)",
        ),
        ("--policies fcfs,fcfs", "fcfs is given twice"),
        ("--slo mean<=2x --slo p95<=300s", "--slo is given twice; give all limits in one"),
        (
            "--policies my.module:Nothing",
            "my.module:Nothing: the import failed with Mod",
        ),
        ("--hardware a100-80", "--hardware a100-80: unknown; did you mean a100-80g"),
        ("--hardware a100", r"a100: unknown; did you mean a100-40g or a100-80g\? \(known: a100"),
        ("--hardware none.toml", "none.toml: no such file or directory; give a file that descr"),
        ("--hardware gaudi2", r"--hardware gaudi2: unknown \(known: a100-40g, "),
        ("--model llama-3-8b", "--model llama-3-8b: unknown; did you mean llama-3.1-8b"),
        ("--gpus 3", "--gpus 3: .*use 1, 2, 4 or 8"),
        ("--hardware a100-80g --model llama-3.1-70b --gpus 1", "does not fit on 1 x a100-80g"),
        ("--jps 0", "--jps '0': a rate or step of zero"),
        ("--jps -0.5", "--jps '-0.5': .*not a positive number"),
        ("--jps 0.9..0.1", r"--jps '0.9..0.1': the range is reversed; use 0.1..0.9"),
        ("--jps 0.3 --arrivals closed:4", "closed:4 sets the load itself; remove --jps"),
        (
            "--arrivals recorded --seeds 1..3",
            "--seeds 1..3: with --arrivals recorded a seed draws n",
        ),
        (
            "--arrivals closed:2 --seeds 1..3",
            "--seeds 1..3: with --arrivals closed:2 and jobs that are all alike a seed draws n",
        ),
        (
            "--arrivals closed:4 --programs 8 --seeds 1..3",
            "--seeds 1..3: with --arrivals closed:4 and jobs that are all alike a seed draws n",
        ),
        (
            "--once --jps 1 --programs 1 --seeds 1,2",
            "--seeds 1,2: with one job a seed draws nothing, .* --arrivals poisson without --once$",
        ),
        ("--arrivals bursts", "--arrivals 'bursts': use poisson"),
        (
            "--engine gpu",
            "--engine gpu: no engine .* sglang-virtual, dynamo-mocker; or give the URL of",
        ),
        (
            "--max-model-len 1000",
            r"job-0, turn 1: 1000 .* 50 output .* the 1000 .* increase --max-model-len$",
        ),
        (
            "--kv-blocks 50",
            r"job-0, turn 1: 1000 .* 50 output .* the 800 .*; increase --kv-blocks$",
        ),
        ("--max-num-seqs 0", "--max-num-seqs 0: must be at least 1"),
        ("--step-tokens 100", "--step-tokens 100 is less than --max-num-seqs 256: .*change one"),
        ("--step-tokens 0", "--step-tokens 0: must be at least 1"),
        ("--policies os:path", "os:path: is not a class; derive one from"),
        (
            "--hardware ../good.jsonl",
            r"--hardware ../good.jsonl: the name of a profile must end in .json",
        ),
        ("extra", "extra: flags for vLLM, not supported by --engine sim; .*traces .* --traces"),
        ("--offload-gb 0", "--offload-gb 0: must be positive for lmcache, "),
        ("--offload-gb inf", "--offload-gb inf: must be from 0 to 1,000,000 GB"),
        ("--policies continuum --baseline fcfs", "--baseline fcfs: not among the policies"),
        (
            "--baseline unlimited-kv",
            "--baseline unlimited-kv: runs on another .*; use fcfs",
        ),
        ("--workers 0", "--workers 0: must be at least 1"),
        ("--traces nowhere.json", "nowhere.json: no such file, folder or pack"),
        (
            "--engine http://127.0.0.1:9 --admission first-chunk",
            "--admission first-chunk: not supported by --engine http://127.0.0.1:9, whose server",
        ),
        (
            "--engine http://127.0.0.1:9 --long-prefill 512",
            "--long-prefill 512: not supported by --engine http://127.0.0.1:9, whose server has",
        ),
        (
            "--engine sglang --watermark 0.1",
            "--watermark 0.1: not supported by --engine sglang, whose scheduler is not vLLM's and "
            "has no such setting; remove it",
        ),
        (
            "--policies fcfs(watermark=2)",
            r"--policies fcfs\(watermark=2.0\): --watermark 2: must be",
        ),
        (
            "--engine http://127.0.0.1:9 --scheduling sync",
            "--scheduling sync: not supported by --engine http://127.0.0.1:9, which has its own "
            "step times; remove it, and start vLLM with --no-async-scheduling instead",
        ),
        (
            "--engine http://127.0.0.1:9 --kv-cache-dtype fp8",
            "--kv-cache-dtype fp8: not supported by --engine http://127.0.0.1:9, whose server has",
        ),
        ("--out /dev/null", "--out /dev/null: is a file"),
        ("--out /dev/null/run", "cannot write /dev/null/run: not a directory"),
        ("--out /proc/run", "cannot write /proc/run: "),
        (
            "--router sticky",
            r"--router sticky: distributes turns over several replicas; add",
        ),
        ("--replicas 2 --router stiky", r"no router is called 'stiky'; did you mean sticky\?"),
        ("--replicas 2 --router sticky(k=1)", r"k is not an argument of sticky, which takes"),
        ("--engine vllm-virtual --router sticky", r"--router: not supported by --engine vllm-virt"),
        ("--out ..", r"--out \.\.: contains files that are not a run"),
    ],
)
def test_an_invalid_option_is_refused_in_one_line_and_leaves_no_file(
    options: str, line: str, trace: str
) -> None:
    arguments = options.split()
    assert_refused(
        ["sweep", *([] if "--traces" in arguments else ["--traces", trace]), *arguments], line
    )


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ("--seeds 5..1", "--seeds '5..1': the range is reversed"),
        ("--jps 0.1,fast", "--jps '0.1,fast': 'fast' is not a positive number"),
        ("--jps 0.3 --agents 4", "--jps 0.3: --arrivals agents has no rate"),
        ("--agents 4x", "--agents '4x': '4x' is not a whole number"),
        ("--slo p95<=3x,men<=3x", "--slo 'p95<=3x,men<=3x': "),
        ("--slo mean<=3x --once", "--slo 'mean<=3x': needs jobs that go on arriving"),
        ("--horizon 3x", "--horizon '3x': "),
        ("--price b200=1", "--price b200=1: no run is on this hardware"),
        ("--api-price 1,2", "--api-price 1,2: must be three prices"),
        ("--baseline fcsf", "--baseline fcsf: .*did you mean fcfs"),
    ],
)
def test_what_needs_no_traces_is_refused_before_they_are_read(
    options: str, line: str, trace: str
) -> None:
    missing = str(Path(trace).with_name("missing.jsonl"))
    assert_refused(["sweep", "--traces", missing, *options.split()], line)


def assert_refused(command: list[str], line: str) -> None:
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 2, result.stderr
    complaints = result.stderr.splitlines()
    assert len(complaints) == 1
    assert re.search(line, complaints[0]), complaints[0]
    assert result.stdout == ""
    assert os.listdir() == []


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ("not JSON at all", r"bad\.jsonl"),
        ('{"format": "turnstile-trace-1", "id": "a", "turns": []}', r"bad\.jsonl: line 1: turns"),
        (
            '{"format": "turnstile-trace-1", "id": "a", "turns": [{"prompt_tokens": -1}]}',
            r"bad\.jsonl: line 1: turns\.0\.prompt_tokens is -1",
        ),
    ],
)
def test_a_malformed_trace_is_named_by_file_line_and_field(
    content: str, line: str, trace: str
) -> None:
    bad = Path(trace).with_name("bad.jsonl")
    bad.write_text(content)
    assert_refused(["sweep", "--traces", str(bad)], line)


def test_overlong_jobs_are_refused_with_overlong_refuse(trace: str) -> None:
    """One of the four programs has a turn of 10,000 tokens."""
    long = Program("long", (Turn(9_000, 1_000),))
    write_programs(Path(trace), [*programs(3), long])
    assert_refused(
        ["sweep", "--traces", trace, "--max-model-len", "5000", "--overlong", "refuse"],
        r"program long, turn 0: 9000 prompt \+ 1000 output tokens are more than the 5000 ",
    )


def test_one_cell_is_not_run_from_settings_of_several(trace: str) -> None:
    assert_refused(
        ["sweep", "--one", "--policies", "fcfs", "--jps", "0.1,0.3", "--traces", trace],
        "these settings have 2 cells: give one rate with --jps, or remove --one",
    )


def test_policies_that_would_share_a_folder_are_refused() -> None:
    refuse_same_folder(["fcfs", "mine(order=by_turn)", "mine(order=by_turn)+"])
    with pytest.raises(InvalidInput, match="the same folder, mine-order-by-turn"):
        refuse_same_folder(["mine(order=by_turn)", "mine(order='by turn')"])
