"""Measures the CPU time that an offload tier adds to vLLM's steps.

    .venv-vllm/bin/python -m tests.bench.offload_cpu_time [--json] [ROUNDS]

Needs a vLLM for CPUs with LMCache (`make vllm`). Three arms run the same requests on vLLM's engine
core with a tiny model: `stock`, `native` (`OffloadingConnector`) and `lmcache`
(`LMCacheMPConnector` and its server process). Each arm is a process of its own; the arms take
turns in a new random order in each round, so that a busy machine disturbs all of them alike. Times
are CPU microseconds of the engine's thread in `Scheduler.schedule`, `Scheduler.update_from_output`
and the connector's methods on the worker. Copies of KV are not counted: on a GPU they run beside
the engine's thread. Time that a thread waits is not CPU time.

Workloads, with T running turns or prompts of B blocks:

    decode T      one step of T decodes
    store B       all steps of a prompt whose KV is on no tier, up to its end
    load B        all steps with work of a prompt whose KV is on the tier only; stock: on the device
"""

from __future__ import annotations

import itertools
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ARMS = ("stock", "native", "lmcache")
BLOCK_TOKENS = 32
"""vLLM for CPUs needs a multiple of 32."""
DECODES = (1, 16, 64)
PROMPT_BLOCKS = (64, 256)
STEPS = 256
"""Decode steps of a measurement: each turn fills 8 blocks, and one chunk of LMCache."""
SETTLE_STEPS = 40
"""Steps of the other turn before and after a prompt, in which a tier completes its stores."""
CONTEXT = 500
KV_BLOCKS = 2000
DRAM_GB = 0.25
"""Full after the warm-up, so that each store evicts."""
PARTS = ("schedule", "update", "worker")
WORKER_METHODS = (
    "bind_connector_metadata",
    "start_load_kv",
    "wait_for_save",
    "get_transfer_results",
    "get_block_ids_with_load_errors",
    "get_kv_connector_stats",
    "get_kv_connector_kv_cache_events",
    "build_connector_worker_meta",
    "clear_connector_metadata",
)


class Clock:
    """CPU time of this thread in the functions that `wrap` replaced, without excluded ones."""

    def __init__(self) -> None:
        self.ns: dict[str, int] = {}
        self._excluded_ns = 0

    def wrap(self, owner: Any, name: str, label: str) -> None:
        inner = getattr(owner, name)

        def timed(*args: Any, **kwargs: Any) -> Any:
            begin_ns, excluded_ns = time.thread_time_ns(), self._excluded_ns
            try:
                return inner(*args, **kwargs)
            finally:
                took_ns = time.thread_time_ns() - begin_ns
                took_ns -= self._excluded_ns - excluded_ns
                self.ns[label] = self.ns.get(label, 0) + took_ns

        setattr(owner, name, timed)

    def exclude(self, owner: Any, name: str) -> None:
        inner = getattr(owner, name)

        def timed(*args: Any, **kwargs: Any) -> Any:
            begin_ns = time.thread_time_ns()
            try:
                return inner(*args, **kwargs)
            finally:
                self._excluded_ns += time.thread_time_ns() - begin_ns

        setattr(owner, name, timed)

    def take(self) -> dict[str, float]:
        """Return the microseconds since the last call."""
        taken, self.ns = self.ns, {}
        return {label: ns / 1000 for label, ns in taken.items()}


class Engine:
    """vLLM's engine core in this process."""

    def __init__(self, kind: str, folder: Path) -> None:
        from vllm.engine.arg_utils import EngineArgs
        from vllm.triton_utils import dispatcher
        from vllm.v1.engine.llm_engine import LLMEngine

        from servers.vllm.launch.find_vllm import find_vllm
        from servers.vllm.launch.offload_tier import OffloadTier, start_tier
        from servers.vllm.models.tiny_model import TINY_CONFIG, write_model

        write_model(folder / "tiny", TINY_CONFIG)
        self.tier, self.has_tier = None, kind != "stock"
        transfer: dict[str, Any] = {}
        if self.has_tier:
            flags, self.tier = start_tier(OffloadTier(kind, DRAM_GB), find_vllm(), folder)  # type: ignore[arg-type]
            transfer = {"kv_transfer_config": json.loads(flags[-1])}
        args = EngineArgs(
            model=str(folder / "tiny"),
            load_format="dummy",
            enforce_eager=True,
            dtype="bfloat16",
            block_size=BLOCK_TOKENS,
            num_gpu_blocks_override=KV_BLOCKS,
            max_model_len=60_000,
            max_num_seqs=max(DECODES),
            max_num_batched_tokens=2048,
            enable_prefix_caching=True,
            **transfer,
        )
        # LMCache imports numba, one of whose objects answers any attribute, `__dict__` too. vLLM
        # 0.32 expects a dict when it looks for Triton kernels in all modules.
        dispatcher.vars = lambda value: d if isinstance(d := vars(value), dict) else {}
        self._engine = LLMEngine.from_engine_args(args)
        self.core = self._engine.engine_core.engine_core
        self.scheduler = self.core.scheduler
        self.clock = Clock()
        self._tokens = random.Random(kind)
        self._ids = itertools.count()
        self._sent: list[str] = []
        self.loaded_tokens = 0
        self._watch(kind)

    def _watch(self, kind: str) -> None:
        clock = self.clock
        clock.wrap(self.scheduler, "schedule", "schedule")
        clock.wrap(self.scheduler, "update_from_output", "update")
        if kind == "stock":
            return
        from vllm.distributed.kv_transfer import get_kv_transfer_group

        connector, worker = self.scheduler.connector, get_kv_transfer_group()
        update = connector.update_state_after_alloc

        def count(request: Any, blocks: Any, tokens: int) -> None:
            self.loaded_tokens += tokens
            update(request, blocks, tokens)

        connector.update_state_after_alloc = count
        for name in WORKER_METHODS:
            clock.wrap(worker, name, "worker")
        if kind == "native":
            from servers.vllm.launch.memcpy_offload import MemcpyWorker

            clock.exclude(MemcpyWorker, "submit_store")
            clock.exclude(MemcpyWorker, "submit_load")
        else:
            from lmcache.v1.multiprocess.transfer_context import worker_transfer

            # For a GPU, a message to LMCache's server takes the place of these copies.
            copies = worker_transfer.EngineDrivenTransferContext
            clock.exclude(copies, "submit_store")
            clock.exclude(copies, "submit_retrieve")

    def prompt(self, tokens: int) -> list[int]:
        return [self._tokens.randrange(256) for _ in range(tokens)]

    def send(self, prompt: list[int], output: int) -> None:
        from vllm import SamplingParams

        key = f"r{next(self._ids)}"
        sampling = SamplingParams(max_tokens=output, ignore_eos=True, temperature=0.0)
        self._sent.append(self._engine.add_request(key, {"prompt_token_ids": prompt}, sampling))

    def step(self) -> dict[str, float]:
        """Run a step; return the microseconds of its parts."""
        self.core.step()
        return self.clock.take()

    def step_until(self, done: Callable[[], bool]) -> list[dict[str, float]]:
        steps = []
        while not done():
            steps.append(self.step())
        return steps

    def running(self, turns: int) -> bool:
        running = self.scheduler.running
        return len(running) == turns and all(r.num_output_tokens > 1 for r in running)

    def decode(self, turns: int) -> dict[str, float]:
        for _ in range(turns):
            self.send(self.prompt(CONTEXT), 50_000)
        self.step_until(lambda: self.running(turns))
        steps = [self.step() for _ in range(STEPS)]
        self.end_all()
        return {label: sum(s.get(label, 0.0) for s in steps) / STEPS for label in PARTS}

    def store_and_load(self, blocks: int) -> tuple[dict[str, float], dict[str, float]]:
        """One other turn decodes meanwhile; its cost per step is subtracted."""
        self.send(self.prompt(CONTEXT), 50_000)
        self.step_until(lambda: self.running(1))
        prompt = self.prompt(blocks * BLOCK_TOKENS + 1)
        stored = self._excess(prompt)
        if self.has_tier and not self.scheduler.reset_prefix_cache():
            self._evict()
        self.loaded_tokens = 0
        loaded = self._excess(prompt)
        expected = 0 if not self.has_tier else blocks * BLOCK_TOKENS
        if self.loaded_tokens != expected:
            raise RuntimeError(f"{self.loaded_tokens} tokens loaded instead of {expected}")
        self.end_all()
        return stored, loaded

    def _excess(self, prompt: list[int]) -> dict[str, float]:
        """Run a prompt; return the microseconds that it adds to the other turn's steps."""
        before = [self.step() for _ in range(SETTLE_STEPS)]
        self.send(prompt, 1)
        steps = self.step_until(lambda: len(self.scheduler.requests) == 1)
        steps += [self.step() for _ in range(SETTLE_STEPS)]
        base = {p: statistics.median(s.get(p, 0.0) for s in before) for p in PARTS}
        return {p: sum(s.get(p, 0.0) - base[p] for s in steps) for p in PARTS}

    def _evict(self) -> None:
        """Replace the KV on the device by other prompts'."""
        for _ in range(-(-KV_BLOCKS // 700)):
            self.send(self.prompt(700 * BLOCK_TOKENS), 1)
        self.step_until(lambda: len(self.scheduler.requests) == 1)

    def end_all(self) -> None:
        self._engine.abort_request(list(self._sent), internal=True)
        self._sent.clear()
        self.step_until(lambda: not self.scheduler.requests)


def measure(engine: Engine) -> dict[str, dict[str, float]]:
    times = {f"decode {turns}": engine.decode(turns) for turns in DECODES}
    for blocks in PROMPT_BLOCKS:
        times[f"store {blocks}"], times[f"load {blocks}"] = engine.store_and_load(blocks)
    return times


def serve(kind: str) -> None:
    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1"}
    os.environ |= {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
    os.environ |= {"OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory(prefix="turnstile-") as folder:
        engine = Engine(kind, Path(folder))
        try:
            measure(engine)
            print("ready", flush=True)
            for _ in sys.stdin:
                print("result " + json.dumps(measure(engine)), flush=True)
        finally:
            if engine.tier is not None:
                engine.tier.stop()


class Arm:
    """A process that measures one arm on request."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.bench.offload_cpu_time", "--arm", kind],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def read(self, word: str) -> str:
        """Return the rest of the next line that begins with `word`."""
        for line in self._process.stdout or ():
            if line.startswith(word):
                return line.removeprefix(word)
        raise RuntimeError(f"{self._kind} ended with exit code {self._process.wait()}")

    def measure(self) -> dict[str, dict[str, float]]:
        if self._process.stdin is not None:
            self._process.stdin.write("\n")
            self._process.stdin.flush()
        times: dict[str, dict[str, float]] = json.loads(self.read("result "))
        return times

    def close(self) -> None:
        self._process.communicate()


def measure_all(rounds: int) -> dict[str, list[dict[str, dict[str, float]]]]:
    """Return the times of each arm, one element per round."""
    arms = {kind: Arm(kind) for kind in ARMS}
    times: dict[str, list[dict[str, dict[str, float]]]] = {kind: [] for kind in ARMS}
    for arm in arms.values():
        arm.read("ready")
    for number in range(rounds):
        for kind in random.Random(number).sample(ARMS, len(ARMS)):
            times[kind].append(arms[kind].measure())
    for arm in arms.values():
        arm.close()
    return times


def show(times: dict[str, list[dict[str, dict[str, float]]]]) -> None:
    for workload in times["stock"][0]:
        for kind in ARMS:
            parts = {p: statistics.median(t[workload][p] for t in times[kind]) for p in PARTS}
            sums = [sum(t[workload].values()) for t in times[kind]]
            stock = [sum(t[workload].values()) for t in times["stock"]]
            more = statistics.median(a - b for a, b in zip(sums, stock, strict=True))
            listed = ", ".join(f"{name} {us:7.0f}" for name, us in parts.items())
            print(
                f"{workload:10} {kind:8} {listed}, total {statistics.median(sums):7.0f} us "
                f"({min(sums):.0f} to {max(sums):.0f}), {more:+7.0f} us against stock"
            )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--arm"]:
        serve(sys.argv[2])
        sys.stdout.flush()
        os._exit(0)  # threads of LMCache wait for its server, which has ended
    else:
        numbers = [int(word) for word in sys.argv[1:] if word != "--json"]
        times = measure_all(*numbers or [10])
        print(json.dumps(times)) if "--json" in sys.argv else show(times)
