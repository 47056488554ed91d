"""`make silicon`: its verdict on rows and a profile that are worked out here, its errors,
and what `servers.profiles.end_to_end` returns."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from servers.profiles import Profile, end_to_end
from servers.profiles.end_to_end import end_to_end_error, end_to_end_file
from servers.profiles.machines.gpus import HARDWARE
from servers.profiles.models.listed import MODELS
from tests.sentences import mentions
from tests.sim.worlds import profile
from tools.silicon import predictions, rows
from tools.silicon.__main__ import main
from tools.silicon.errors import Prediction, judge
from tools.silicon.rows import CHECKPOINTS, Row

S = 1_000_000_000_000
"""Picoseconds per second."""
ROW = Row(
    id="a",
    hardware="h200",
    checkpoint=CHECKPOINTS["Qwen/Qwen3-32B", ""],
    precision="bf16",
    gpus=2,
    clients=1,
    prompt_tokens=4,
    output_tokens=3,
    ttft_s=0.8,
    tpot_s=1.0,
    engine_version="0.12.0",
    measured="",
    public=False,
)


def second_per_step(*_: object) -> Profile:
    """A second, less 1 ms of CPU time of a step with one turn under synchronous scheduling."""
    base_ps = S - 1_000_000_000
    return profile(100, base_ps=base_ps, weights_ps=0, token_ps=0, context_ps=0, pair_ps=0)


def test_more_clients_leave_less_kv_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predictions, "_fitted", second_per_step)
    few, many = (predictions._profile(replace(ROW, clients=n)).kv_blocks for n in (256, 512))
    # On each of two GPUs, 256 more clients take 15 bytes for each of 151,936 tokens in the sampler,
    # and a step of 256 more tokens 10,240 bytes for each: together 279.5 blocks of 4 MiB.
    assert few - many in (279, 280)


def test_the_errors_of_pairs_are_printed_and_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "read_rows", lambda *_: ([ROW], {"expert parallelism": 3}))
    monkeypatch.setattr(predictions, "_profile", second_per_step)
    ran = silicon("--save", str(tmp_path / "e.json"))
    assert (ran.exit_code, silicon().exit_code) == (0, 1)  # the target of TTFT is missed
    # 1.9 ms in the API server and a step, instead of 0.8 s: 25.24%.
    assert mentions(ran.stdout, "TTFT", "25.2%", "TPOT", "0.0%", "1 measurement")
    assert "h200\tqwen3-32b\t1\t25.2%\t25.2%\t+25.2%\t0.0%\t0.0%\t+0.0%" in ran.stdout
    assert "left out\nexpert parallelism\t3" in ran.stdout
    monkeypatch.setattr(end_to_end, "FILE", tmp_path / "e.json")
    end_to_end_file.cache_clear()
    try:
        errors = [end_to_end_error("h200", "qwen3-32b", gpus) for gpus in (None, 2, 8)]
        assert [(e.rows, e.ttft, e.tpot) for e in errors if e] == [(1, 0.2524, 0.0)] * 3
        assert mentions(str(errors[0]), "TTFT 25%", "TPOT 0%", "1 measurement")
        assert end_to_end_error("h100", "qwen3-32b") is None
    finally:
        end_to_end_file.cache_clear()


def test_only_the_half_that_calibrates_nothing_is_judged() -> None:
    measured = [Prediction(replace(ROW, id=str(n), clients=n), 1.0, 1.0) for n in range(1, 101)]
    judging = [prediction for prediction in measured if prediction.row.judges]
    assert 35 <= len(judging) <= 65
    assert replace(judging[0].row, id="another", ttft_s=2.0).judges
    assert judge(measured) == judge(judging)
    others = [prediction for prediction in measured if not prediction.row.judges]
    assert [check.held for check in judge(others).checks] == [None, None]


def test_the_errors_in_the_package_are_of_listed_gpus_and_measured_models() -> None:
    errors = end_to_end_file().errors
    assert set(errors) <= set(HARDWARE)
    models = {checkpoint.model for checkpoint in CHECKPOINTS.values()}
    assert {model for pairs in errors.values() for model in pairs} <= models
    assert {each.model for each in CHECKPOINTS.values() if not each.config} <= set(MODELS)
    for pairs in errors.values():
        for pair in pairs.values():
            assert pair.all.rows == sum(own.rows for own in pair.by_gpus.values())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--hardware a100-80g", "--hardware a100-80g: no measurement of it; use "),
        ("--model gemma-3-12b", "--model gemma-3-12b: no measurement of it; use "),
        ("--hardware b200 --model qwen3-32b", "--model qwen3-32b: was not measured on"),
    ],
)
def test_invalid_input_is_refused_in_one_line(
    options: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ran = silicon(*options.split())
    assert (ran.exit_code, ran.stdout) == (2, "")
    assert len(ran.stderr.splitlines()) == 1
    assert ran.stderr.startswith(f"bench: {message}")
    assert not list(tmp_path.iterdir())


def silicon(*options: str) -> Result:
    app = typer.Typer()
    app.command()(main)
    return CliRunner().invoke(app, options)
