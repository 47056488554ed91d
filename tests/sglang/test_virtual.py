"""What SGLang's scheduling in virtual time refuses; test_scheduling.py runs it."""

from __future__ import annotations

import platform
import sys
from pathlib import Path

import pytest

from harness.engines.base import resolve_engine
from harness.load.settings import Machine, Server, SweepSettings
from servers.basics.errors import NotInstalled

SETTINGS = SweepSettings(policies="fcfs", machine=Machine(engine="sglang-virtual"))
MODEL = {"engine": "sglang-sim"}


@pytest.mark.parametrize(
    ("policies", "machine", "message"),
    [
        ("continuum", {}, "continuum: is not a scheduler of SGLang"),
        ("lpm(eviction=tlru)", {}, "SGLang needs a threshold for tlru"),
        ("fcfs", {"admission": "first-chunk"}, "sglang-virtual, which has its own rule; remove it"),
        ("fcfs", {"watermark": 0.1}, "whose scheduler is not vLLM's and has no such setting"),
        ("fcfs", {"speculate": "ngram:3,accept=0.5"}, "which has no drafts in virtual time"),
        (
            "fcfs",
            {"model": "gpt-oss-20b"},
            "gpt-oss-20b: has sliding windows, chunks, states or sparse",
        ),
        ("fcfs", {"model": "qwen3.5-35b-a3b"}, "whose memory sglang-virtual does not"),
        (
            "fcfs,hrrn",
            MODEL,
            "hrrn: sglang-sim schedules as fcfs and lpm only; use",
        ),
        ("fcfs(sessions=true)", MODEL, "sglang-sim evicts the least recently used KV only"),
        ("lpm(eviction=slru)", MODEL, "sglang-sim evicts the least recently used KV only"),
        ("fcfs", {**MODEL, "model": "gpt-oss-20b"}, "whose memory sglang-sim does not model"),
    ],
)
def test_what_it_cannot_do_is_refused(
    policies: str, machine: dict[str, object], message: str
) -> None:
    machine = {"engine": "sglang-virtual", "hardware": "h200", **machine}
    with pytest.raises(ValueError, match=message):
        resolve_engine(SweepSettings(policies=policies, machine=Machine(**machine)))  # type: ignore[arg-type]


@pytest.mark.parametrize("engine", ["sglang-sim", "sglang-virtual"])
def test_several_replicas_are_refused(engine: str) -> None:
    machine, server = Machine(engine=engine), Server(replicas=2, router="sticky")
    with pytest.raises(ValueError, match=f"not supported by --engine {engine}"):
        resolve_engine(SweepSettings(policies="fcfs", machine=machine, server=server))


def test_a_missing_sglang_is_refused_with_the_commands_to_install_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TURNSTILE_SGLANG_PYTHON", sys.executable)
    with pytest.raises(NotInstalled, match="has no SGLang; get it with: make sglang"):
        resolve_engine(SETTINGS)


def test_a_version_whose_private_code_was_not_tested_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sglang-0.5.24.dist-info").mkdir()
    metadata = tmp_path / "sglang-0.5.24.dist-info/METADATA"
    metadata.write_text("Metadata-Version: 2.1\nName: sglang\nVersion: 0.5.24\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("TURNSTILE_SGLANG_PYTHON", sys.executable)
    message = r"has SGLang 0\.5\.24, whose .* not tested .* 0\.5\.23's; get it with: make sglang"
    with pytest.raises(NotInstalled, match=message):
        resolve_engine(SETTINGS)


def test_another_machine_than_x86_64_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    with pytest.raises(NotInstalled, match="x86-64 only, and this machine is aarch64; use"):
        resolve_engine(SETTINGS)
