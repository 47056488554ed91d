"""Convert the settings of a vLLM or SGLang server to the launcher's `ServerConfig`, and settings of
engines to what run folders record.

Fields of the same name have the same value.
"""

from __future__ import annotations

from harness.load.machines import refuse_list
from harness.load.option import build, values_of
from harness.load.settings import Answers, Machine, Server
from servers.records.settings import LimitsRecord, ServerRecord
from servers.sim import Limits
from servers.vllm.launch.command_line import ServerConfig
from servers.vllm.launch.cost_curve import read_costs
from servers.vllm.launch.offload_tier import OffloadTier


def server_config(
    machine: Machine,
    server: Server,
    model: str,
    policy: str | None = None,
    offload: OffloadTier | None = None,
) -> ServerConfig:
    refuse_list(machine)
    others = {
        "model": model,
        "policy": policy,
        "offload": offload,
        "mounts": server.mount,
        "costs": read_costs(server.costs) if server.costs else None,
        "recorded_answers": server.answers is Answers.RECORDED,
        "flags": server.vllm_flags,
    }
    return build(ServerConfig, {**values_of(machine), **values_of(server), **others})


def limits_record(limits: Limits | ServerConfig) -> LimitsRecord:
    """Settings that are off are absent. A server's own speculative decoding is one of its flags."""
    names = LimitsRecord.__struct_fields__
    return LimitsRecord(**{name: getattr(limits, name, None) or None for name in names})


def server_record(config: ServerConfig, server: Server, **versions: str | None) -> ServerRecord:
    """`versions`: versions of the software, by the name of the field."""
    others = {"answers": "recorded" if config.recorded_answers else None, **versions}
    values = {**values_of(server), **values_of(config), **others}
    names = values.keys() & ServerRecord.__struct_fields__
    return ServerRecord(**{name: values[name] for name in names})
