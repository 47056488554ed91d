"""vLLM's native KV offloading on a CPU. vLLM 0.32 loads this module as an out-of-tree spec.

The manager and the connector are vLLM's. Its worker copies between GPU and CPU; `MemcpyWorker`
copies within CPU memory. Copies are synchronous, so transfers are complete when submitted.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import torch
from vllm.v1.kv_offload.base import OffloadingWorker, TransferResult
from vllm.v1.kv_offload.cpu.spec import CPUOffloadingSpec


class MemcpyWorker(OffloadingWorker):  # type: ignore[misc]
    def __init__(self, kv_caches: Any, chunks: int) -> None:
        self._groups = [[ref.tensor_idx for ref in refs] for refs in kv_caches.group_data_refs]
        self._device = [cache.tensor for cache in kv_caches.tensors]
        """One tensor of shape (blocks, …) for each KV cache."""
        self._host = [torch.empty((chunks, *t.shape[1:]), dtype=t.dtype) for t in self._device]
        self._finished: list[TransferResult] = []

    def submit_store(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        started_s, copied = time.monotonic(), 0
        for tensor, blocks, chunks in self._pairs(src_spec, dst_spec):
            self._host[tensor][chunks] = self._device[tensor][blocks]
            copied += len(chunks) * self._host[tensor][0].nbytes
        return self._done(job_id, copied, started_s)

    def submit_load(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        started_s, copied = time.monotonic(), 0
        for tensor, blocks, chunks in self._pairs(dst_spec, src_spec):
            self._device[tensor][blocks] = self._host[tensor][chunks]
            copied += len(chunks) * self._host[tensor][0].nbytes
        return self._done(job_id, copied, started_s)

    def _pairs(self, device: Any, host: Any) -> Iterator[tuple[int, Any, Any]]:
        """Yield each tensor's index, its blocks, and the chunks with their copies."""
        first = 0
        for tensors, size in zip(self._groups, device.group_sizes, strict=True):
            blocks = torch.from_numpy(device.block_ids[first : first + size]).long()
            chunks = torch.from_numpy(host.block_ids[first : first + size]).long()
            first += size
            for tensor in sorted(set(tensors)):
                yield tensor, blocks, chunks

    def _done(self, job_id: int, copied_bytes: int, started_s: float) -> bool:
        duration_s = time.monotonic() - started_s
        self._finished.append(TransferResult(job_id, True, copied_bytes, duration_s))
        return True

    def get_finished(self) -> list[TransferResult]:
        finished, self._finished = self._finished, []
        return finished

    def wait(self, job_ids: set[int]) -> None:
        """Return immediately, since no copy is ever in progress."""


class MemcpySpec(CPUOffloadingSpec):  # type: ignore[misc]
    def get_worker(self, kv_caches: Any) -> MemcpyWorker:
        if self.blocks_per_chunk != 1:
            raise ValueError(f"{self.blocks_per_chunk} blocks per chunk: MemcpySpec supports one")
        return MemcpyWorker(kv_caches, self.num_chunks)
