"""`bench report` on incomplete run folders."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness.in_process import bench
from tests.sentences import mentions

CELL = Path("run/continuum_jps0.2_seed1")


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("cell.json", "garbage", "cell.json: not JSON"),
        ("turns.jsonl.zst", None, "turns.jsonl.zst: does not exist"),
        ("done.json", None, "not finished: 102 turns recorded"),
        ("done.json", "{}", "done.json: lacks finished_programs"),
    ],
)
@pytest.mark.usefixtures("run")
def test_a_cell_without_a_result_gives_exit_code_1(
    name: str, content: str | None, reason: str
) -> None:
    (CELL / name).unlink()
    if content is not None:
        (CELL / name).write_text(content)
    code, out, err = bench("report", "run")
    assert code == 1
    assert err.startswith(f"no result: {CELL.name}: ")
    assert reason in err
    assert err.count("\n") == 1
    assert "No result in 1 cell of 2" in out


@pytest.mark.usefixtures("run")
def test_sentences_are_not_wrapped_in_a_pipe() -> None:
    _, out, _ = bench("report", "run")
    assert any(len(line) > 150 and line.startswith("Short run: ") for line in out.splitlines())


@pytest.mark.usefixtures("run")
def test_without_any_result_no_table_is_printed() -> None:
    for done in Path("run").glob("*/done.json"):
        done.unlink()
    code, out, err = bench("report", "run")
    assert (code, err.count("no result: ")) == (1, 2)
    assert mentions(out, "No cell has finished")
    assert "mean" not in out


@pytest.mark.usefixtures("run")
def test_a_report_is_not_replaced_by_an_empty_one_if_no_finished_cell_can_be_read() -> None:
    """As those of another version. `bench serve --from` reads `answer.json`."""
    bench("report", "run")
    names = "report.html", "answer.json", "cells.csv", "cells.json"
    before = {name: (Path("run") / name).read_bytes() for name in names}
    for done in Path("run").glob("*/done.json"):
        done.write_text("{}")
    code, _, err = bench("report", "run")
    assert (code, err.count("no result: ")) == (1, 2)
    assert "kept the earlier report" in err
    assert {name: (Path("run") / name).read_bytes() for name in names} == before
