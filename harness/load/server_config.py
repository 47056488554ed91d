"""Convert the settings of a vLLM or SGLang server to the launcher's `ServerConfig`, and to what run
folders record."""

from __future__ import annotations

from harness.load.machines import refuse_list
from harness.load.settings import Answers, Machine, Server
from servers.records.settings import ServerRecord
from servers.vllm.launch.command_line import ServerConfig
from servers.vllm.launch.cost_curve import read_costs
from servers.vllm.launch.offload_tier import Offloading


def server_config(
    machine: Machine,
    server: Server,
    model: str,
    policy: str | None = None,
    offload: Offloading | None = None,
) -> ServerConfig:
    refuse_list(machine)
    return ServerConfig(
        model=model,
        policy=policy,
        image=server.image,
        mounts=server.mount,
        offload=offload,
        weights=server.weights,
        hardware=machine.hardware,
        step_times=machine.step_times,
        costs=read_costs(server.costs) if server.costs else None,
        kv_blocks=machine.kv_blocks,
        max_model_len=machine.max_model_len,
        max_num_seqs=machine.max_num_seqs,
        step_tokens=machine.step_tokens,
        admission=machine.admission,
        kv_cache_dtype=machine.kv_cache_dtype,
        gpus=machine.gpus,
        recorded_answers=server.answers is Answers.RECORDED,
        flags=server.vllm_flags,
    )


def server_record(config: ServerConfig, server: Server) -> ServerRecord:
    """Return the record without the versions of the software."""
    return ServerRecord(
        image=config.image,
        weights=config.weights,
        gpus=config.gpus,
        replicas=server.replicas,
        kv_blocks=config.kv_blocks,
        max_model_len=config.max_model_len,
        flags=config.flags,
        turn_timeout_s=server.turn_timeout_s,
        prompts=server.prompts,
        answers="recorded" if config.recorded_answers else None,
    )
