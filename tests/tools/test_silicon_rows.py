"""The reader of end-to-end measurements, on rows of the same form."""

from __future__ import annotations

import csv
import io

import pytest

from servers.admission import Admission
from servers.profiles import model
from servers.profiles.cpu_time import Scheduling
from tools.silicon.rows import CHECKPOINTS, Checkpoint, Row, parse

PUBLIC = "source_file=2026-04-06.csv; model=Llama-3.1-70B; measured=2025-10-29T00:00:00.000Z"
ROW = {
    "id": "a",
    "silicon_data_source": PUBLIC,
    "backend": "vllm",
    "backend_version": "",
    "model_path": "meta-llama/Llama-3.1-70B",
    "system": "h200_sxm",
    "precision": "fp8",
    "mode": "agg",
    "isl": "1000",
    "osl": "100",
    "batch_size": "4",
    "tp_size": "2",
    "pp_size": "1",
    "attention_dp_size": "1",
    "moe_tp_size": "2",
    "moe_ep_size": "1",
    "silicon_ttft_ms": "120.5",
    "silicon_tpot_ms": "13.25",
}
GPT_OSS = {"model_path": "openai/gpt-oss-120b", "precision": "fp4"}
QWEN = {"model_path": "Qwen/Qwen3-32B", "precision": ""}
MINIMAX = {"model_path": "MiniMaxAI/MiniMax-M2.5", "precision": "fp8"}
KIMI = {"model_path": "moonshotai/Kimi-K2.5", "precision": "int4"}


def lines(*rows: dict[str, str]) -> list[str]:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(ROW))
    writer.writeheader()
    writer.writerows({**ROW, **row} for row in rows)
    return text.getvalue().splitlines()


def only(**changes: str) -> Row:
    [row], left_out = parse(lines(changes))
    assert not left_out
    return row


def test_a_row_is_read_in_seconds_and_in_names_of_turnstile() -> None:
    row = only()
    assert (row.hardware, row.model, row.gpus, row.clients) == ("h200", "llama-3.3-70b-fp8", 2, 4)
    assert (row.ttft_s, row.tpot_s) == (0.1205, 0.01325)
    assert row.checkpoint.dense
    assert row.public


def test_rows_are_left_out_of_the_gpu_and_model_that_were_chosen() -> None:
    two = lines({"moe_ep_size": "2"}, {"moe_ep_size": "2", **GPT_OSS})
    assert parse(two)[1] == {"expert parallelism": 2}
    assert parse(two, "h200", "gpt-oss-120b")[1] == {"expert parallelism": 1}
    assert parse(two, "h100")[1] == {}


def test_rows_of_other_engines_do_not_count() -> None:
    assert parse(lines({"backend": "trtllm"}, {"backend": "sglang"})) == ([], {})


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"mode": "disagg", "batch_size": "", "tp_size": ""}, "prefill and decode on separate"),
        ({"pp_size": "2"}, "pipeline parallelism"),
        ({"attention_dp_size": "4"}, "data parallelism"),
        ({"moe_ep_size": "4"}, "expert parallelism"),
        ({"moe_tp_size": "4"}, "attention and experts on different numbers of GPUs"),
        ({"system": "mi300x"}, "no GPU of this name: mi300x"),
        ({"model_path": "a/b"}, "no model of this name: a/b fp8"),
    ],
)
def test_a_row_that_cannot_be_expressed_is_counted_by_reason(
    changes: dict[str, str], reason: str
) -> None:
    rows, left_out = parse(lines(changes, changes, {}))
    assert len(rows) == 1
    [(found, count)] = left_out.items()
    assert (found.startswith(reason), count) == (True, 2)


def test_a_measurement_counts_once_although_several_rows_have_it() -> None:
    rows, left_out = parse(lines({}, {"id": "b"}, {"silicon_ttft_ms": "121"}))
    assert [row.id for row in rows] == ["a", "a"]
    assert left_out == {"the same measurement as another row": 1}


def test_a_rounded_copy_of_public_rows_does_not_count_again() -> None:
    copy = "source_file=kimi-k2.5-gap-analysis.csv; silicon_concurrency=4"
    rows, left_out = parse(lines(KIMI, {**KIMI, "silicon_data_source": copy}))
    assert [row.public for row in rows] == [True]
    assert left_out == {"the same measurement as another row": 1}


def test_public_rows_have_lengths_of_80_to_100_percent() -> None:
    requests = only().requests()
    assert len(requests) == 10 * 4
    assert all(800 <= prompt <= 1000 and 80 <= output <= 100 for prompt, output in requests)
    # NumPy's legacy generator with seed 0: randint(800, 1001) begins with 972, 847.
    assert [prompt for prompt, _ in requests[:2]] == [972, 847]


def test_other_rows_have_exact_lengths() -> None:
    assert set(only(silicon_data_source="source_file=a.csv").requests()) == {(1000, 100)}


@pytest.mark.parametrize(
    ("version", "rule"),
    [
        ("", Admission.FIRST_CHUNK),
        ("0.12.0", Admission.FIRST_CHUNK),
        ("0.19.0", Admission.WHOLE_PROMPT),
        ("nightly-5b8c30d", Admission.WHOLE_PROMPT),
    ],
)
def test_the_rule_of_admission_depends_on_the_version(version: str, rule: Admission) -> None:
    assert only(backend_version=version).admission == rule


def test_only_the_benchmark_of_aiconfigurator_on_h200_repeats_prompts() -> None:
    other = "source_file=a.csv"
    assert only(silicon_data_source=other).prompts == 100
    assert only(silicon_data_source=other, system="h100_sxm").prompts is None
    assert only().prompts is None


def test_each_client_warms_up_with_one_request_where_prompts_are_repeated() -> None:
    other = "source_file=a.csv"
    assert only(silicon_data_source=other).warm_up() == [(1000, 100)] * 4
    assert only(silicon_data_source=other, system="h100_sxm").warm_up() == []


def test_public_servers_schedule_asynchronously() -> None:
    assert only().scheduling == Scheduling.ASYNC
    assert only(silicon_data_source="source_file=a.csv").scheduling == Scheduling.SYNC


def test_kv_has_8_bits_where_those_who_deployed_the_servers_say_so() -> None:
    assert only().kv_fp8
    assert not only(**GPT_OSS).kv_fp8
    late = PUBLIC.replace("2025-10-29", "2026-02-25")
    assert only(**GPT_OSS, system="b200_sxm", silicon_data_source=late).kv_fp8
    assert only(silicon_data_source="source_file=a.csv").kv_fp8
    assert not only(**QWEN, silicon_data_source="source_file=a.csv").kv_fp8
    assert only(**MINIMAX).kv_fp8
    assert not only(**KIMI).kv_fp8


def test_tokens_per_step_are_those_of_the_scripts_that_started_the_servers() -> None:
    assert only().step_tokens == only(**KIMI).step_tokens == 8192
    assert only(**MINIMAX).step_tokens == 32_768  # on H200
    assert only(**MINIMAX, system="b200_sxm").step_tokens == 2 * 1000
    assert only(silicon_data_source="source_file=a.csv").step_tokens == 4 + 1000 + 1500


@pytest.mark.parametrize(
    "checkpoint", [each for each in CHECKPOINTS.values() if each.config], ids=lambda c: c.model
)
def test_models_that_are_not_listed_have_a_config_in_the_package(checkpoint: Checkpoint) -> None:
    pytest.importorskip("aiconfigurator_core")
    llm = model(checkpoint.source)
    formats = {"fp8": "FP8", "fp4": "NVFP4", "int4": "INT4"}
    assert llm.precision == formats[checkpoint.model.rpartition("-")[2]]
    assert checkpoint.dense == (not llm.experts)
