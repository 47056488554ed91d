"""Builds SGLang's scheduler without a GPU, a server or a forward pass.

In: a scheduler of SGLang and the sizes of a server. Out: SGLang's `Scheduler`, as its server builds
it for a model with one small layer, with its radix cache and memory pools on the CPU. Runs under
SGLang's interpreter.
"""

from __future__ import annotations

import gc
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from sglang.srt.distributed.parallel_state import (
    destroy_distributed_environment,
    destroy_model_parallel,
)
from sglang.srt.managers.scheduler import Scheduler
from sglang.srt.managers.scheduler_components.ipc_channels import (
    SchedulerIpcChannels,
)
from sglang.srt.managers.scheduler_components.output_streamer import (
    SchedulerOutputStreamer,
)
from sglang.srt.managers.tp_worker import TpModelWorker
from sglang.srt.managers.utils import GenerationBatchResult
from sglang.srt.runtime_context import SpawnRanks, get_device, publish, reset_context
from sglang.srt.server_args import PortArgs, prepare_server_args
from sglang.srt.utils.torch_memory_saver_adapter import TorchMemorySaverAdapter

from servers.basics.errors import EngineError
from servers.sglang.schedulers import SglangScheduler
from servers.sglang.turns import RESERVED_TOKENS

VOCABULARY = 1024
MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "vocab_size": VOCABULARY,
    "torch_dtype": "bfloat16",
}
Forward = Callable[[Any], list[int]]
"""Returns the next token of each request of a batch."""


class VirtualWorker(TpModelWorker):  # type: ignore[misc]
    """SGLang's worker with its memory pools, and another forward pass."""

    forward: Forward

    def forward_batch_generation(self, batch: Any, **_: Any) -> Any:
        return GenerationBatchResult(next_token_ids=torch.tensor(self.forward(batch)))


class NoOutput(SchedulerOutputStreamer):  # type: ignore[misc]
    """Sends no tokens, since there is no detokenizer."""

    def stream_output(self, *_: Any, **__: Any) -> None:
        pass


class VirtualScheduler(Scheduler):  # type: ignore[misc]
    """SGLang's scheduler without sockets. It reports the requests that it retracts."""

    on_retract: Callable[[Any], None]

    def init_ipc_channels(self, port_args: Any) -> None:
        self.ipc_channels = SchedulerIpcChannels.create(
            port_args=port_args,
            is_rank_zero=False,
            skip_tokenizer_init=True,
            metrics_enabled=False,
            enable_scripted_runtime=False,
        )
        self.load_snapshot_writer = self.recv_from_tokenizer = None

    def init_watch_dog_memory_saver_input_blocker(self) -> None:
        """Start no watchdog: its thread interrupts slow processes, and keeps the scheduler."""
        self.memory_saver_adapter = TorchMemorySaverAdapter.create(enable=False)
        self.recv_skipper = self.input_blocker = None

    def get_output_streamer_class(self) -> type[SchedulerOutputStreamer]:
        return NoOutput

    def init_tp_model_worker(self) -> None:
        self.tp_worker = VirtualWorker(
            server_args=self.server_args, gpu_id=get_device().gpu_id, nccl_port=self.nccl_port
        )

    def _add_request_to_queue(self, req: Any, is_retracted: bool = False) -> None:
        super()._add_request_to_queue(req, is_retracted)
        if is_retracted:
            self.on_retract(req)


def _ports() -> Any:
    """Return the ports and sockets of a server, none of which is used."""
    names = ("tokenizer", "scheduler_input", "detokenizer", "rpc", "metrics")
    return PortArgs(
        **{f"{name}_ipc_name": "" for name in names},
        nccl_port=0,
        tokenizer_worker_ipc_name=None,
        decoupled_spec_ipc_config=None,
    )


def headless_scheduler(
    scheduler: SglangScheduler,
    *,
    kv_tokens: int,
    max_num_seqs: int,
    step_tokens: int,
    max_model_len: int,
    forward: Forward,
    on_retract: Callable[[Any], None],
) -> Any:
    """Build a scheduler in place of this process's previous one: SGLang has one at a time."""
    destroy_model_parallel()
    destroy_distributed_environment()
    reset_context()
    gc.collect()  # ends the threads of its process groups
    context = max_model_len + RESERVED_TOKENS
    with tempfile.TemporaryDirectory(prefix="turnstile-") as folder:
        config = {**MODEL, "max_position_embeddings": context}
        Path(folder, "config.json").write_text(json.dumps(config))
        args = prepare_server_args(
            [
                *("--model-path", folder, "--load-format", "dummy", "--skip-tokenizer-init"),
                *("--device", "cpu", "--attention-backend", "torch_native"),
                *("--disable-overlap-schedule", "--log-level", "error"),
                *("--random-seed", "0", "--context-length", str(context)),
                *("--max-total-tokens", str(kv_tokens)),
                *("--max-running-requests", str(max_num_seqs)),
                *("--chunked-prefill-size", str(step_tokens)),
                *scheduler.flags(),
            ]
        )
        # PyTorch's group of one process would otherwise listen on all network interfaces.
        os.environ["SGLANG_DISTRIBUTED_INIT_METHOD_OVERRIDE"] = f"file://{folder}/group"
        publish(args, role="scheduler", ranks=SpawnRanks(world_rank=0, dp_rank=None, gpu_id=0))
        built = VirtualScheduler(args, _ports())
    if built.max_total_num_tokens != kv_tokens:
        raise EngineError(
            f"this machine has memory for a pool of {built.max_total_num_tokens} tokens instead of "
            f"{kv_tokens}; give a smaller --kv-blocks"
        )
    built.model_config.vocab_size = 1 << 60  # tokens here are numbers of contents
    built.tp_worker.forward = forward
    built.on_retract = on_retract
    return built
