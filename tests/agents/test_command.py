"""`--agent-command`: any agent, by a command line that no shell interprets."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pytest

from agents.command import command_agent
from harness.live_agents.starts import Starts

LAUNCH = {"task": "a; rm -rf / $(id) 'b\"", "base_url": "http://h/v1", "model": "m"}


def test_a_task_is_one_argument_whatever_it_contains(tmp_path: Path) -> None:
    (tmp_path / "launch.json").write_text(json.dumps(LAUNCH))
    agent = command_agent("echo --task={task} '{base_url} {model}'")
    assert agent.command(tmp_path / "launch.json")[1:] == [
        f"--task={LAUNCH['task']}",
        "http://h/v1 m",
    ]


def test_placeholders_inside_inserted_values_are_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "launch.json").write_text(json.dumps(LAUNCH | {"task": "{model}"}))
    assert command_agent("echo {task}").command(tmp_path / "launch.json")[1:] == ["{model}"]


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("", "is empty"),
        ("echo 'x {task}", "No closing quotation"),
        ("echo {task} {port}", "{port} is not a placeholder; use {task}"),
        ("echo {task} {base-url}", "{base-url} is not a placeholder"),
        ("echo hello", "{task} is missing"),
        ("no-such-agent-anywhere {task}", "no-such-agent-anywhere: no such program"),
    ],
)
def test_an_invalid_command_is_refused_before_anything_runs(line: str, complaint: str) -> None:
    with pytest.raises(ValueError, match="--agent-command") as refused:
        command_agent(line)
    assert complaint in str(refused.value)


def test_a_users_script_is_readable_in_the_sandbox_under_its_own_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "agent.py").write_text("")
    monkeypatch.chdir(tmp_path)
    agent = command_agent(f"{sys.executable} agent.py {{task}}")
    assert agent.words[1] == str(tmp_path / "agent.py")
    assert tmp_path / "agent.py" in agent.readable()
    assert tmp_path not in agent.readable()  # it may be a home, or hold the answers
    assert Path(sys.prefix) in agent.readable()
    assert any(Path(sys.base_prefix).is_relative_to(path) for path in agent.readable())


def test_a_program_of_the_system_needs_no_further_paths() -> None:
    assert command_agent("true {task}").readable() == []


def test_of_a_users_home_only_the_program_itself_is_readable(tmp_path: Path) -> None:
    program = tmp_path / "bin" / "my-agent"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    assert set(command_agent(f"{program} {{task}}").readable()) == {program}


def test_a_shim_is_refused_with_the_remedy(tmp_path: Path) -> None:
    shim = tmp_path / "shims" / "python"
    shim.parent.mkdir()
    shim.write_text("#!/bin/sh\n")
    shim.chmod(0o755)
    with pytest.raises(ValueError, match=r"is a shim.*give the program itself"):
        command_agent(f"{shim} {{task}}")


def test_a_cell_says_how_many_agents_it_waits_for() -> None:
    """Three agents boot, one after the other; the last one starts the clock."""
    stages: list[str] = []

    async def boot_all() -> None:
        starts = Starts(3, None, 1, lambda _origin_s: None, stages.append)
        for _ in range(3):
            async with starts.boot():
                pass

    asyncio.run(boot_all())
    assert stages == [
        "starting agents, 0 of 3",
        "starting agents, 1 of 3",
        "starting agents, 2 of 3",
        "running agents",
    ]
