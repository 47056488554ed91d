"""Means over the turns that finished last (Progress-TTL)."""

from __future__ import annotations

import math
from collections import deque
from typing import NamedTuple

from servers.basics.clock import quotient


class Sample(NamedTuple):
    prompt_tokens: int
    output_tokens: int
    growth_tokens: int
    """Growth of the prompt since the program's previous turn; 0 if it has none that counts."""
    rounds: int
    finished_s: float


class TurnWindow:
    """The last `size` turns. Sums are of integers, hence exact."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._samples: deque[Sample] = deque()
        self._prompts = self._outputs = self._growths = self._grown = self._rounds = 0

    def add(self, prompt: int, output: int, growth: int, rounds: int, finished_s: float) -> None:
        self._count(Sample(prompt, output, growth, rounds, finished_s), 1)
        if len(self._samples) > self._size:
            self._count(self._samples[0], -1)

    def _count(self, sample: Sample, sign: int) -> None:
        if sign > 0:
            self._samples.append(sample)
        else:
            self._samples.popleft()
        self._prompts += sign * sample.prompt_tokens
        self._outputs += sign * sample.output_tokens
        self._growths += sign * sample.growth_tokens
        self._grown += sign * (sample.growth_tokens > 0)
        self._rounds += sign * sample.rounds

    @property
    def is_full(self) -> bool:
        return len(self._samples) >= self._size

    @property
    def mean_prompt(self) -> float:
        return quotient(self._prompts, len(self._samples)) if self._samples else 0.0

    @property
    def mean_output(self) -> float:
        return quotient(self._outputs, len(self._samples)) if self._samples else 0.0

    @property
    def mean_growth(self) -> float:
        return quotient(self._growths, self._grown) if self._grown else 0.0

    @property
    def per_second(self) -> float:
        """Turns that finish per second; 0 if unknown."""
        if len(self._samples) < 2:
            return 0.0
        seconds = self._samples[-1].finished_s - self._samples[0].finished_s
        return (len(self._samples) - 1) / seconds if seconds > 0 else 0.0

    def target_rounds(self, most: int) -> int:
        """Return twice the mean number of rounds, within 1 and `most`; 0 until the window is
        full."""
        if not self.is_full:
            return 0
        rounds = math.ceil(quotient(2 * self._rounds, len(self._samples)))
        return min(max(rounds, 1), most)
