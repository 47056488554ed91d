"""Task files with rows of SWE-bench or plain rows give tasks by id."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.tasks import Task, read_tasks, tasks_of
from traces import Message, Program, Turn

ROW = {"instance_id": "astropy__astropy-7166", "problem_statement": "Docstrings get lost."}


def write_tasks(folder: Path, *lines: object) -> Path:
    path = folder / "tasks.jsonl"
    path.write_text("\n".join(x if isinstance(x, str) else json.dumps(x) for x in lines))
    return path


def test_rows_of_swe_bench_are_tasks_with_their_images(tmp_path: Path) -> None:
    tasks = read_tasks(
        write_tasks(tmp_path, ROW | {"image_name": "swebench/x"}, "", {"id": "b", "task": "t"})
    )
    assert tasks.tasks == (
        Task("astropy__astropy-7166", "Docstrings get lost.", "swebench/x"),
        Task("b", "t"),
    )
    assert [program.id for program in tasks.programs()] == ["astropy__astropy-7166", "b"]
    assert not any(program.turns for program in tasks.programs())


def test_a_row_of_swe_bench_without_an_image_gets_the_published_one(tmp_path: Path) -> None:
    (task,) = read_tasks(write_tasks(tmp_path, ROW | {"base_commit": "abc"})).tasks
    assert task.image == "docker.io/swebench/sweb.eval.x86_64.astropy_1776_astropy-7166:latest"


def test_a_task_file_may_be_a_json_list(tmp_path: Path) -> None:
    assert read_tasks(write_tasks(tmp_path, json.dumps([ROW]))).tasks[0].id == ROW["instance_id"]


def test_a_workspace_is_relative_to_the_folder_of_the_task_file(tmp_path: Path) -> None:
    (tmp_path / "repo").mkdir()
    (task,) = read_tasks(write_tasks(tmp_path, ROW | {"workspace": "repo"})).tasks
    assert task.workspace == (tmp_path / "repo").resolve()


@pytest.mark.parametrize(
    ("lines", "complaint"),
    [
        ([], "contains no task"),
        (["{"], "line 1: not JSON"),
        ([ROW, 7], "task 2: int, not an object"),
        ([{"problem_statement": "x"}], "task 1: none of instance_id, id"),
        ([{"id": "a"}], "task 1 (a): none of problem_statement, task"),
        ([{"id": "a\nb", "task": "t"}], "'a\\nb': an id has at most 190 printable characters"),
        ([ROW, ROW], "two tasks have the id astropy__astropy-7166"),
        ([ROW | {"workspace": "nowhere"}], "workspace nowhere: no such folder"),
    ],
)
def test_invalid_tasks_are_refused_in_one_line(
    lines: list[object], complaint: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match="--tasks") as refused:
        read_tasks(write_tasks(tmp_path, *lines))
    assert complaint in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"--tasks .*none\.jsonl: no such file"):
        read_tasks(tmp_path / "none.jsonl")


@given(st.binary(max_size=200))
def test_any_bytes_are_tasks_or_an_error(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    path = tmp_path_factory.mktemp("tasks") / "t"
    path.write_bytes(data)
    try:
        tasks = read_tasks(path).tasks
    except ValueError as refused:
        message = str(refused)
    else:
        message = f"--tasks has {len(tasks)}" if tasks else ""
    assert message.startswith("--tasks")


def test_the_task_of_a_recorded_program_is_its_first_user_message() -> None:
    messages = (
        Message("system", "You are helpful."),
        Message("user", "Fix it."),
        Message("assistant", "ok"),
    )
    program = Program("p", (Turn(10, 1),), messages=messages, prompt_messages=(2,))
    assert tasks_of([program]).tasks == (Task("p", "Fix it."),)
