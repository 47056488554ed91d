"""`bench profile`, also with --show: its output, and one line for invalid input."""

from __future__ import annotations

import json
import os
from importlib.util import find_spec
from pathlib import Path

import pytest

from harness.calibrate import step_times
from harness.calibrate.probe import Target
from harness.calibrate.step_times import CalibrationTimes
from harness.cli.measure_profile import _check_blocks, _measure
from servers.basics.errors import InvalidInput
from servers.profiles import HARDWARE, MODELS
from servers.profiles.kv_cache_dtype import KvCacheDtype
from servers.vllm.launch.command_line import ServerConfig
from servers.vllm.launch.server import ServerInfo
from servers.vllm.models.model_folder import model_at_url
from tests.harness.in_process import bench
from tests.profiles.test_measured import DECODE, PREFILL
from tests.sentences import mentions
from tests.servers.substitute_vllm import substitute_vllm

URL = "http://127.0.0.1:9"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("profile --tier disk", "--tier disk: use lmcache or native"),
        (
            "profile --tier native --url http://127.0.0.1:9",
            "--tier native: not supported with --url",
        ),
        ("profile --url http://127.0.0.1:9", "--url http://127.0.0.1:9: not a vLLM server"),
        ("profile --model nowhere", "--model nowhere is not a folder and not a known name"),
        ("profile --out /proc/self/p.json", "cannot write /proc/self/p.json: "),
        ("profile --within-s 5", "--within-s '5': must be greater"),
        ("profile --hardware h100", "--hardware: only with --show, --url or --from"),
        ("profile --backend-version 1", "--backend-version: only with --from"),
        ("profile --from tables", "--from tables: use aiconfigurator or aisimulate"),
        ("profile --from aiconfigurator", "--from aiconfigurator: needs --hardware"),
        (
            "profile --from aiconfigurator --hardware h100 --tier native",
            "--tier: not supported with --from; remove it",
        ),
        (
            "profile --from aiconfigurator --hardware h100 -- --enforce-eager",
            "flags for vLLM: not supported with --from; remove it",
        ),
        (
            "profile --from aiconfigurator --hardware l40s --model llama-3.1-70b --gpus 2",
            "llama-3.1-70b does not fit on 2 x l40s",
        ),
        ("profile --from aiconfigurator --hardware rtx-5090", "--hardware rtx-5090: aiconf"),
        ("profile --show --hardware h10", "--hardware h10: unknown; did you mean h100?"),
        ("profile --show --hardware none.json", "none.json: No such file or directory"),
        ("profile --show --tier native", "--tier: not supported with --show; remove it"),
        ("profile --show --out p.json", "--out: not supported with --show; remove it"),
        ("profile --json", "--json: only with --show; remove it"),
        ("profile --show --step-tokens 0", "--step-tokens 0: must be at least 1"),
        ("profile --show --max-num-seqs 0", "--max-num-seqs 0: must be at least 1"),
    ],
)
def test_invalid_input_is_refused_in_one_line(
    options: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = bench(*options.split())
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert err.startswith(f"bench: {message}")
    assert not list(tmp_path.iterdir())


def measured_times(*_: object) -> CalibrationTimes:
    return CalibrationTimes(prefill=list(PREFILL), decode=list(DECODE))


@pytest.mark.parametrize(
    ("model", "groups", "kv_tokens"),
    [
        ("tiny", (None,), 999 * 544),
        # A turn of 54,400 tokens has 100 blocks of attention and two in each group of states.
        ("qwen3.5-27b", (0, 0, 0, None), int(999 / 106 * 54_400)),
    ],
)
def test_a_measured_profile_has_the_groups_of_states(
    model: str, groups: tuple[int | None, ...], kv_tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    targets: list[Target] = []

    def measure(target: Target, *_: object) -> CalibrationTimes:
        targets.append(target)
        return measured_times()

    monkeypatch.setattr(step_times, "measure", measure)
    info = ServerInfo(model, "0.32.0", "a GPU", 1000, 544, 54_400, (0, 9), {}, (), None, None, True)
    llm = MODELS["llama-3.1-8b" if model == "tiny" else model]
    found = _measure("http://127.0.0.1:9", info, ServerConfig(model=model), llm, 60.0)
    assert found.kv_groups == found.profile().kv_groups == groups
    assert found.schedules_ahead
    assert targets[0].kv_tokens == kv_tokens


@pytest.mark.parametrize(
    ("model", "reported", "gpu", "entry_bytes"),
    [
        ("deepseek-v3.2", "fp8", "h200", 656),
        ("deepseek-v3.2", "fp8", "b200", 576),
        ("deepseek-v3.2", "fp8_ds_mla", None, 656),
        ("deepseek-v3.2", "fp8_ds_mla", "b200", 656),
        ("deepseek-v3.2", "auto", "b200", 1152),
        ("deepseek-v3.2", "auto", "rtx-pro-6000", 656),
        ("glm-5.1-fp8", "fp8_e4m3", "b200", 576),
    ],
)
def test_kv_bytes_follow_from_the_reported_format_and_the_gpu(
    model: str, reported: str, gpu: str | None, entry_bytes: int
) -> None:
    llm, dtype = model_at_url(URL, model, "auto", reported, None if gpu is None else HARDWARE[gpu])
    assert llm.kv_bytes_per_token == llm.layers * (entry_bytes + 132)  # beside the indexer's key
    assert (dtype == KvCacheDtype.AUTO) == (reported == "auto")


def test_a_model_whose_blocks_have_two_lengths_cannot_be_measured() -> None:
    with pytest.raises(InvalidInput, match="gemma-4-26b-a4b: its blocks of KV have two lengths"):
        _check_blocks(MODELS["gemma-4-26b-a4b"])
    _check_blocks(MODELS["gpt-oss-20b"])


def test_a_server_reports_fp8_as_vllm_resolves_it() -> None:
    llm, dtype = model_at_url(URL, "llama-3.1-8b", "auto", "fp8_e4m3", None)
    assert (llm.kv_bytes_per_token, dtype) == (32 * 2 * 8 * 128, KvCacheDtype.FP8)


@pytest.mark.parametrize(
    ("model", "reported", "message"),
    [
        ("glm-5.1-fp8", "fp8_e4m3", "KV bytes of glm-5.1-fp8 depend on the GPU; .* --hardware"),
        ("llama-3.1-8b", "nvfp4", "KV in nvfp4 is not supported; start the server with --kv-cache"),
    ],
)
def test_a_server_whose_kv_bytes_are_unknown_is_refused(
    model: str, reported: str, message: str
) -> None:
    with pytest.raises(InvalidInput, match=rf"^--url {URL}: .*{message}"):
        model_at_url(URL, model, "auto", reported, None)


def test_a_server_on_this_machine_has_the_kv_of_its_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    smi = tmp_path / "nvidia-smi"
    smi.write_text("#!/bin/sh\necho NVIDIA B200\n")
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(step_times, "measure", measured_times)
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "glm"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(MODELS["glm-5.1-fp8"].config))
    python = str(substitute_vllm(tmp_path, "healthy", "0.32.0"))
    code, _, err = bench("profile", "--model", "./glm", "--vllm-python", python, "--out", "p.json")
    assert code == 0, err
    assert json.loads(Path("p.json").read_text())["kv_bytes_per_token"] == 78 * (576 + 132)


def show(*options: str) -> str:
    code, out, err = bench("profile", "--show", *options)
    assert code == 0, err
    return out


def test_show_prints_step_times_memory_and_provenance() -> None:
    shown = show("--hardware", "h100", "--model", "llama-3.1-8b").splitlines()
    assert shown[0] == "llama-3.1-8b on 1 x h100, operator-table profile"
    decode = next(line for line in shown if line.startswith("decode\tbatch 32, context 16,384"))
    # 32 x 16,384 tokens are more than the KV memory
    assert "context 16,384 (does not fit)\t" in decode
    assert decode.endswith("\ttables 28.5 ms")
    assert "KV memory\t448,784 tokens" in shown
    assert any(line.startswith("fit error, decodes\t") for line in shown)


def test_show_prints_analytic_step_times_on_request() -> None:
    options = ("--hardware", "h100", "--model", "llama-3.1-8b", "--step-times", "analytic")
    shown = show(*options).splitlines()
    assert shown[0] == "llama-3.1-8b on 1 x h100, analytic profile"
    assert not any("tables" in line for line in shown)


def test_show_says_that_step_times_of_a_pipeline_are_those_of_a_stage() -> None:
    options = ("--hardware", "l40s", "--model", "qwen3-32b", "--gpus", "4", "--layout", "pp")
    assert show(*options).splitlines()[2] == "step times of one of 4 stages"
    assert json.loads(show(*options, "--json"))["stages"] == 4


def test_show_prints_twice_the_kv_memory_in_fp8() -> None:
    shown = show("--hardware", "h100", "--kv-cache-dtype", "fp8").splitlines()
    assert "KV memory\t897,568 tokens" in shown


def test_show_prints_the_kv_memory_that_larger_steps_leave() -> None:
    """768 turns take 15 bytes more for each entry of the vocabulary, and 6,144 tokens 2 bytes more
    for each of 2,048 values. A token of KV has 98,304 bytes."""
    machine = "--hardware", "h100", "--model", "qwen3-30b-a3b", "--json"
    plain = json.loads(show(*machine))
    large = json.loads(show(*machine, "--max-num-seqs", "1024", "--step-tokens", "8192"))
    missing = (768 * 151_936 * 15 + 6144 * 2048 * 2) / 98_304
    assert plain["kv_tokens"] - large["kv_tokens"] == pytest.approx(missing, abs=16)


def test_show_prints_json_with_the_points_of_the_table() -> None:
    shown = json.loads(show("--hardware", "h100", "--model", "llama-3.1-8b", "--json"))
    assert set(shown) == {
        *("hardware", "model", "gpus", "stages", "max_model_len"),
        *("steps", "kv_tokens", "provenance", "notes"),
        *("fit_errors", "end_to_end"),
    }
    assert (shown["hardware"], shown["model"]) == ("h100", "llama-3.1-8b")
    assert (shown["gpus"], shown["max_model_len"]) == (1, 131_072)
    assert shown["kv_tokens"] == 448_784
    assert shown["provenance"].startswith("operator-table: ")
    assert set(shown["fit_errors"]) == {"prefills", "decodes", "mixed steps"}
    sizes = ("kind", "tokens", "cached", "batch", "context")
    assert [{k: v for k, v in step.items() if k in sizes} for step in shown["steps"]] == [
        {"kind": "prefill", "tokens": 8192, "cached": 0},
        {"kind": "prefill", "tokens": 32768, "cached": 0},
        {"kind": "prefill", "tokens": 1024, "cached": 31744},
        {"kind": "decode", "batch": 1, "context": 2048},
        {"kind": "decode", "batch": 32, "context": 2048},
        {"kind": "decode", "batch": 32, "context": 16384},
        {"kind": "mixed", "tokens": 2048, "cached": 7168, "batch": 32, "context": 16384},
    ]
    # four chunks, each followed by 0.2 ms of CPU time
    assert shown["steps"][0]["tables_ms"] == pytest.approx(199.7, abs=0.1)
    assert shown["steps"][0]["ms"] == pytest.approx(199.7 + 4 * 0.2, rel=0.05)
    # the tables compute a prompt in one step, and so does this time, without rounds of chunks
    assert shown["steps"][0]["one_step_ms"] == pytest.approx(199.7 + 0.2, rel=0.05)
    assert not any("one_step_ms" in step for step in shown["steps"][3:])
    assert [step["fits"] for step in shown["steps"]] == [True] * 5 + [False] * 2


@pytest.mark.skipif(find_spec("aiconfigurator_core") is None, reason="needs aiconfigurator-core")
def test_a_profile_of_operator_tables_can_be_made_shown_and_swept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(command: str) -> str:
        code, out, err = bench(*command.split())
        assert code == 0, err
        return out

    monkeypatch.chdir(tmp_path)
    Path("models").mkdir()
    Path("models/ours.json").write_text(json.dumps(dict(MODELS["llama-3.1-8b"].config)))
    made = run("profile --from aiconfigurator --hardware h100 --model models/ours.json")
    again = "profile --from aiconfigurator --hardware l40s --out h100-ours.json"
    code, out, err = bench(*again.split())
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert mentions(err, "--out h100-ours.json", "exists already")
    shown = run("profile --show --hardware h100-ours.json")
    assert made == f"{shown}profile: h100-ours.json\n"
    assert "fit error, mixed steps\t" in shown
    sweep = (
        "sweep --hardware h100-ours.json --once --jps 0.3 --policies fcfs --programs 3 --out runs/h"
    )
    assert run(sweep)
    assert run(sweep)
    profile = json.loads((tmp_path / "runs/h/sweep.json").read_text())["profile"]
    assert profile["provenance"] == "operator-table"
    assert profile["knots"][0][0] == 1
