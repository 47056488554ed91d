"""`bench sweep --one --agent-command …`: real processes in real sandboxes, their records, and no
process left however the run ends."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from servers.processes.supervisor import descendants
from tests.agents import small_agent
from tests.agents.bubblewrap import needs_bubblewrap
from tests.agents.planner import planner
from tests.crash.small_sweep import output_of
from tests.crash.trials import Warm
from tests.harness import in_process
from tests.lines import read_lines
from tests.processes import wait_until, wait_until_gone
from tests.sentences import mentions

pytestmark = needs_bubblewrap
AGENT = f"{sys.executable} {small_agent.__file__} {{task}} {{base_url}} {{folder}}"
CELL = "as-served_jps20_seed1"
LATENESS_GATE = "client lateness"
WITHOUT_SANDBOX = ("--sandbox", "none", "--i-know-this-runs-model-commands-on-my-machine")


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with planner() as url:
        yield url


def begin(
    warm: Warm,
    folder: Path,
    url: str,
    plans: Mapping[str, Sequence[str]],
    *options: str,
    agent: str = AGENT,
) -> int:
    """Start a run; return its process id."""
    rows = [json.dumps({"id": id, "task": json.dumps(plan)}) for id, plan in plans.items()]
    (folder / "tasks.jsonl").write_text("\n".join(rows))
    command = ("sweep", "--one", "--engine", url, "--agent-command", agent)
    load = ("--tasks", "tasks.jsonl", "--jps", "20", "--out", "o")
    return warm.begin(folder, [*command, *load, *options])


def lines(folder: Path, name: str) -> list[dict[str, Any]]:
    path = folder / "o" / CELL / name
    return read_lines(path)


def check_end(warm: Warm, folder: Path) -> None:
    """Wait for a run; a busy machine may fail the gate on client lateness, and no other."""
    code, output = warm.end(), output_of(folder)
    assert "agent command" in output
    assert code == 0 or (code == 1 and f"failed: {LATENESS_GATE}" in output), output


def test_the_turns_end_and_prediction_of_each_program_are_recorded(
    warm: Warm, tmp_path: Path, url: str
) -> None:
    plans = {"a/1": ["echo one", "sleep 0.3; echo two"], "b": ["cat /etc/shadow", "pwd"], "c": []}
    begin(warm, tmp_path, url, plans)
    check_end(warm, tmp_path)
    turns = lines(tmp_path, "turns.jsonl")
    by_program = {id: [t for t in turns if t["program_id"] == id] for id in plans}
    assert {id: len(own) for id, own in by_program.items()} == {"a/1": 3, "b": 3, "c": 1}
    assert [t["prompt_tokens"] for t in by_program["a/1"]] == [100, 120, 140]
    assert by_program["a/1"][2]["gap_s"] > 0.3
    assert by_program["a/1"][2]["gap_provenance"] == "measured"
    assert by_program["a/1"][1]["tools"] == ["sleep", "echo"]
    ends = {end["program_id"]: end for end in lines(tmp_path, "programs.jsonl")}
    assert {end["exit_status"] for end in ends.values()} == {"finished"}
    assert {end["exit_code"] for end in ends.values()} == {0}
    patches = {p["instance_id"]: p["model_patch"] for p in lines(tmp_path, "predictions.jsonl")}
    assert patches["a/1"] == "one\ntwo\n"
    assert "denied" in patches["b"] or "No such file" in patches["b"]
    done = json.loads((tmp_path / "o" / CELL / "done.json").read_text())
    assert (done["finished_programs"], done["exit_statuses"]) == (3, {"finished": 3})
    assert not list((tmp_path / "o" / CELL / "agents").glob("*/workspace"))


IMPERSONATE_B = """python3 -c "
import os, urllib.error, urllib.request
url = os.environ['OPENAI_BASE_URL'].partition('/programs/')[0] + '/programs/b'
for path, method in (('', 'DELETE'), ('/v1/chat/completions', 'POST')):
    try:
        urllib.request.urlopen(urllib.request.Request(url + path, b'{}', method=method))
    except urllib.error.HTTPError as refused:
        print(refused.code)
" """


def test_a_command_sees_only_its_own_files_and_cannot_act_for_another_program(
    warm: Warm, tmp_path: Path, url: str
) -> None:
    agent_folder = Path(small_agent.__file__).parent
    plans = {"a": [f"ls {agent_folder}; ls {tmp_path}", IMPERSONATE_B], "b": ["echo one"]}
    begin(warm, tmp_path, url, plans)
    check_end(warm, tmp_path)
    patches = {p["instance_id"]: p["model_patch"] for p in lines(tmp_path, "predictions.jsonl")}
    assert patches["a"] == "small_agent.py\no\n403\n403\n"


def test_a_cell_in_which_no_program_finished_fails_and_is_run_again(
    warm: Warm, tmp_path: Path, url: str
) -> None:
    broken = tmp_path / "agent.py"
    broken.write_text("raise SystemExit('KEY is missing')")
    agent = f"{sys.executable} agent.py {{task}} {{base_url}} {{folder}}"
    begin(warm, tmp_path, url, {"a": []}, agent=agent)
    assert warm.end() == 1
    assert "exited with code 1: KEY is missing" in output_of(tmp_path)
    broken.write_text(Path(small_agent.__file__).read_text())
    begin(warm, tmp_path, url, {"a": []}, agent=agent)
    check_end(warm, tmp_path)


def test_a_hanging_tool_is_ended_at_the_time_limit_and_its_cell_fails_a_gate(
    warm: Warm, tmp_path: Path, url: str
) -> None:
    plans = {"hangs": ["echo one", "sleep 1000"], "harmless": ["echo one"]}
    begin(warm, tmp_path, url, plans, "--task-limit-s", "12")
    assert warm.end() == 1
    ends = {end["program_id"]: end for end in lines(tmp_path, "programs.jsonl")}
    assert ends["hangs"]["error"] == "the program exceeded its limit of 12 s"
    assert ends["harmless"]["error"] is None
    last = [t for t in lines(tmp_path, "turns.jsonl") if t["program_id"] == "hangs"][-1]
    assert last["error"] == "the program exceeded its limit of 12 s"
    first = "the program exceeded its limit of 12 s"
    assert f"1 failed turn in 1 job (first: {first})" in output_of(tmp_path)


def test_a_fork_bomb_is_contained_and_ends_with_its_program(
    warm: Warm, tmp_path: Path, url: str
) -> None:
    plans = {"bomb": [":(){ :|:& };:", "sleep 1000"], "harmless": ["echo one"]}
    options = ("--task-limit-s", "12", "--agent-processes", "40")
    run, peak = begin(warm, tmp_path, url, plans, *options), 0
    while Path(f"/proc/{run}").exists():
        peak = max(peak, len(descendants(run)))
        time.sleep(0.05)
    warm.end()
    ends = {end["program_id"]: end for end in lines(tmp_path, "programs.jsonl")}
    assert ends["bomb"]["error"]
    assert ends["harmless"]["exit_status"] == "finished"
    assert peak < 40 + 40  # its own, and those of the harness, the sandboxes and the other program


@pytest.mark.parametrize("options", [WITHOUT_SANDBOX, ("--agent-network",)])
def test_without_a_sandbox_or_with_network_the_records_are_the_same(
    options: tuple[str, ...], warm: Warm, tmp_path: Path, url: str
) -> None:
    begin(warm, tmp_path, url, {"a": ["echo $OPENAI_API_KEY"]}, *options)
    check_end(warm, tmp_path)
    assert len(lines(tmp_path, "turns.jsonl")) == 2
    key = lines(tmp_path, "predictions.jsonl")[0]["model_patch"].strip()
    assert len(key) == 43, "each program has its own key, so that others cannot impersonate it"


@pytest.mark.parametrize(
    ("end", "options"),
    [
        (signal.SIGINT, ()),
        (signal.SIGKILL, ()),
        (signal.SIGKILL, WITHOUT_SANDBOX),
    ],
)
def test_an_interrupted_run_leaves_its_records_and_no_process(
    end: signal.Signals, options: tuple[str, ...], warm: Warm, tmp_path: Path, url: str
) -> None:
    plans = {"a": ["echo one", "sleep 1000"], "b": ["setsid nohup sleep 1000 & sleep 1000"]}
    limited = ("--task-limit-s", "8", *options)
    run = begin(warm, tmp_path, url, plans, *limited)
    turns = tmp_path / "o" / CELL / "turns.jsonl"
    wait_until(lambda: turns.exists() and turns.read_text().count("\n") == 3)
    processes = descendants(run)
    assert len(processes) >= 6
    os.kill(run, end)
    assert warm.end() in (-9, 130)
    wait_until_gone(processes)
    assert turns.read_text().count("\n") >= 3

    begin(warm, tmp_path, url, plans, *limited)
    warm.end()
    aside = tmp_path / "o" / f"{CELL}.aside-1" / "turns.jsonl"
    assert aside.exists(), output_of(tmp_path)
    assert len(lines(tmp_path, "programs.jsonl")) == 2


def test_a_crashed_agent_is_recorded_with_its_exit_code_also_with_a_pipe_as_its_result(
    warm: Warm, tmp_path: Path, url: str
) -> None:
    pipe = "rm -f $HOME/result.json; mkfifo $HOME/result.json; kill -9 $PPID"
    plans = {"crashes": ["kill -9 $PPID"], "leaves-a-pipe": [pipe], "harmless": ["echo one"]}
    begin(warm, tmp_path, url, plans)
    assert warm.end() == 1
    ends = {end["program_id"]: end for end in lines(tmp_path, "programs.jsonl")}
    for crashed in ("crashes", "leaves-a-pipe"):
        assert ends[crashed]["error"] == "the agent's process exited with code 137"
        assert ends[crashed]["exit_status"] == "exited with code 137"
    assert (ends["harmless"]["error"], ends["harmless"]["exit_status"]) == (None, "finished")


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (
            ["--agent", "cursor"],
            "--agent cursor: no agent is called 'cursor' (known: mini-swe-agent, openhands; or",
        ),
        (["--agent-command", "true {task}"], "needs tasks; give --tasks FILE, or --guided"),
        (
            ["--agent-command", "true {task}", "--tasks", "t", "--sandbox", "none"],
            "add --i-know-this-runs-model-commands-on-my-machine",
        ),
        (["--guided"], "agent options without an agent"),
        (["--agent-command", "true {task}", "--tasks", "none.jsonl"], "none.jsonl: no such file"),
        (
            ["--agent-command", "true {task}", "--agent", "openhands", "--tasks", "t"],
            "give only one of them",
        ),
        (
            ["--agent-command", "true {task}", "--sandbox", "container", "--tasks", "t"],
            "only mini-swe-agent",
        ),
    ],
)
def test_invalid_options_for_agents_are_refused_in_one_line(
    options: list[str],
    complaint: str,
    tmp_path: Path,
    url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t").write_text('{"id": "a", "task": "b"}')
    code, _, err = in_process.bench("sweep", "--one", "--engine", url, "--jps", "1", *options)
    assert code == 2
    assert complaint in err
    assert err.count("\n") == 1
    assert os.listdir(tmp_path) == ["t"]


def test_agents_need_a_live_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    agent = ("--agent", "mini-swe-agent", "--tasks", "t")
    code, _, err = in_process.bench("sweep", "--one", *agent, "--policies", "fcfs")
    assert code == 2
    assert mentions(err, "need a live server", "--engine vllm")
