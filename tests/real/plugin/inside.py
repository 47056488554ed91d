"""vLLM's scheduler with the plug-in, in this process, under our clock, without a model.

`PluggedEngine` stands where `servers.sim.Engine` stands in `harness.replay`, so that both replay
the same programs: a step lasts what the profile says, and samples the tokens that the trace says.
Runs under vLLM's interpreter only.
"""

from __future__ import annotations

import heapq
import itertools
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from vllm.config import CacheConfig, ModelConfig, SchedulerConfig, VllmConfig
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

from servers.policies.base import Policy
from servers.policies.base import Request as View
from servers.profiles import PS_PER_S, Profile
from servers.sim import Limits, Phase, Sequence, Submission
from servers.vllm import plugin
from traces import Program

init_none_hash(sha256)
MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 131072,
    "vocab_size": 200000,
    "torch_dtype": "float16",
}


@cache
def config() -> tuple[VllmConfig, StructuredOutputManager]:
    folder = Path(tempfile.mkdtemp(prefix="turnstile-"))
    (folder / "config.json").write_text(json.dumps(MODEL))
    model = ModelConfig(
        model=str(folder), dtype="float16", skip_tokenizer_init=True, max_model_len=100_000
    )
    scheduler = SchedulerConfig(
        max_num_seqs=16,
        max_num_batched_tokens=8192,
        max_model_len=100_000,
        is_encoder_decoder=False,
        enable_chunked_prefill=True,
        async_scheduling=False,
    )
    cache_ = CacheConfig(block_size=16, enable_prefix_caching=True)
    made = VllmConfig(model_config=model, scheduler_config=scheduler, cache_config=cache_)
    return made, StructuredOutputManager(made)


def build(
    scheduler: type[AsyncScheduler], kv_blocks: int, seqs: int, tokens: int, block: int = 16
) -> Any:
    made, grammar = config()
    made.scheduler_config.max_num_seqs = seqs
    made.scheduler_config.max_num_batched_tokens = tokens
    made.cache_config.block_size = block
    made.cache_config.num_gpu_blocks = kv_blocks + 1  # one is vLLM's null block
    spec = FullAttentionSpec(block_size=block, num_kv_heads=1, head_size=1, dtype=torch.float32)
    kv = KVCacheConfig(
        num_blocks=kv_blocks + 1,
        kv_cache_tensors=[],
        kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)],
    )
    return scheduler(
        vllm_config=made,
        kv_cache_config=kv,
        structured_output_manager=grammar,
        block_size=block,
        log_stats=False,
    )


def build_plugged(policy: Policy, events: Path | None, *sizes: int) -> Any:
    """With a policy object of the caller's, instead of the one that the environment names."""
    named, plugin.read_policy = plugin.read_policy, lambda _: policy
    os.environ["TURNSTILE_EVENTS"] = str(events or "")
    try:
        return build(plugin.TurnstileScheduler, *sizes)
    finally:
        plugin.read_policy = named
        del os.environ["TURNSTILE_EVENTS"]


def request(
    key: str, prompt: list[int], output: int, at_s: float, block: int = 16, **xargs: Any
) -> Request:
    return Request(
        request_id=key,
        prompt_token_ids=prompt,
        sampling_params=SamplingParams(
            max_tokens=output, ignore_eos=True, temperature=0.0, extra_args=xargs or None
        ),
        pooling_params=None,
        arrival_time=at_s,
        block_hasher=get_request_block_hasher(block, sha256),
    )


def step(scheduler: Any, sample: Callable[[Request], int] = lambda _: 7) -> Any:
    """One step of the scheduler with a model that samples at once."""
    output = scheduler.schedule()
    compute(scheduler, output, sample)
    return output


def compute(scheduler: Any, output: Any, sample: Callable[[Request], int]) -> Any:
    keys = list(output.num_scheduled_tokens)
    requests = [scheduler.requests[key] for key in keys]
    tokens = [[sample(r)] if r.num_computed_tokens >= r.num_tokens else [] for r in requests]
    places = {key: i for i, key in enumerate(keys)}
    return scheduler.update_from_output(
        output, ModelRunnerOutput(req_ids=keys, req_id_to_index=places, sampled_token_ids=tokens)
    )


def free_blocks(scheduler: Any) -> int:
    return int(scheduler.kv_cache_manager.block_pool.get_num_free_blocks())


class Contents:
    """Token ids of each turn, prompt and answer, from the program's own lengths."""

    def __init__(self) -> None:
        self._next = itertools.count(10)
        self._shared: dict[str, list[int]] = {}

    def _fresh(self, tokens: int) -> list[int]:
        return list(itertools.islice(self._next, tokens))

    def turns(self, program: Program) -> Iterator[tuple[list[int], list[int]]]:
        context: list[int] = []
        if program.prefix is not None:
            shared = self._shared.setdefault(program.prefix.id, [])
            shared += self._fresh(program.prefix.tokens - len(shared))
            context = shared[: program.prefix.tokens]
        for index, turn in enumerate(program.turns):
            kept = turn.kept_tokens if index else turn.prompt_tokens - 1
            prompt = context[:kept]
            prompt = prompt + self._fresh(turn.prompt_tokens - len(prompt))
            answer = self._fresh(turn.output_tokens)
            context = prompt + answer
            yield prompt, answer


class PluggedEngine:
    programs: dict[str, Program] = {}  # noqa: RUF012
    """Set before a replay."""
    last: PluggedEngine
    """Of the last replay."""

    def __init__(
        self,
        policy: Policy,
        profile: Profile,
        limits: Limits,
        offload: None,
        *,
        on_end: Callable[[Sequence], None],
        on_event: object,
        strides: bool,
    ) -> None:
        PluggedEngine.last = self
        self.profile = profile
        self._log = Path(tempfile.mkstemp(suffix=".jsonl")[1])
        sizes = (profile.kv_blocks, limits.max_num_seqs, limits.step_tokens, profile.block_tokens)
        self.vllm = build_plugged(policy, self._log, *sizes)
        self.vllm.clock = self.vllm.wall_clock = lambda: self.now_ps / PS_PER_S
        self.now_ps = self.steps = self.strides = 0
        self._on_end = on_end
        self._due: list[tuple[int, int, Request]] = []
        self._contents = Contents()
        self._turns: dict[str, Iterator[tuple[list[int], list[int]]]] = {}
        self._sent: dict[str, tuple[Sequence, list[int]]] = {}
        self._decoding: set[str] = set()
        usage = SimpleNamespace(used=0, blocks=0)
        self.scheduler = SimpleNamespace(now_s=0.0, kv=usage, pins=usage, waiting=(), running=())

    def submit(self, submission: Submission, at_ps: int) -> Sequence:
        program = self.programs[str(submission.program_id)]
        turns = self._turns.setdefault(program.id, self._contents.turns(program))
        prompt, answer = next(turns)
        number = len(self._sent) + 1
        made = request(
            f"{number:06d}",
            prompt,
            len(answer),
            at_ps / PS_PER_S,
            self.profile.block_tokens,
            program_id=program.id,
            is_last=int(bool(submission.is_last)),
            tools=",".join(submission.tools),
        )
        view = View(number, program.id, 0, at_ps / PS_PER_S, 0.0, len(prompt), submission.is_last)
        sequence = Sequence(submission, view, at_ps)
        self._sent[made.request_id] = (sequence, answer)
        heapq.heappush(self._due, (at_ps, number, made))
        return sequence

    def end_program(self, program_id: str) -> None:
        self.vllm.runner.end_program(program_id)

    def run(self) -> None:
        while True:
            while self._due and self._due[0][0] <= self.now_ps:
                self.vllm.add_request(heapq.heappop(self._due)[2])
            told = self.vllm.runner.events
            output = self.vllm.schedule()
            self._decoding -= output.preempted_req_ids or set()
            self.strides += 1
            if output.num_scheduled_tokens:
                self._compute(output)
                continue
            compute(self.vllm, output, lambda _: 0)
            if self.vllm.runner.events != told:
                continue
            if not self._due:
                break
            self.now_ps = max(self.now_ps, self._due[0][0])
        if self.vllm.has_unfinished_requests():
            raise RuntimeError("turns wait and nothing runs")
        self.vllm.shutdown()

    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._log.read_text().splitlines()]

    def _compute(self, output: Any) -> None:
        """A step's time is the profile's, as in servers.sim.engine."""
        profile = self.profile
        tokens = context = pairs = 0
        sampled = []
        for key, chunk in output.num_scheduled_tokens.items():
            turn = self.vllm.requests[key]
            done = turn.num_computed_tokens - chunk
            tokens += chunk
            if key in self._decoding:
                context += done + 1
            else:
                pairs += chunk * done + chunk * (chunk + 1) // 2
            if turn.num_computed_tokens >= turn.num_tokens:
                sampled.append(key)
        self.now_ps += (
            profile.base_ps
            + max(profile.weights_ps, tokens * profile.token_ps)
            + context * profile.context_ps
            + pairs * profile.pair_ps
        )
        self.steps += 1
        self.scheduler.now_s = self.now_ps / PS_PER_S
        results = compute(
            self.vllm, output, lambda r: self._sent[r.request_id][1][r.num_output_tokens]
        )
        for key in sampled:
            self._decoding.add(key)
            sequence = self._sent[key][0]
            if sequence.first_token_ps is None:
                sequence.first_token_ps = self.now_ps
        for result in results[0].outputs if results else []:
            if result.finish_reason is not None:
                self._end(result.request_id, result.kv_transfer_params)

    def _end(self, key: str, report: dict[str, Any]) -> None:
        sequence, answer = self._sent[key]
        self._decoding.discard(key)
        sequence.view.output_tokens = len(answer)
        sequence.hits = [("device", report["hit_tokens"])]
        sequence.pinned_hit = report["pinned_hit"]
        sequence.preemptions = report["preemptions"]
        sequence.close(self.now_ps)
        sequence.spent_ps[Phase.QUEUE] = round(report["queue_s"] * PS_PER_S)
        self._on_end(sequence)
