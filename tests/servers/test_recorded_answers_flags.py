"""`--answers recorded`: how vLLM is started, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from harness.engines.base import resolve_engine
from harness.load.settings import Answers, Machine, Prompts, Server, SweepSettings
from servers.basics.errors import InvalidInput
from servers.vllm.launch.command_line import ServerConfig, flags
from servers.vllm.launch.find_vllm import VllmInstallation
from servers.vllm.models.model_folder import resolve_model
from tests.servers.substitute_vllm import substitute_vllm

ON_CPU = VllmInstallation("python", "0.32.0", True, None, True)
ON_GPU = VllmInstallation("python", "0.32.0", False, None, True, has_trace_replay=True)
LOGITS_PROCESSOR = "servers.vllm.plugin.recorded_answers:RecordedAnswers"


def started(vllm: VllmInstallation, *, recorded: bool) -> list[str]:
    config = ServerConfig(policy="fcfs", recorded_answers=recorded)
    return list(flags(config, vllm, resolve_model("tiny", "auto"), 8000))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_model_runner_v1_gets_a_logits_processor_and_v2_its_own_replay() -> None:
    on_cpu, on_gpu = (started(vllm, recorded=True) for vllm in (ON_CPU, ON_GPU))
    assert on_cpu[on_cpu.index("--logits-processors") + 1] == LOGITS_PROCESSOR
    assert "--enable-trace-replay" not in on_cpu
    assert "--enable-trace-replay" in on_gpu
    assert "--logits-processors" not in on_gpu


def test_without_recorded_answers_vllm_gets_no_replay_options() -> None:
    for vllm in (ON_CPU, ON_GPU):
        assert not {"--logits-processors", "--enable-trace-replay"} & {
            *started(vllm, recorded=False)
        }


def test_a_gpu_needs_a_version_with_the_replay() -> None:
    older = replace(ON_GPU, version="0.30.0", has_trace_replay=False)
    with pytest.raises(InvalidInput, match=r"vLLM 0\.30\.0 has no --enable-trace-replay"):
        started(older, recorded=True)


def test_it_needs_recorded_texts(tmp_path: Path) -> None:
    vllm = str(substitute_vllm(tmp_path, "healthy", "0.32.0"))
    server = Server(vllm_python=vllm, answers=Answers.RECORDED)
    settings = SweepSettings(machine=Machine(engine="vllm"), server=server, policies="fcfs")
    with pytest.raises(InvalidInput, match="--answers recorded: needs the recorded messages"):
        resolve_engine(settings)


def test_the_run_folder_says_which_answers_there_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.engines.vllm.check_loads", lambda *_: None)
    vllm = str(substitute_vllm(tmp_path, "healthy", "0.32.0"))
    for answers in Answers:
        server = Server(vllm_python=vllm, prompts=Prompts.TEXT, answers=answers)
        settings = SweepSettings(machine=Machine(engine="vllm"), server=server, policies="fcfs")
        _, engine, _ = resolve_engine(settings)
        recorded = answers is Answers.RECORDED
        assert engine.settings().server.answers == ("recorded" if recorded else None)
