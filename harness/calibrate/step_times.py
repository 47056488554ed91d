"""Measures a live engine over HTTP: prefills by length, decode steps by batch and context.

In: an idle server, its limits, a time limit. Out: `PrefillTimes` and `DecodeTimes`.
Lengths and batches grow until the time or the KV memory is exhausted. The result lists what is left
out.
Times in seconds, lengths in tokens.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median

import numpy as np

from harness.calibrate.probe import Probe, Target, probing
from harness.replay.token_prompts import Ids
from servers.errors import MeasurementFailed
from servers.profiles.measured import DecodeTimes, PrefillTimes

LENGTHS = (32, 128, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 98304, 131072)
BATCHES = (1, 2, 4, 8, 16, 32, 64)
CONTEXTS = (128, 2048, 8192, 32768)
CACHED, AFTER = (1024, 4096, 16384), (32, 256, 1024)
"""Contexts that are cached, and prompts that go on from them, as an agent's next turn does."""
ROUNDS = 3
"""Of all lengths and batches in turn, so that a busy moment of the machine hits no one alone."""
STEPS, WINDOW = 40, 8
"""Decode steps with the whole batch at work, and of how many a mean is one time."""
PREFILL_SHARE, AFTER_SHARE = 0.4, 0.5
"""Of the time, spent when cold prompts are done, and prompts after a cached context."""
KV_SHARE = 0.9
WARM_UP = (64, 2048, 64)

OnProgress = Callable[[float, str], None]
"""Called with the share of the time that is spent, and what is measured now."""


@dataclass(slots=True)
class Times:
    prefill: list[PrefillTimes] = field(default_factory=list)
    decode: list[DecodeTimes] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)


def measure(target: Target, within_s: float, on_progress: OnProgress) -> Times:
    return asyncio.run(_measure(target, within_s, on_progress))


async def _measure(target: Target, within_s: float, on_progress: OnProgress) -> Times:
    async with probing(target) as probe:
        measuring = _Measuring(probe, within_s, on_progress)
        for tokens in WARM_UP:
            await probe.ask(probe.new(min(tokens, target.max_model_len - 1)), 1)
        await measuring.prefills()
        await measuring.continued()
        await measuring.decodes()
        return measuring.times


class _Measuring:
    def __init__(self, probe: Probe, within_s: float, on_progress: OnProgress) -> None:
        self._probe = probe
        self._target = probe.target
        self._began_s = time.monotonic()
        self._within_s = within_s
        self._on_progress = on_progress
        self.times = Times()

    @property
    def _spent_s(self) -> float:
        return time.monotonic() - self._began_s

    def _report(self, what: str) -> None:
        self._on_progress(min(self._spent_s / self._within_s, 1.0), what)

    async def prefills(self) -> None:
        """All lengths once, as far as the time goes, then those again."""
        seconds: dict[int, list[float]] = {}
        most = min(self._target.max_model_len - 1, self._target.kv_tokens - 1)
        lengths = [n for n in LENGTHS if n <= most]
        for tokens in lengths:
            if len(seconds) > 2 and self._too_long(tokens, seconds):
                self.times.left_out.append(f"prompts of {tokens} tokens and more: no time")
                break
            seconds[tokens] = [await self._prefill(tokens)]
        for _ in range(ROUNDS - 1):
            for tokens, found in seconds.items():
                found.append(await self._prefill(tokens))
        self.times.prefill = [
            PrefillTimes(tokens=n, seconds=tuple(found)) for n, found in seconds.items()
        ]

    async def continued(self) -> None:
        """Measures prompts whose beginning is cached, as in the next turn of an agent."""
        cold_s = {p.tokens: median(p.seconds) for p in self.times.prefill}
        room = min(self._target.max_model_len - 1, int(KV_SHARE * self._target.kv_tokens))
        for context in CACHED:
            if context + AFTER[-1] > room:
                break
            if self._spent_s + 3 * cold_s.get(context, math.inf) > AFTER_SHARE * self._within_s:
                self.times.left_out.append(f"prompts after {context} cached tokens: no time")
                break
            before = self._probe.new(context)
            await self._probe.ask(before, 1)
            for tokens in AFTER:
                self._report(f"prefill of {tokens} tokens after {context}")
                found = [await self._continue(before, tokens) for _ in range(ROUNDS)]
                if len({cached for cached, _ in found}) > 1 or not found[0][0]:
                    what = f"prompts after {context} cached tokens"
                    self.times.left_out.append(f"{what}: the server had not cached them")
                    return
                cached = found[0][0]
                self.times.prefill.append(
                    PrefillTimes(
                        tokens=context + tokens - cached,
                        cached_tokens=cached,
                        seconds=tuple(seconds for _, seconds in found),
                    )
                )

    async def _continue(self, before: Ids, tokens: int) -> tuple[int, float]:
        """Returns the number of cached tokens, and the seconds to the first token."""
        seconds, answer = await self._probe.first_token(
            np.concatenate([before, self._probe.new(tokens)])
        )
        return answer.cached_tokens or 0, seconds

    def _too_long(self, tokens: int, seconds: dict[int, list[float]]) -> bool:
        """Whether this length takes too long, if times grow with the square of the length."""
        longest = max(seconds)
        next_s = seconds[longest][0] * (tokens / longest) ** 2
        so_far_s = sum(found[0] for found in seconds.values())
        return ROUNDS * (so_far_s + next_s) > PREFILL_SHARE * self._within_s

    async def _prefill(self, tokens: int) -> float:
        self._report(f"prefill of {tokens} tokens")
        seconds, answer = await self._probe.first_token(self._probe.new(tokens))
        if answer.cached_tokens:
            raise MeasurementFailed(
                f"{self._target.base_url}: {answer.cached_tokens} tokens of a new prompt were "
                "cached; profile an engine whose prompts are cold"
            )
        return seconds

    async def decodes(self) -> None:
        """Prompts grow from one context to the next, and batches by more prompts, so that almost
        all of each batch's prompts are cached already, and the time goes into decoding."""
        prompts: list[Ids] = []
        sent: list[list[Ids]] = []
        cached: dict[int, int] = {}
        for context in CONTEXTS:
            for batch in BATCHES:
                if why := self._why_not(batch, context, cached):
                    self.times.left_out.append(f"batches of {batch} at {context} tokens: {why}")
                    break
                self._report(f"decode of {batch} at {context} tokens")
                while len(prompts) < batch:
                    prompts.append(self._probe.new(0))
                for k in range(batch):
                    more = self._probe.new(max(context - len(prompts[k]), 0))
                    prompts[k] = np.concatenate([prompts[k], more])
                    cached[k] = context
                if found := await self._decode(prompts[:batch], context):
                    self.times.decode.append(found)
                    sent.append(prompts[:batch])
                else:
                    what = f"batches of {batch} at {context} tokens"
                    self.times.left_out.append(f"{what}: never at work all at once")
        for _ in range(ROUNDS - 1):
            await self._decode_again(sent)

    async def _decode_again(self, sent: list[list[Ids]]) -> None:
        """As far as the time goes; the prompts may be cached no longer."""
        for k, prompts in enumerate(sent):
            found, context = self.times.decode[k], len(prompts[0])
            took_s = 2 * self._outputs(len(prompts), context) * median(found.seconds)
            if self._spent_s + took_s > self._within_s:
                return
            self._report(f"decode of {len(prompts)} at {context} tokens, again")
            if more := await self._decode(prompts, context):
                seconds = found.seconds + more.seconds
                self.times.decode[k] = found.model_copy(update={"seconds": seconds})

    def _why_not(self, batch: int, context: int, cached: dict[int, int]) -> str:
        target = self._target
        outputs = self._outputs(batch, context)
        if context + outputs > target.max_model_len:
            return "the context is too long"
        if batch * (context + outputs) > KV_SHARE * target.kv_tokens:
            return "the KV memory is too small"
        if batch > target.max_num_seqs:
            return "more than the server runs at once"
        times = {p.tokens: median(p.seconds) for p in self.times.prefill if not p.cached_tokens}
        near = min(times, key=lambda n: abs(n - context))
        new = sum(context - cached.get(k, 0) for k in range(batch))
        new_s = times[near] * new / near * max(context / near, 1)
        step_s = max((median(d.seconds) for d in self.times.decode), default=0.0)
        if self._spent_s + new_s + 2 * STEPS * step_s > self._within_s:
            return "no time"
        return ""

    def _outputs(self, batch: int, context: int) -> int:
        """Enough that the first is still at work when the last has begun, were no prompt cached."""
        return batch * context // self._target.step_tokens + STEPS + WINDOW

    async def _decode(self, prompts: list[Ids], context: int) -> DecodeTimes | None:
        """None if the streams never overlapped: a busy client may send the last one so late that
        the first has ended, so answers grow as far as there is room."""
        batch, outputs = len(prompts), self._outputs(len(prompts), context)
        room = min(self._target.max_model_len, self._target.kv_tokens // batch) - context
        while outputs <= room:
            answers = await asyncio.gather(
                *(self._probe.ask(prompt, outputs) for prompt in prompts)
            )
            marks = [marks for _, marks in answers]
            begin_s = max(next(at for at, n in found if n) for found in marks)
            end_s = min(next(at for at, n in found if n == outputs) for found in marks)
            if seconds := step_seconds(marks, begin_s, end_s):
                first = min(next(n for at, n in found if at >= begin_s) for found in marks)
                last = min(max(n for at, n in found if at <= end_s) for found in marks)
                return DecodeTimes(
                    batch=batch, context=context + (first + last) / 2, seconds=tuple(seconds)
                )
            outputs *= 2
        return None


def step_seconds(marks: list[list[tuple[float, int]]], begin_s: float, end_s: float) -> list[float]:
    """Seconds of a step, a mean for every WINDOW tokens of a stream, between the two times. A chunk
    may hold several tokens: a window ends with the first chunk that completes it. Empty if the
    streams were not all at work for that long."""
    found = []
    for stream in marks:
        inside = [(at, n) for at, n in stream if n and begin_s <= at <= end_s]
        if not inside:
            return []
        since_s, since = inside[0]
        for at, n in inside:
            if n - since >= WINDOW:
                found.append((at - since_s) / (n - since))
                since_s, since = at, n
    return found
