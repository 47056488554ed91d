"""Replays end-to-end measurements in virtual time: a closed loop of clients, as benchmarks send it.

In: rows of measurements. Out: a prediction for each, or the reason why there is none, and
the errors that `servers.profiles.end_to_end` reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import cycle, islice
from statistics import fmean

from harness.calibrate.operator_tables import Reach, fit, open_tables
from reports.parallel import each
from servers.basics.clock import PS_PER_S
from servers.basics.errors import DoesNotFit, InvalidInput, UnknownProfile
from servers.policies.fcfs import Fcfs
from servers.profiles import Profile, analytic_profile, costs
from servers.profiles.cpu_time import CPU_TIME, with_cpu_time
from servers.profiles.end_to_end import EndToEnd, EndToEndFile, Pair
from servers.profiles.kv_cache_dtype import KvCacheDtype
from servers.sim import Engine, Limits, Segment, Submission
from servers.sim import Sequence as Served
from tools.silicon.errors import ErrorSummary, Prediction, by
from tools.silicon.rows import STEP_TOKENS, Checkpoint, Row


@dataclass(frozen=True, slots=True)
class Latencies:
    """Of each request, in the order in which they ended."""

    ttft_s: tuple[float, ...]
    """From sending a request to its first token."""
    tpot_s: tuple[float, ...]
    """From the first token to the last, over the tokens after the first; requests with a single
    token have none."""


def closed_loop(
    profile: Profile,
    limits: Limits,
    clients: int,
    requests: Sequence[tuple[int, int]],
    prompts: int | None = None,
    warm_up: Sequence[tuple[int, int]] = (),
) -> Latencies:
    """Serve `requests`, each with its prompt and output tokens, under stock vLLM's policy. All
    clients start at the same time, after all of `warm_up` have ended, which are not counted. They
    send `prompts` different prompts in turn, or each prompt once. Raises InvalidInput for a request
    that the KV memory cannot hold."""
    sent_ps: dict[Served, int] = {}
    ttft_s: list[float] = []
    tpot_s: list[float] = []
    contents = cycle([Segment(0) for _ in range(prompts or len(warm_up) + len(requests))])

    def send(prompt: int, output: int) -> None:
        shared, blocks = (tokens // profile.block_tokens for tokens in (prompt, prompt + output))
        submission = Submission(
            program_id=None,
            path=((next(contents), shared), (Segment(shared), blocks)),
            prompt_tokens=prompt,
            output_tokens=output,
            is_last=None,
        )
        sent_ps[engine.submit(submission, engine.now_ps + profile.request_ps)] = engine.now_ps

    def ended(served: Served) -> None:
        first_ps, last_ps = served.first_token_ps, served.finished_ps
        if first_ps is None or last_ps is None:
            raise RuntimeError("a request ended without a token")
        ttft_s.append((first_ps - sent_ps.pop(served)) / PS_PER_S)
        if (output := served.submission.output_tokens) > 1:
            tpot_s.append((last_ps - first_ps) / (output - 1) / PS_PER_S)
        for prompt, tokens in islice(waiting, 1):
            send(prompt, tokens)

    policy = Fcfs(costs(profile, step_tokens=limits.step_tokens, offload=False))
    engine = Engine(policy, profile, limits, on_end=ended)
    for phase in (warm_up, requests):
        waiting = iter(phase)
        ttft_s.clear()
        tpot_s.clear()
        for prompt, output in islice(waiting, clients):
            send(prompt, output)
        engine.run()
    return Latencies(tuple(ttft_s), tuple(tpot_s))


ProfileOf = Callable[[Row], Profile]
"""The profile of the server that was measured, without the CPU time between steps."""


def predictions(rows: Sequence[Row]) -> Iterator[Prediction | str]:
    """Yield a prediction for each row, in order, or why there is none."""
    yield from each(partial(prediction, profile_of=_profile), rows)


def prediction(row: Row, profile_of: ProfileOf) -> Prediction | str:
    try:
        tables = profile_of(row)
    except DoesNotFit:
        return f"the weights leave no KV memory: {row.model} on {row.gpus} x {row.hardware}"
    except UnknownProfile:
        return f"no operator tables: {row.model} on {row.gpus} x {row.hardware}"
    cpu, ahead = CPU_TIME[row.scheduling], row.scheduling.ahead
    profile = with_cpu_time(tables, cpu, ahead=ahead, offload=False)
    limits = Limits(row.clients, row.step_tokens, row.admission)
    try:
        found = closed_loop(
            profile, limits, row.clients, row.requests(), row.prompts, row.warm_up()
        )
    except InvalidInput:
        return f"a request does not fit: {row.model} on {row.gpus} x {row.hardware}"
    return Prediction(row, fmean(found.ttft_s), fmean(found.tpot_s))


def _profile(row: Row) -> Profile:
    """As `bench profile --from aiconfigurator` makes it, but with KV in 8 bits if the server had
    that, and with the KV memory that its limits of a step leave. Raises UnknownProfile and
    DoesNotFit."""
    dtype = KvCacheDtype.FP8 if row.kv_fp8 else KvCacheDtype.AUTO
    memory = analytic_profile(
        row.hardware,
        row.checkpoint.source,
        gpus=row.gpus,
        kv_cache_dtype=dtype,
        max_num_seqs=row.clients,
        step_tokens=row.step_tokens,
    )
    fitted = _fitted(row.hardware, row.checkpoint, row.gpus, dtype)
    return replace(fitted, kv_blocks=memory.kv_blocks)


@cache
def _fitted(hardware: str, checkpoint: Checkpoint, gpus: int, dtype: KvCacheDtype) -> Profile:
    source = checkpoint.source
    profile = analytic_profile(hardware, source, gpus=gpus, kv_cache_dtype=dtype)
    formats = {"kvcache_quant_mode": "fp8" if dtype is KvCacheDtype.FP8 else "bfloat16"}
    if checkpoint.products is not None:
        formats["gemm_quant_mode"] = checkpoint.products
    times, tables = open_tables(hardware, source, gpus, None, formats)
    reach = Reach.of(hardware, source, gpus, dtype, STEP_TOKENS)
    found = fit(times, tables, profile, gpus=gpus, step_tokens=STEP_TOKENS, reach=reach)
    return found.profile()


def errors_file(found: Sequence[Prediction], measurements: str, step_times: str) -> EndToEndFile:
    """Return what `servers/profiles/end-to-end.json` contains."""
    pairs = by(found, lambda row: (row.hardware, row.model))
    by_gpus = by(found, lambda row: (row.hardware, row.model, row.gpus))
    errors: dict[str, dict[str, Pair]] = {}
    for (hardware, model), summary in sorted(pairs.items()):
        errors.setdefault(hardware, {})[model] = Pair(
            all=_medians(summary),
            by_gpus={
                gpus: _medians(own)
                for (gpu, llm, gpus), own in sorted(by_gpus.items())
                if (gpu, llm) == (hardware, model)
            },
        )
    return EndToEndFile(
        measurements=measurements,
        step_times=step_times,
        errors=errors,
    )


def _medians(found: ErrorSummary) -> EndToEnd:
    return EndToEnd(
        rows=found.rows, ttft=round(found.ttft.median, 4), tpot=round(found.tpot.median, 4)
    )
