"""`bench sweep --engine URL`: a server that runs already, its turns in the same run folder."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from tests.live.server import Server, serving
from tests.threaded import threaded
from traces import Program, Turn
from traces.native import write_programs

PROGRAMS = [
    Program(f"job-{k}", (Turn(20, 6, 0, ("ls",), None, 0.01), Turn(40, 6, 26))) for k in range(4)
]


def sweep(bench: str, folder: Path, url: str, *options: str) -> subprocess.CompletedProcess[str]:
    write_programs(folder / "t.jsonl", PROGRAMS)
    command = [bench, "sweep", "--engine", url, "--traces", "t.jsonl", "--jps", "20", *options]
    return subprocess.run(
        [*command, "--out", "o"], cwd=folder, capture_output=True, text=True, check=False
    )


def fine(result: subprocess.CompletedProcess[str]) -> bool:
    """A machine that is busy with other things may fail the gate on client lateness, no other."""
    failed = [line for line in result.stderr.splitlines() if line.startswith("failed:")]
    late = all(line.split(": ", 2)[2].startswith("client lateness") for line in failed)
    return result.returncode == 0 or (result.returncode == 1 and bool(failed) and late)


def lines(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / "turns.jsonl").read_text().splitlines()]


def test_every_turn_is_a_line_and_the_report_is_written(bench: str, tmp_path: Path) -> None:
    with threaded(serving(Server(think_s=0.3))) as url:
        result = sweep(bench, tmp_path, url, "--seeds", "1,2")
    assert fine(result), result.stderr
    assert result.stdout.startswith(f"engine {url}: a server that runs already, m;")
    for seed in (1, 2):
        turns = lines(tmp_path / f"o/as-served_jps20_seed{seed}")
        assert len(turns) == 8
        assert {turn["device_hit_tokens"] for turn in turns} == {7}  # as that server says
    assert (tmp_path / "o/report.html").is_file()


def test_what_a_server_does_not_tell_is_no_zero_in_the_report(bench: str, tmp_path: Path) -> None:
    with threaded(serving(Server(think_s=0.3, cached_tokens=None, queue_ms=None))) as url:
        result = sweep(bench, tmp_path, url)
    assert fine(result), result.stderr
    (row,) = json.loads((tmp_path / "o/cells.json").read_text())
    assert row["jct_mean_s"] > 0
    assert (row["hit_ratio"], row["queue_mean_s"], row["preemptions"]) == (None, None, None)


def test_two_cells_of_one_seed_share_no_prompt(bench: str, tmp_path: Path) -> None:
    """The server's cache outlives a cell: equal prompts would be hits that no agent has."""
    server = Server(think_s=0.3)
    with threaded(serving(server)) as url:
        assert fine(sweep(bench, tmp_path, url, "--jps", "10"))
        first = dict(server.prompts)
        done = tmp_path / "o/as-served_jps10_seed1/done.json"
        done.unlink()
        assert fine(sweep(bench, tmp_path, url, "--jps", "10"))
    assert first.keys() == server.prompts.keys()
    assert all(first[turn][:16] != server.prompts[turn][:16] for turn in first)


def test_a_failed_turn_is_a_record_a_gate_and_exit_code_1(bench: str, tmp_path: Path) -> None:
    with threaded(serving(Server(think_s=0.3, faults={("job-1", 0): "500"}))) as url:
        result = sweep(bench, tmp_path, url)
    assert result.returncode == 1
    assert (
        "1 failed turn in 1 job (first: the server answered 500: EngineDeadError" in result.stderr
    )
    assert len(lines(tmp_path / "o/as-served_jps20_seed1")) == 7


def test_where_nothing_answers_is_one_line(bench: str, tmp_path: Path) -> None:
    result = sweep(bench, tmp_path, "http://127.0.0.1:9")
    assert result.returncode == 2
    assert result.stderr == (
        "bench: --engine http://127.0.0.1:9: no OpenAI-compatible server answers "
        "([Errno 111] Connection refused)\n"
    )


def test_a_server_has_one_scheduler_and_its_own_models(bench: str, tmp_path: Path) -> None:
    with threaded(serving(Server(think_s=0.3))) as url:
        two = sweep(bench, tmp_path, url, "--policies", "fcfs,continuum")
        other = sweep(bench, tmp_path, url, "--model", "n")
        useless = sweep(bench, tmp_path, url, "--replicas", "2")
    assert (two.returncode, other.returncode, useless.returncode) == (2, 2, 2)
    assert "a server that runs already has one scheduler" in two.stderr
    assert other.stderr == f"bench: --model n: {url} serves m\n"
    assert useless.stderr == f"bench: --replicas: --engine {url} has no use for it; leave it out\n"


def test_text_needs_messages(bench: str, tmp_path: Path) -> None:
    with threaded(serving(Server())) as url:
        result = sweep(bench, tmp_path, url, "--prompts", "text")
    assert result.returncode == 2
    assert "has no messages, which --prompts text and --guided need" in result.stderr
