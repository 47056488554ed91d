"""The options of `bench sweep` and `bench run`, as given; None where others decide."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path

from servers.errors import InvalidInput

OPTIONS = {"text": "--prompts text", "mounts": "--mount"}
"""Those that are called otherwise than their field."""


@dataclass(frozen=True, slots=True)
class Server:
    """Options of live engines (`--engine vllm`, `--engine URL`)."""

    vllm_python: str | None = None
    image: str | None = None
    mounts: tuple[Path, ...] = ()
    weights: str = "auto"
    costs: Path | None = None
    replicas: int = 1
    flags: tuple[str, ...] = ()
    """vLLM's own."""
    ready_within_s: float = 900.0
    turn_timeout_s: float = 3600.0
    lost_after_s: float = 60.0
    stuck_after_s: float = 900.0
    text: bool = False
    """The recorded messages verbatim, instead of token ids."""
    events: Path | None = None
    """Where the plug-in of a server that runs already writes its events."""

    def refuse_all(self, engine: str, but: tuple[str, ...] = ()) -> None:
        """Options that this engine could only ignore. The Python may come from the environment."""
        if self.flags and "flags" not in but:
            raise InvalidInput(
                f"{' '.join(self.flags)}: flags for vLLM, of which --engine {engine} takes none; "
                "leave them out (traces are given with --traces)"
            )
        for name, value in asdict(self).items():
            if name not in (*but, "vllm_python") and value != getattr(Server(), name):
                option = OPTIONS.get(name, "--" + name.replace("_", "-"))
                raise InvalidInput(f"{option}: --engine {engine} has no use for it; leave it out")


@dataclass(frozen=True, slots=True)
class Agents:
    """Options of live agents."""

    name: str | None = None
    command: str | None = None
    tasks: Path | None = None
    guided: bool = False
    """Answers come from the trace, the engine's work from the engine."""
    python: str | None = None
    config: Path | None = None
    sandbox: str = "bubblewrap"
    unconfined: bool = False
    network: bool = False
    readable: tuple[Path, ...] = ()
    task_limit_s: float = 900.0
    processes: int = 256
    memory_gb: float = 4.0
    disk_gb: float = 10.0

    @property
    def asked_by(self) -> str:
        return f"--agent {self.name}" if self.command is None else "--agent-command"


@dataclass(frozen=True, slots=True)
class SweepSettings:
    jps: str | None = None
    policies: str = "all"
    traces: tuple[str, ...] = ()
    engine: str = "sim"
    hardware: str | None = None
    model: str | None = None
    gpus: int | None = None
    programs: int | None = None
    seeds: str = "1"
    arrivals: str = "poisson"
    offload_gb: float | None = None
    ssd_gb: float = 0.0
    max_num_seqs: int = 256
    step_tokens: int = 2048
    max_model_len: int | None = None
    kv_blocks: int | None = None
    baseline: str | None = None
    refuse_overlong: bool = False
    server: Server = field(default_factory=Server)
    agent: Agents = field(default_factory=Agents)
