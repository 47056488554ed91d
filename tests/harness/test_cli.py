"""`bench` as users run it, through its console script: commands, output and exit codes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from small import contents, programs, run_sweep, small_plan

import harness
from harness.cli import catalogue
from harness.cli.commands.list import Listing, list_
from harness.cli.main import COMMANDS, MOVED
from harness.cli.options import COMPLETIONS
from tests.crash.small_sweep import OUTPUT, output_of
from tests.crash.trials import TIMEOUT_S, Warm, wait_for_end_of
from tests.harness.in_process import bench as bench_here
from tests.processes import wait_until
from tests.sentences import mentions
from traces import Program, Turn
from traces.formats.native import write_programs

ANSI = "\x1b["
ENDLESS = ("--programs", "2000", "--once", "--jps", "5", "--policies", "fcfs", "--out", "o")
"""Options of a sweep that takes longer than its tests."""


@pytest.fixture
def trace(tmp_path: Path) -> str:
    write_programs(tmp_path / "three.jsonl", programs(3))
    return str(tmp_path / "three.jsonl")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("here")
def test_the_plan_counts_policies_and_routers(trace: str) -> None:
    options = ("--traces", trace, "--once", "--jps", "0.5", "--policies", "fcfs,continuum")
    several = ("--replicas", "2", "--router", "sticky,round-robin,least-loaded")
    code, out, _ = bench_here("sweep", *options, *several)
    assert code == 0
    plan = "three.jsonl: 3 programs, 9 turns; 2 policies x 3 routers x 1 load x 1 seed"
    assert out.splitlines()[1] == plan


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("option", [["--traces"], []])
def test_traces_need_no_option(trace: str, option: list[str]) -> None:
    load = ("--once", "--jps", "0.5", "--programs", "2", "--policies", "fcfs")
    for traces, name in ((trace, "three.jsonl"), ("execution-note", "execution-note")):
        code, out, err = bench_here("sweep", *option, traces, *load, "--out", f"{name}-run")
        assert code == 0, err
        assert out.splitlines()[1].startswith(f"{name}: 2 programs")


@pytest.mark.parametrize(
    ("file", "lines"), [("agents/__init__.py", 1), ("openai_agents/agents/__init__.py", 0)]
)
def test_each_command_says_that_openai_agents_has_overwritten_a_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, lines: int
) -> None:
    """Installed with pip into the same environment, which overwrites files silently."""
    other = tmp_path / "openai_agents-0.3.2.dist-info"
    other.mkdir()
    (other / "RECORD").write_text(f"{other.name}/METADATA,,\n{file},sha256=47DEQ,0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    code, out, err = bench_here("list", "routers")
    assert code == 0
    assert "sticky" in out
    assert len(err.splitlines()) == lines
    if lines:
        assert err.startswith(f"bench: openai-agents in {tmp_path} has a package `agents`")
        assert "pipx" in err


@pytest.mark.usefixtures("here")
def test_a_sweep_prints_its_answer_on_stdout_and_resumes(trace: str) -> None:
    load = ("--once", "--jps", "0.5")
    command = ("sweep", "--traces", trace, "--policies", "fcfs,continuum", *load)
    code, out, err = bench_here(*command)
    assert code == 0, err
    lines = out.splitlines()
    assert mentions(lines[0], "engine sim", "virtual time", "operator-table", "llama-3.1-8b")
    assert mentions(lines[1], "three.jsonl", "3 programs, 9 turns", "2 policies x 1 load x 1 seed")
    assert mentions(lines[2], "--once")
    report = Path(lines[-1].removeprefix("report: "))
    assert report.name == "report.html"
    assert err.splitlines()[0] == "running 2 cells of 9 turns on 2 workers"
    assert ANSI not in out + err
    sweep = json.loads((report.parent / "sweep.json").read_text())
    assert sweep["made_by"]["argv"] == ["bench", *command]

    before = contents(report.parent)
    assert bench_here(*command) == (0, out, "bench: 2 of 2 cells were finished already\n")
    assert contents(report.parent) == before


@pytest.mark.usefixtures("run")
def test_a_report_draws_the_given_cells() -> None:
    code, _, err = bench_here("report", "run", "--gantt", "continuum_jps0.2_seed1")
    assert code == 0, err
    code, out, err = bench_here("report", "run", "--gantt", "lru")
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert mentions(err, "--gantt lru", "fcfs_jps0.2_seed1", "continuum_jps0.2_seed1")


ONE_AFTER_THE_OTHER = """
import sys
from harness.cli import start
for line in sys.argv[1:]:
    sys.argv = ["bench", *line.split()]
    try:
        start()
    except SystemExit as end:
        print(end.code or 0)
"""


def in_one_process(*lines: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    """Run commands without their imports in between; stdout has the exit code of each."""
    return subprocess.run(
        [sys.executable, "-P", "-c", ONE_AFTER_THE_OTHER, *lines],
        env={**os.environ, **environment},
        capture_output=True,
        check=True,
    )


@pytest.mark.usefixtures("run")
def test_an_ascii_locale_gives_the_same_report() -> None:
    page = Path("run/report.html").read_bytes()
    ascii_only = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    ran = in_one_process("report run", "compare run run --markdown c.md", **ascii_only)
    assert ran.stderr == b"bench: page: run/compare.html\n"
    assert [line for line in ran.stdout.splitlines() if line.isdigit()] == [b"0", b"0"]
    assert ran.stdout.isascii()
    assert Path("run/report.html").read_bytes() == page
    assert "✅" in Path("c.md").read_text(encoding="utf-8")


@pytest.mark.usefixtures("here")
def test_one_cell_is_printed_with_its_numbers(trace: str) -> None:
    load = ("--once", "--jps", "0.5", "--traces", trace)
    options = ("--policies", "continuum", *load, "--out", "one")
    code, out, err = bench_here("sweep", "--one", *options)
    assert code == 0, err
    shown = dict(line.split("\t")[:2] for line in out.splitlines() if "\t" in line)
    assert (shown["variant"], shown["jobs"], shown["turns"]) == ("continuum", "3", "9")
    assert shown["provenance"] == "operator-table"
    assert shown["finished"] == "9"
    assert out.splitlines()[-1] == "one/continuum_jps0.5_seed1"


@pytest.mark.usefixtures("here")
def test_jobs_that_are_too_long_are_left_out_and_named() -> None:
    too_long = Program("long", (Turn(9_000, 1_000),))
    write_programs(Path("t.jsonl"), [*programs(2), too_long])
    load = ("--once", "--jps", "0.5", "--max-model-len", "5000")
    options = ("--policies", "fcfs", *load, "--out", "o")
    code, _, err = bench_here("sweep", "--traces", "t.jsonl", *options)
    assert code == 0, err
    assert mentions(err, "left out", "program long, turn 0", "9000")
    workload = json.loads(Path("o/sweep.json").read_text())["workload"]
    assert workload["programs"] == 2
    assert [left["program_id"] for left in workload["left_out"]] == ["long"]


BROKEN = """
from servers.policies.base import Policy
class Broken(Policy):
    name = "broken"
    def arrived(self, request, now_s):
        if request.program_id == "job-2":
            raise RuntimeError("lost count")
"""


@pytest.mark.usefixtures("here")
def test_a_failing_custom_policy_fails_its_cells_and_the_sweep(trace: str) -> None:
    Path("losing.py").write_text(BROKEN)
    options = ("--policies", "fcfs,losing:Broken", "--once", "--jps", "0.5", "--workers", "1")
    code, out, err = bench_here("sweep", "--traces", trace, *options, "--out", "o")
    assert code == 1
    assert "Traceback" not in err
    assert err.count("lost count") == 1
    where = "losing.py:7: Broken.arrived raised RuntimeError: lost count"
    assert f"failed: broken_jps0.5_seed1: {where}" in err
    assert mentions(err, "1 of 2 cells", "o/broken_jps0.5_seed1/failed.json")
    assert "report: o/report.html" in out


def test_ctrl_c_ends_a_sweep_and_its_workers_which_prints_how_to_resume(
    bench: str, trace: str, tmp_path: Path
) -> None:
    """Its workers are new processes, as those of users, instead of forked ones."""
    command = ["sweep", "--traces", trace, *ENDLESS]
    with (tmp_path / OUTPUT).open("w") as output:
        sweep = subprocess.Popen(
            [bench, *command], cwd=tmp_path, stdout=output, stderr=output, start_new_session=True
        )
        try:
            wait_until(lambda: list(tmp_path.glob("o/*/cell.json")), process=sweep)
            os.killpg(sweep.pid, signal.SIGINT)
            code = sweep.wait(TIMEOUT_S)
        finally:
            sweep.kill()
            sweep.wait()
    assert code == 130, output_of(tmp_path)
    check_stopped(sweep.pid, command, tmp_path)


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGQUIT, 131)],
    ids=["term", "hangup", "quit"],
)
def test_a_stopped_sweep_prints_how_to_resume_and_leaves_no_process(
    warm: Warm, trace: str, tmp_path: Path, number: int, code: int
) -> None:
    command = ["sweep", "--traces", trace, *ENDLESS]
    sweep = warm.begin(tmp_path, command)
    wait_until(lambda: list(tmp_path.glob("o/*/cell.json")))
    os.kill(sweep, number) if number == signal.SIGTERM else os.killpg(sweep, number)
    assert warm.end() == code, output_of(tmp_path)
    check_stopped(sweep, command, tmp_path)


def check_stopped(sweep: int, command: list[str], folder: Path) -> None:
    assert "Traceback" not in output_of(folder)
    stopped = "bench: stopped; finished cells are kept, resume with: bench "
    assert stopped + " ".join(command) in output_of(folder).splitlines()
    wait_for_end_of(sweep)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP, signal.SIGQUIT])
def test_a_signal_during_the_imports_of_bench_prints_one_line(tmp_path: Path, number: int) -> None:
    """The substitute of Typer, which `bench` imports, shows that the imports have begun."""
    (tmp_path / "typer.py").write_text(
        "import pathlib, time\npathlib.Path('importing').touch()\ntime.sleep(60)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", "from harness.cli import start; start()"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        wait_until((tmp_path / "importing").exists, process=process)
        process.send_signal(number)
        _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (128 + number, "bench: stopped\n")


def test_a_sweep_stopped_during_the_report_prints_how_to_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("harness.cli.commands.sweep.print_report", stopped)
    command = "sweep --once --jps 0.2 --policies fcfs --programs 3 --out o"
    code, _, err = bench_here(*command.split())
    assert code == 130
    assert mentions(err, "stopped", f"resume with: bench {command}\n")


@pytest.mark.parametrize("text", ["a\x1b[31mb", "a\x07b", "a\x9bb", "a\rb"])
def test_a_control_character_in_an_argument_is_refused_and_escaped(text: str) -> None:
    code, out, err = bench_here("sweep", "--out", text)
    escaped = ascii(text)[1:-1]
    assert (code, out) == (2, "")
    assert err == f"bench: {escaped}: contains a control character; remove it\n"


@pytest.mark.usefixtures("here")
def test_a_control_character_in_the_name_of_a_run_is_escaped_in_the_list(trace: str) -> None:
    bench_here("sweep", "--traces", trace, "--once", "--jps", "1", "--policies", "fcfs")
    (run,) = Path("runs").iterdir()
    run.rename("runs/a\x1b[31mb")
    code, out, _ = bench_here("list", "runs")
    assert (code, "\x1b" in out, r"a\x1b[31mb" in out) == (0, False, True)


@pytest.mark.parametrize("command", ["--version", "list packs"])
def test_a_full_stdout_is_named_in_the_error(bench: str, command: str, tmp_path: Path) -> None:
    with Path("/dev/full").open("w") as full:
        result = subprocess.run(
            [bench, *command.split()],
            cwd=tmp_path,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert result.returncode == 2
    assert mentions(result.stderr, "stdout", "no space left on device")
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.usefixtures("here")
def test_a_second_sweep_in_a_folder_in_use_is_refused(
    warm: Warm, trace: str, tmp_path: Path
) -> None:
    command = ["sweep", "--traces", trace, *ENDLESS]
    first = warm.begin(tmp_path, command)
    wait_until((tmp_path / "o/sweep.json").exists)
    os.killpg(first, signal.SIGSTOP)
    second = bench_here(*command)
    os.killpg(first, signal.SIGKILL)
    warm.end()
    wait_for_end_of(first)
    code, out, err = second
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert mentions(err, "o: another bench process", "--out")


@pytest.mark.parametrize("kind", ["policies", "hardware", "models", "packs"])
def test_list_prints_one_line_per_item_into_a_pipe(kind: str) -> None:
    code, out, _ = bench_here("list", kind)
    assert code == 0
    names = [line.split("\t")[0] for line in out.splitlines()]
    expected = {"policies": "continuum", "hardware": "a100-80g", "models": "llama-3.1-8b"}
    assert expected.get(kind, "swe-bench") in names


@pytest.mark.parametrize("kind", list(Listing))
def test_list_has_heads_of_columns_on_a_terminal(
    kind: Listing,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    if kind is Listing.RUNS:
        run_sweep(small_plan("fcfs"), Path("runs/one"), workers=1)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "dumb")  # without colours
    list_(kind)
    heads = re.split("  +", capsys.readouterr().out.splitlines()[0].strip())
    assert heads == list(catalogue.HEADS[kind])
    assert len(heads) == len(getattr(catalogue, kind)()[0])


def test_the_list_of_policies_says_what_each_needs_and_how_it_was_checked() -> None:
    rows = {row[0]: row[3:] for row in catalogue.policies()}
    assert rows["infercept"][0] == "ends of programs"
    assert mentions(rows["infercept"][1], "yes", "by reading")
    assert rows["infercept+"] == ("tier, ends of programs", "as infercept, not with the tier")
    assert rows["mori+"] == ("tier, ends of programs", "no: no code is public")
    assert rows["program-fcfs"] == ("nothing", "no")


def test_doctor_finds_our_own_packages() -> None:
    code, out, err = bench_here("doctor")
    rows = [line.split("\t") for line in out.splitlines()]
    found = {name: verdict for verdict, name, _ in rows}
    assert [found[f"package {name}"] for name in ("harness", "reports", "servers", "traces")] == [
        "ok"
    ] * 4
    wrong = {name for name, verdict in found.items() if verdict == "NOT OK"}
    assert wrong <= {"engine vllm"}  # depends on what is installed on this machine
    assert code == bool(wrong), err


@pytest.mark.usefixtures("here")
def test_a_foreign_package_with_the_same_name_is_reported(trace: str, tmp_path: Path) -> None:
    (tmp_path / "reports").mkdir()
    (tmp_path / "reports/__init__.py").write_text("")
    ran = in_one_process("doctor", f"sweep --traces {trace}", PYTHONPATH=str(tmp_path))
    codes = [line for line in ran.stdout.splitlines() if line.isdigit()]
    assert codes == [b"1", b"2"]
    of_doctor, of_sweep = ran.stderr.decode().strip().splitlines()
    assert mentions(of_doctor, "another `reports`", "first")
    assert mentions(of_sweep, "another `reports`", "first")


LIGHT = """
import os, sys
from harness.cli.main import main
for line in ("--version", "--help", "sweep --help", "report --help", "serve --help",
             "sweep --polices fcfs", "complete"):
    sys.argv = ["bench", *line.split()]
    if line == "complete":
        sys.argv = ["bench"]
        os.environ.update(_BENCH_COMPLETE="complete_bash", COMP_CWORD="3",
                          COMP_WORDS="bench sweep --policies fcfs,cont")
    try:
        main()
    except SystemExit as end:
        assert bool(end.code) == ("--polices" in line), line
    else:
        assert "--" in line, line
sys.exit(f"imported {' '.join(sys.modules)}")
"""


def test_help_completion_and_unknown_options_import_no_heavy_packages() -> None:
    ran = subprocess.run([sys.executable, "-c", LIGHT], capture_output=True, text=True, check=False)
    words, _, imported = ran.stderr.rpartition("imported ")
    assert imported, ran.stderr
    assert "fcfs,continuum" in ran.stdout.split()
    assert "No such option: --polices" in words
    heavy = {"aiohttp", "jinja2", "numpy", "openai", "pandas", "pydantic", "rich", "scipy"}
    assert not set(imported.split()) & heavy


def test_settings_are_refused_before_the_packages_that_write_reports_are_imported() -> None:
    start = ("-X", "importtime", "-c", "from harness.cli.main import main; main()")
    command = [sys.executable, *start, "sweep", "--slo", "mean<=x"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    *imported, refusal = ran.stderr.splitlines()
    assert refusal.startswith("bench: --slo")
    packages = {line.rpartition("|")[2].strip().partition(".")[0] for line in imported}
    assert "harness" in packages
    assert not packages & {"aiohttp", "jinja2", "openai", "pandas", "scipy"}


def test_only_functions_import_the_openai_client_so_that_virtual_time_never_does() -> None:
    client = re.compile(r"( *)from harness\.replay\.openai_client import", re.MULTILINE)
    files = Path(harness.__file__).parent.rglob("*.py")
    indents = [indent for path in files for indent in client.findall(path.read_text())]
    assert len(indents) >= 7
    assert all(indents)


def test_help_has_options_below_their_headings_in_a_hundred_columns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    _, text, _ = bench_here("report", "--help")
    blocks = [block.splitlines() for block in text.split("\n\n")]
    firsts = [block[0] for block in blocks]
    assert mentions(firsts.pop(1), "report", "bench report")
    assert firsts == [
        "Usage: bench report [OPTIONS] {RUN}",
        "Examples",
        "  bench report runs/NAME --table full",
        "  bench report runs/NAME --gantt continuum_jps0.3_seed1",
        "Arguments",
        "Options",
        "The run",
    ]
    assert mentions(blocks[5][1], "RUN", "[required]")
    assert [line.split()[0] for line in blocks[6][1:]] == [
        "--gantt",
        "--evaluation",
        "repeatable.",
        "-h,",
    ]
    assert max(map(len, text.splitlines())) <= 100


def test_the_options_of_a_sweep_are_below_seven_headings() -> None:
    _, text, _ = bench_here("sweep", "--help")
    headings = re.findall(r"^(\S.*)\n  -", text, re.MULTILINE)
    assert headings == [
        "The load",
        "The run",
        "The machine",
        "How traces are read",
        "A live server (vLLM, SGLang, or a URL)",
        "Real agents on a live server, instead of a replay",
        "Options",
    ]


def test_help_of_several_commands_lists_each_with_one_sentence() -> None:
    commands = bench_here("--help")[1].partition("\nCommands\n")[2]
    for command in COMMANDS:
        assert f"\n  {command} " in "\n" + commands
    commands = bench_here("traces", "--help")[1].partition("\nCommands\n")[2]
    assert re.search(r"^ *convert +Convert traces", commands, re.MULTILINE)
    assert "Examples" not in commands


@pytest.mark.parametrize(
    ("command", "known"),
    [
        ("bench sweep --policies fcfs,cont", {"fcfs,continuum", "fcfs,continuum-preview"}),
        ("bench experiment fig1", {"fig10", "fig16"}),
        ("bench unknown ", set()),
        ("bench run --poli", set()),
        ("bench list exp", {"experiments"}),
    ],
)
def test_completion_lists_matching_names(
    command: str, known: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("_BENCH_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", command)
    monkeypatch.setenv("COMP_CWORD", str(command.count(" ")))
    _, out, err = bench_here()
    assert known <= set(out.split())
    assert err == ""


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ("sweep --programs 0", "bench: --programs '0': must be greater than or equal to 1"),
        ("sweep --workers two", "bench: --workers 'two': must be a valid integer; "),
        (
            "sweep --offload-gb 100GB",
            "bench: --offload-gb '100GB': must be a valid number without a unit; ",
        ),
        ("sweep --polices fcfs", "bench: No such option: --polices"),
        ("sweeep", "bench: No such command 'sweeep'"),
        ("list engines", "bench: THING 'engines': must be one of 'policies', "),
        ("traces inspect", "bench: Missing argument"),
        (
            "traces synthesize bfcl --tokens mean --out x",
            "bench: --tokens 'mean': ",
        ),
        (
            "traces synthesize bfcl --programs 0 --out x",
            "bench: --programs '0': must be greater",
        ),
    ],
)
def test_invalid_options_are_refused_in_one_line(options: str, line: str) -> None:
    code, out, err = bench_here(*options.split())
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert err.startswith(line)


@pytest.mark.parametrize(("former", "successor"), MOVED.items())
def test_a_former_command_names_what_replaces_it(former: str, successor: str) -> None:
    refusal = (2, "", f"bench {former}: is now {successor}\n")
    assert bench_here(*former.split(), "x") == bench_here(*former.split(), "--help") == refusal


@pytest.mark.parametrize("option", ["--baseline fcfs", "--until 5%", "--shard 1/2", "--table full"])
def test_one_cell_takes_no_option_of_several(option: str) -> None:
    name = option.split()[0]
    refusal = (2, "", f"bench: {name}: not supported with --one; remove it\n")
    assert bench_here("sweep", "--one", *option.split()) == refusal


@pytest.mark.parametrize(
    ("option", "incomplete", "completed"),
    [
        ("router", "round-robin,st", ["round-robin,sticky"]),
        ("policies", "fcfs,autell", ["fcfs,autellix", "fcfs,autellix+"]),
        ("hardware", "h100,b2", ["h100,b200"]),
        ("router", "no-such", []),
    ],
)
def test_the_shell_completes_the_last_name_of_a_list(
    option: str, incomplete: str, completed: list[str]
) -> None:
    assert COMPLETIONS[option](incomplete) == completed
