"""Measures prefills by length, and decode steps by batch size and context, of a live engine.

In: an idle server, its limits, a time limit. Out: `PrefillTimes`, `DecodeTimes`, and a list of the
measurements that were left out. Lengths and batches grow until the time or the KV memory is
exhausted. Times in seconds, lengths in tokens.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median

import numpy as np

from harness.calibrate.probe import Probe, Target, open_probe
from harness.replay.prompts import Ids
from servers.basics.errors import MeasurementFailed
from servers.profiles.measured import DecodeTimes, PrefillTimes

LENGTHS = (32, 128, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 98304, 131072)
BATCHES = (1, 2, 4, 8, 16, 32, 64)
CONTEXTS = (128, 2048, 8192, 32768)
CACHED, NEW = (1024, 4096, 16384), (32, 256, 1024)
"""Cached and new tokens of continued prompts, as in the next turns of agents."""
ROUNDS = 3
"""Each round measures all lengths and batches, to spread disturbances over all of them."""
STEPS, WINDOW = 40, 8
"""Decode steps of a full batch, and the number of steps that are averaged for one time."""
PREFILL_SHARE, CONTINUED_SHARE = 0.4, 0.5
"""Shares of the time limit at which prompts without, and with, cached tokens are finished."""
KV_SHARE = 0.9
WARM_UP = (64, 2048, 64)

OnProgress = Callable[[float, str], None]
"""Called with the share of the time limit that has passed, and the current measurement."""


@dataclass(slots=True)
class CalibrationTimes:
    prefill: list[PrefillTimes] = field(default_factory=list)
    decode: list[DecodeTimes] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)


def measure(target: Target, limit_s: float, on_progress: OnProgress) -> CalibrationTimes:
    return asyncio.run(_measure(target, limit_s, on_progress))


async def _measure(target: Target, limit_s: float, on_progress: OnProgress) -> CalibrationTimes:
    async with open_probe(target) as probe:
        measurement = _Measurement(probe, limit_s, on_progress)
        for tokens in WARM_UP:
            await probe.complete(probe.new_prompt(min(tokens, target.max_model_len - 1)), 1)
        await measurement.prefills()
        await measurement.continued_prefills()
        await measurement.decodes()
        return measurement.times


class _Measurement:
    def __init__(self, probe: Probe, limit_s: float, on_progress: OnProgress) -> None:
        self._probe = probe
        self._target = probe.target
        self._started_s = time.monotonic()
        self._limit_s = limit_s
        self._on_progress = on_progress
        self.times = CalibrationTimes()

    @property
    def _elapsed_s(self) -> float:
        return time.monotonic() - self._started_s

    def _report(self, current: str) -> None:
        self._on_progress(min(self._elapsed_s / self._limit_s, 1.0), current)

    async def prefills(self) -> None:
        """Measure each length once while there is time, then the same lengths again."""
        seconds: dict[int, list[float]] = {}
        limit = min(self._target.max_model_len - 1, self._target.kv_tokens - 1)
        for tokens in (n for n in LENGTHS if n <= limit):
            if len(seconds) > 2 and self._too_long(tokens, seconds):
                self.times.left_out.append(f"prompts of {tokens} tokens and more: not enough time")
                break
            seconds[tokens] = [await self._prefill(tokens)]
        for _ in range(ROUNDS - 1):
            for tokens, measured_s in seconds.items():
                measured_s.append(await self._prefill(tokens))
        self.times.prefill = [
            PrefillTimes(tokens=tokens, seconds=tuple(measured_s))
            for tokens, measured_s in seconds.items()
        ]

    async def continued_prefills(self) -> None:
        """Measure prompts with a cached beginning, as in the next turn of an agent."""
        cold_s = {p.tokens: median(p.seconds) for p in self.times.prefill}
        limit = min(self._target.max_model_len - 1, int(KV_SHARE * self._target.kv_tokens))
        for context in CACHED:
            if context + NEW[-1] > limit:
                break
            name = f"prompts after {context} cached tokens"
            expected_s = self._elapsed_s + 3 * cold_s.get(context, math.inf)
            if expected_s > CONTINUED_SHARE * self._limit_s:
                self.times.left_out.append(f"{name}: not enough time")
                break
            beginning = self._probe.new_prompt(context)
            await self._probe.complete(beginning, 1)
            for tokens in NEW:
                self._report(f"prefill of {tokens} tokens after {context}")
                rounds = [await self._continue(beginning, tokens) for _ in range(ROUNDS)]
                cached = rounds[0][0]
                if not cached or any(hits != cached for hits, _ in rounds):
                    self.times.left_out.append(f"{name}: the server had not cached them")
                    return
                self.times.prefill.append(
                    PrefillTimes(
                        tokens=context + tokens - cached,
                        cached_tokens=cached,
                        seconds=tuple(seconds for _, seconds in rounds),
                    )
                )

    async def _continue(self, beginning: Ids, tokens: int) -> tuple[int, float]:
        """Return the number of cached tokens, and the seconds to the first token."""
        prompt = np.concatenate([beginning, self._probe.new_prompt(tokens)])
        seconds, answer = await self._probe.time_to_first_token(prompt)
        return answer.cached_tokens or 0, seconds

    def _too_long(self, tokens: int, seconds: dict[int, list[float]]) -> bool:
        """Predict that this length takes too long, if times grow with the square of the length."""
        longest = max(seconds)
        next_s = seconds[longest][0] * (tokens / longest) ** 2
        round_s = sum(measured_s[0] for measured_s in seconds.values()) + next_s
        return ROUNDS * round_s > PREFILL_SHARE * self._limit_s

    async def _prefill(self, tokens: int) -> float:
        self._report(f"prefill of {tokens} tokens")
        prompt = self._probe.new_prompt(tokens)
        seconds, answer = await self._probe.time_to_first_token(prompt)
        if answer.cached_tokens:
            raise MeasurementFailed(
                f"{self._target.base_url}: {answer.cached_tokens} tokens of a new prompt were "
                "cached; profile an engine whose prompts are cold"
            )
        return seconds

    async def decodes(self) -> None:
        """Measure decode steps of each context and batch size.

        Prompts are extended from one context to the next, and batches by further prompts. So almost
        all of a batch's prompts are cached, and the time is spent on decoding.
        """
        prompts: list[Ids] = []
        measured: list[list[Ids]] = []
        cached: dict[int, int] = {}
        for context in CONTEXTS:
            for batch in BATCHES:
                name = f"batches of {batch} at {context} tokens"
                if reason := self._skip_reason(batch, context, cached):
                    self.times.left_out.append(f"{name}: {reason}")
                    break
                self._report(f"decode of {batch} at {context} tokens")
                while len(prompts) < batch:
                    prompts.append(self._probe.new_prompt(0))
                for k in range(batch):
                    new = self._probe.new_prompt(max(context - len(prompts[k]), 0))
                    prompts[k] = np.concatenate([prompts[k], new])
                    cached[k] = context
                if times := await self._decode(prompts[:batch], context):
                    self.times.decode.append(times)
                    measured.append(prompts[:batch])
                else:
                    self.times.left_out.append(f"{name}: never all in decode at once")
        for _ in range(ROUNDS - 1):
            await self._decode_again(measured)

    async def _decode_again(self, measured: list[list[Ids]]) -> None:
        """Repeat the measurements while there is time. Prompts may have been evicted since."""
        for k, prompts in enumerate(measured):
            times, context = self.times.decode[k], len(prompts[0])
            expected_s = 2 * self._output_tokens(len(prompts), context) * median(times.seconds)
            if self._elapsed_s + expected_s > self._limit_s:
                return
            self._report(f"decode of {len(prompts)} at {context} tokens, again")
            if again := await self._decode(prompts, context):
                seconds = times.seconds + again.seconds
                self.times.decode[k] = times.model_copy(update={"seconds": seconds})

    def _skip_reason(self, batch: int, context: int, cached: dict[int, int]) -> str:
        target = self._target
        tokens = context + self._output_tokens(batch, context)
        if tokens > target.max_model_len:
            return "the context is too long"
        if batch * tokens > KV_SHARE * target.kv_tokens:
            return "the KV memory is too small"
        if batch > target.max_num_seqs:
            return "more than the server runs at once"
        times = {p.tokens: median(p.seconds) for p in self.times.prefill if not p.cached_tokens}
        nearest = min(times, key=lambda n: abs(n - context))
        new = sum(context - cached.get(k, 0) for k in range(batch))
        prefill_s = times[nearest] * new / nearest * max(context / nearest, 1)
        step_s = max((median(d.seconds) for d in self.times.decode), default=0.0)
        if self._elapsed_s + prefill_s + 2 * STEPS * step_s > self._limit_s:
            return "not enough time"
        return ""

    def _output_tokens(self, batch: int, context: int) -> int:
        """Return an answer length for which all answers overlap, even if no prompt is cached."""
        return batch * context // self._target.step_tokens + STEPS + WINDOW

    async def _decode(self, prompts: list[Ids], context: int) -> DecodeTimes | None:
        """Measure a batch, with longer answers if the streams did not overlap.

        Returns None if they never overlap within the limits: a busy client may send the last
        request so late that the first answer has ended.
        """
        batch, outputs = len(prompts), self._output_tokens(len(prompts), context)
        limit = min(self._target.max_model_len, self._target.kv_tokens // batch) - context
        while outputs <= limit:
            answers = await asyncio.gather(
                *(self._probe.complete(prompt, outputs) for prompt in prompts)
            )
            streams = [marks for _, marks in answers]
            begin_s = max(next(at_s for at_s, n in marks if n) for marks in streams)
            end_s = min(next(at_s for at_s, n in marks if n == outputs) for marks in streams)
            if seconds := step_seconds(streams, begin_s, end_s):
                first = min(next(n for at_s, n in marks if at_s >= begin_s) for marks in streams)
                last = min(max(n for at_s, n in marks if at_s <= end_s) for marks in streams)
                return DecodeTimes(
                    batch=batch, context=context + (first + last) / 2, seconds=tuple(seconds)
                )
            outputs *= 2
        return None


def step_seconds(
    streams: list[list[tuple[float, int]]], begin_s: float, end_s: float
) -> list[float]:
    """Return the mean seconds of a step for each window of WINDOW tokens between the two times.

    `streams`: per stream and chunk, its time and the number of tokens until then. A chunk may
    contain several tokens; a window ends with the chunk that completes it. Returns an empty list if
    a stream has no token between the two times.
    """
    seconds = []
    for marks in streams:
        inside = [(at_s, n) for at_s, n in marks if n and begin_s <= at_s <= end_s]
        if not inside:
            return []
        window_s, window_start = inside[0]
        for at_s, n in inside:
            if n - window_start >= WINDOW:
                seconds.append((at_s - window_s) / (n - window_start))
                window_s, window_start = at_s, n
    return seconds
