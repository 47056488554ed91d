"""Compare the speed of `sim` and of Dynamo's offline replay (`ai-dynamo` 1.6.1) on the same work.

Needs a Python that has `ai-dynamo`, named by TURNSTILE_DYNAMO_PYTHON (docs/design/virtual-time.md
explains how to install one). Both run alternately. Prints the microseconds per turn of both and
their ratio; no time fails the test.

The work is synthesized in Mooncake's shape (512-token hash blocks, prompts of thousands of tokens,
prefixes that many programs share), from a fixed seed. The Mooncake JSONL is derived from our
programs: same arrivals, lengths, shared blocks, and gaps between the turns of a session.

Both sides have the same number and size of KV blocks, `max_num_seqs`, tokens per step, chunked
prefill, prefix caching, FCFS, one replica, and step times: base + tokens · token + context ·
context, from the analytic profile of an 8B on an A100-80 without its bend, its pairs and the time
per turn, which Dynamo's tables of step times cannot express, and arrivals join the next step. So
both simulate the same busy engine. The test checks that turns and tokens are equal, mean latencies
within 2% and hits within one percentage point.

Differences: Dynamo is written in Rust, `sim` in Python. Dynamo simulates step by step, `sim` in
strides from event to event. A prompt costs Dynamo time per block and `sim` time per chunk: long
turns in blocks of 16 favour `sim`, short turns and large blocks favour Dynamo; both are covered.
Dynamo has no base time in a step without decodes. `sim` calls a policy and records each turn, while
Dynamo by default only sums. Dynamo's time is its own `wall_time_ms`, which excludes reading the
trace; our programs are in memory.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np
import pytest
from numpy.random import Generator

from harness.replay import virtual as harness_replay
from servers.basics.clock import PS_PER_S
from servers.profiles import Profile, analytic_profile, costs
from servers.records.turns import TurnRecord
from servers.sim import Engine, Limits
from servers.variants import make_policy, variants
from tests.lines import line_of
from traces import Program, SharedPrefix, Turn

HASH_BLOCK = 512
"""Tokens of a hash id in Mooncake's traces."""
PREFIXES = 40
ROUNDS = 9
HOW = 'see "Speed" in docs/design/virtual-time.md'


@dataclass(frozen=True)
class Work:
    """Parameters of a synthesized workload; token counts are medians of log-normals."""

    programs: int
    per_s: float
    """Arrivals per second; an A100-80 finishes about two of the long single turns per second."""
    turns: int = 1
    """Mean number of turns per program."""
    own_tokens: int = 2500
    """Tokens of a first prompt after the shared prefix."""
    output_tokens: int = 150
    shared: float = 0.6
    """Share of programs that begin with one of the prefixes, of 2 to 16 hash blocks."""
    kv_tokens: int = 432_000
    block_tokens: int = 16
    """vLLM's default; Dynamo's documentation replays Mooncake's traces with 512."""


WORKS = {
    "single turns": Work(3000, 1.0),
    "single turns, past saturation": Work(3000, 4.0, kv_tokens=160_000),
    "sessions": Work(500, 0.3, turns=7),
    "sessions, blocks of 512": Work(500, 0.3, turns=7, block_tokens=512),
    "short turns": Work(3000, 8.0, own_tokens=600, output_tokens=20, shared=0),
}


def synthesize(work: Work) -> tuple[list[Program], list[float]]:
    rng = np.random.default_rng(1)
    prefixes = [
        SharedPrefix(f"p{i}", HASH_BLOCK * int(rng.integers(2, 17))) for i in range(PREFIXES)
    ]
    popularity = 1 / np.arange(1, PREFIXES + 1)
    popularity /= popularity.sum()
    programs = []
    for i in range(work.programs):
        shares = rng.random() < work.shared
        prefix = prefixes[rng.choice(PREFIXES, p=popularity)] if shares else None
        turns = session(work, prefix.tokens if prefix else 0, rng)
        programs.append(Program(f"s{i}", tuple(turns), prefix))
    # Whole milliseconds, the resolution of the trace.
    starts_ms = np.cumsum(rng.exponential(1e3 / work.per_s, work.programs)).round()
    return programs, [float(ms) / 1e3 for ms in starts_ms]


def session(work: Work, shared_tokens: int, rng: Generator) -> list[Turn]:
    """Return turns that keep the full hash blocks of the previous prompt, but not its answer: the
    trace has no ids for tokens that Dynamo generates."""

    def draw(mid: float, sigma: float, low: int, high: int) -> int:
        return int(np.clip(rng.lognormal(np.log(mid), sigma), low, high))

    turns: list[Turn] = []
    prompt = shared_tokens + draw(work.own_tokens, 1.0, 64, 16_000)
    for _ in range(int(rng.geometric(1 / work.turns))):
        output = draw(work.output_tokens, 0.8, 2, 1500)
        kept = turns[-1].prompt_tokens // HASH_BLOCK * HASH_BLOCK if turns else 0
        gap_s = draw(2000, 1.0, 50, 60_000) / 1e3
        turns.append(Turn(prompt, output, kept, tool_gap_s=gap_s))
        prompt += draw(600, 0.8, 50, 4000)
    return turns


def mooncake(programs: Sequence[Program], starts_s: Sequence[float]) -> Iterator[dict[str, object]]:
    """Yield rows of Dynamo's extension of Mooncake's format: a session's next turn is sent `delay`
    ms after the previous one."""
    new_id = count()
    shared: dict[str, list[int]] = {}
    for program, start_s in zip(programs, starts_s, strict=True):
        ids: list[int] = []
        if (prefix := program.prefix) is not None:
            blocks = prefix.tokens // HASH_BLOCK
            ids += shared.setdefault(prefix.id, [next(new_id) for _ in range(blocks)])
        when: dict[str, object] = {"timestamp": round(start_s * 1e3)}
        for turn in program.turns:
            # A partial last block differs from the same block once it is full.
            while len(ids) * HASH_BLOCK < turn.prompt_tokens:
                ids.append(next(new_id))
            yield {
                "session_id": program.id,
                **when,
                "input_length": turn.prompt_tokens,
                "output_length": turn.output_tokens,
                "hash_ids": list(ids),
            }
            del ids[turn.prompt_tokens // HASH_BLOCK :]
            when = {"delay": round(turn.tool_gap_s * 1e3)}


def plain_profile(work: Work) -> Profile:
    """Return a linear profile, which both sides can express; each step also reads the weights."""
    profile = analytic_profile(
        "a100-80g",
        "llama-3.1-8b",
        kv_blocks=work.kv_tokens // work.block_tokens,
        block_tokens=work.block_tokens,
    )
    base_ps = profile.base_ps + profile.weights_ps
    linear = replace(profile, base_ps=base_ps, weights_ps=0, pair_ps=0)
    return replace(linear, sequence_ps=0, schedules_ahead=False)


def dynamo_engine(profile: Profile, limits: Limits, folder: Path) -> dict[str, object]:
    """Return Dynamo's settings. Its step times are linearly interpolated tables: prefill by new
    tokens, and decode by the batch's total and mean context, whose quotient is the batch size."""
    ms = 1e3 / PS_PER_S
    context = np.array([0.0, 1e7])
    mean_context = np.geomspace(1, profile.max_model_len, 1000)
    per_token = ms * (profile.token_ps / mean_context + profile.context_ps)
    np.savez(
        folder / "steps.npz",
        prefill_isl=np.array([0.0, 1e6]),
        prefill_ttft_ms=np.array([0.0, 1e6 * ms * profile.token_ps]),
        decode_active_kv_tokens=context,
        decode_context_length=mean_context,
        decode_itl=ms * profile.base_ps + np.outer(context, per_token),
    )
    times = {"provider": "dynamo_profile", "config": {"path": str(folder / "steps.npz")}}
    return {
        "engine": {
            "backend": "vllm",
            "num_gpu_blocks": profile.kv_blocks,
            "block_size": profile.block_tokens,
            "max_num_seqs": limits.max_num_seqs,
            "max_num_batched_tokens": limits.step_tokens,
            "timing_model": {"type": "external", **times},
        }
    }


class Dynamo:
    """A process that has imported Dynamo and replays traces on request."""

    def __init__(self, python: str) -> None:
        """Raise OSError if it does not start, ImportError if it has no `ai-dynamo`."""
        script = Path(__file__).with_name("dynamo_offline.py")
        self.process = subprocess.Popen(
            [python, str(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"DYN_LOG": "error"},
        )
        self.version = self._read()
        if not self.version:
            self.close()
            raise ImportError("no working ai-dynamo; the reason is on stderr")

    def replay(self, trace: Path, engine: dict[str, object]) -> dict[str, Any]:
        """Return `replay_s` and the summary of Dynamo's report."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"trace": str(trace), "engine": engine}) + "\n")
        self.process.stdin.flush()
        answer = self._read()
        assert answer, "Dynamo's replay failed; its error is on stderr"
        return dict(json.loads(answer))

    def close(self) -> None:
        self.process.communicate(timeout=60)

    def _read(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()


@pytest.fixture(scope="module")
def dynamo() -> Iterator[Dynamo]:
    python = os.environ.get("TURNSTILE_DYNAMO_PYTHON")
    if not python:
        pytest.skip(f"TURNSTILE_DYNAMO_PYTHON names no Python that has ai-dynamo; {HOW}")
    try:
        running = Dynamo(python)
    except (OSError, ImportError) as error:
        pytest.skip(f"TURNSTILE_DYNAMO_PYTHON={python}: {error}; {HOW}")
    try:
        yield running
    finally:
        running.close()


def simulate(
    programs: Sequence[Program], starts_s: Sequence[float], profile: Profile, limits: Limits
) -> tuple[float, list[dict[str, Any]]]:
    """Return the seconds of the replay, and its turns."""
    policy = make_policy(
        variants("fcfs")[0], costs(profile, step_tokens=limits.step_tokens, offload=False)
    )
    turns: list[TurnRecord] = []
    engine = partial(Engine, policy, profile, limits)
    started_s = time.perf_counter()
    harness_replay.replay(programs, starts_s, None, engine, turns.append)
    spent_s = time.perf_counter() - started_s
    return spent_s, list(map(line_of, turns))


@pytest.mark.parametrize("name", WORKS)
def test_seconds_per_turn_compared_with_dynamo(
    name: str,
    dynamo: Dynamo,
    benchmark: Any,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Each round replays once with Dynamo and once with `sim`."""
    work = WORKS[name]
    programs, starts_s = synthesize(work)
    trace = tmp_path / "trace.jsonl"
    rows = mooncake(programs, starts_s)
    trace.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    profile, limits = plain_profile(work), Limits()
    engine = dynamo_engine(profile, limits, tmp_path)
    theirs: list[dict[str, Any]] = []
    ours: list[tuple[float, list[dict[str, Any]]]] = []

    benchmark.pedantic(
        lambda: ours.append(simulate(programs, starts_s, profile, limits)),
        setup=lambda: theirs.append(dynamo.replay(trace, engine)),
        rounds=ROUNDS,
        warmup_rounds=1,
    )
    turns, summary = ours[-1][1], theirs[-1]
    check_same_work(turns, summary)
    # Without the warm-up round, which exists only if times are measured.
    sim_us = [1e6 * seconds / len(turns) for seconds, _ in ours[-ROUNDS:]]
    dynamo_us = [1e6 * run["replay_s"] / len(turns) for run in theirs[-ROUNDS:]]
    # Paired, since the speed of a shared machine changes from round to round for both.
    ratios = [dynamo / sim for dynamo, sim in zip(dynamo_us, sim_us, strict=True)]
    benchmark.extra_info |= {
        "ai_dynamo": dynamo.version,
        "turns": len(turns),
        "sim_us_per_turn": round(median(sim_us)),
        "dynamo_us_per_turn": round(median(dynamo_us)),
        "dynamo_over_sim": round(median(ratios), 2),
    }
    with capsys.disabled():
        print(
            f"\n{name}: {median(sim_us):.0f} µs per turn, ai-dynamo {dynamo.version} "
            f"{median(dynamo_us):.0f} µs; Dynamo / sim {median(ratios):.2f} "
            f"({min(ratios):.2f} to {max(ratios):.2f}; {len(turns)} turns, {len(ratios)} rounds)"
        )


def check_same_work(turns: Sequence[dict[str, Any]], summary: dict[str, Any]) -> None:
    """Check that both engines served the same turns and were about equally busy."""
    assert not [turn for turn in turns if turn["error"]]
    assert summary["completed_requests"] == len(turns)
    prompts = sum(turn["prompt_tokens"] for turn in turns)
    assert summary["total_input_tokens"] == prompts
    assert summary["total_output_tokens"] == sum(turn["output_tokens"] for turn in turns)
    hit = sum(turn["device_hit_tokens"] for turn in turns) / prompts
    assert summary["first_admission_prefix_cache_reused_ratio"] == pytest.approx(hit, abs=0.01)
    latency_ms = 1e3 * mean(turn["finished_at_s"] - turn["sent_at_s"] for turn in turns)
    assert summary["mean_e2e_latency_ms"] == pytest.approx(latency_ms, rel=0.02)
