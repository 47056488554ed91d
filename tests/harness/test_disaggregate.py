"""Sweeps with separate prefill and decode engines: their variants, hardware and refusals."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from harness.load.settings import Load, Machine, Server, SweepSettings
from harness.sweep.resolve import resolve
from reports.metrics.cells import collect
from reports.run_folder.read import load_run
from servers.basics.errors import InvalidInput, UnknownName
from servers.records.settings import SplitRecord, TransferRecord
from tests.harness.small import run_sweep

SETTINGS = SweepSettings(
    jps="0.3",
    policies="fcfs",
    no_capacity=True,
    load=Load(programs=6, once=True),
    machine=Machine(hardware="h100", kv_blocks=12_000),
    server=Server(disaggregate="none,1P1D"),
)
EIGHTY_PERCENT_OF_NVLINK = 0.8 * 450e9


def test_two_replicas_and_a_split_of_them_are_compared_on_the_same_gpus() -> None:
    plan = resolve(SETTINGS)
    assert [variant.name for variant in plan.variants] == ["fcfs@sticky", "fcfs@sticky@1P1D"]
    both, split = [plan.cell_record(cell) for cell in plan.cells()]
    assert both.gpus == split.gpus == plan.sweep_record().gpus == 2
    assert (both.transfer, both.disaggregate) == (None, None)
    assert split.transfer == TransferRecord(bytes_per_s=EIGHTY_PERCENT_OF_NVLINK, latency_s=0.0)
    assert split.disaggregate == SplitRecord(name="1P1D", prefill=1, decode=1)
    assert plan.baseline == "fcfs@sticky"


def test_an_engine_of_two_gpus_sends_over_the_links_of_both() -> None:
    machine = replace(SETTINGS.machine, gpus=2)
    plan = resolve(replace(SETTINGS, machine=machine, server=Server(disaggregate="2P6D")))
    (cell,) = [plan.cell_record(cell) for cell in plan.cells()]
    assert cell.gpus == 16
    assert cell.transfer.bytes_per_s == 2 * EIGHTY_PERCENT_OF_NVLINK


def test_a_link_is_set_in_gigabytes_per_second() -> None:
    server = Server(disaggregate="1P1D", transfer_gb_per_s=50.0, transfer_latency_s=0.002)
    plan = resolve(replace(SETTINGS, server=server))
    (cell,) = [plan.cell_record(cell) for cell in plan.cells()]
    assert cell.transfer == TransferRecord(bytes_per_s=50e9, latency_s=0.002)


def test_the_parts_of_a_job_sum_to_its_jct(tmp_path: Path) -> None:
    run_sweep(resolve(SETTINGS), tmp_path / "run", workers=1)
    results = collect(load_run(tmp_path / "run"))
    assert results.failed_gates == {}
    cells = results.cells.set_index("variant")
    assert (cells["residual"] < 1e-6).all()
    jobs = results.jobs.groupby("variant")[["transfer_s", "decode_queue_s"]].sum()
    assert jobs.loc["fcfs@sticky"].tolist() == [0, 0]
    assert jobs.loc["fcfs@sticky@1P1D", "transfer_s"] > 0
    assert cells.loc["fcfs@sticky@1P1D", "replica_imbalance"] == 1


def test_variants_over_an_offload_tier_are_left_out_of_all() -> None:
    plan = resolve(replace(SETTINGS, policies="all"))
    assert {"lmcache", "continuum+"} <= {left.name for left in plan.left_out}
    assert not any(variant.offload for variant in plan.variants)


@pytest.mark.parametrize(
    "machine",
    [
        Machine(),
        Machine(model="qwen3-coder-next", hardware="h200"),
        Machine(speculate="ngram:3,accept=0.5"),
    ],
)
def test_only_variants_that_are_named_beside_all_must_run(machine: Machine) -> None:
    """No engine for prefill or decode has a tier, no tier stores states, and no loads are modelled
    beside drafts."""
    server = Server(disaggregate="1P1D") if machine == Machine() else Server()
    settings = replace(SETTINGS, machine=machine, server=server)
    plan = resolve(replace(settings, policies="all,continuum(k=7)"))
    assert {"lmcache", "continuum+"} <= {left.name for left in plan.left_out}
    assert any(variant.name.startswith("continuum(k=7)") for variant in plan.variants)
    with pytest.raises(InvalidInput, match=r"continuum\(k=7\)\+ has|continuum\(k=7\)\+: has"):
        resolve(replace(settings, policies="all,continuum(k=7)+"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"server": Server(disaggregate="0P1D")}, "0P1D: write the numbers"),
        (
            {"server": Server(disaggregate="1P1D", replicas=2)},
            "--replicas 2: --disaggregate 1P1D says how many engines there are; remove --replicas",
        ),
        ({"policies": "lmcache"}, "lmcache has an offload tier, .* remove it from --policies"),
        (
            {"machine": Machine(engine="vllm")},
            "--disaggregate none,1P1D: not supported by --engine vllm; remove it, or use --engine",
        ),
        ({"machine": Machine(engine="vllm-virtual")}, "not supported by --engine vllm-virtual"),
        ({"machine": Machine(engine="http://127.0.0.1:9")}, "or use --engine sim"),
        ({"machine": Machine(hardware="h100", model="gpt-oss-20b")}, "sliding windows"),
        ({"server": Server(transfer_gb_per_s=4.0)}, "add --disaggregate 1P1D"),
        ({"server": Server(disaggregate="1P1D", transfer_gb_per_s=0.0)}, "must be above 0"),
    ],
)
def test_what_cannot_be_disaggregated_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        resolve(replace(SETTINGS, **changes))  # type: ignore[arg-type]


def test_an_unknown_router_is_refused() -> None:
    with pytest.raises(UnknownName, match="no router is called 'nope'"):
        resolve(replace(SETTINGS, server=Server(disaggregate="1P1D", router="nope")))
