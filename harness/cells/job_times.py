"""Summaries of job completion times (JCTs) and of the latencies of turns."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from servers.records.done import Summary, Times
from servers.records.turns import TurnRecord

PERCENTILES = (50, 90, 95, 99)


def summary(times_s: Sequence[float] | NDArray[np.float64]) -> Summary:
    """Summarise at least one time. Percentiles are linear between the two nearest ranks."""
    points = np.percentile(times_s, PERCENTILES).tolist()
    return Summary(math.fsum(times_s) / len(times_s), *points)


class TurnTimes:
    """The latencies of turns that finished."""

    def __init__(self) -> None:
        self._job = array("q")
        self._is_first = array("b")
        self._ttft_s, self._e2e_s, self._output_tokens = array("d"), array("d"), array("q")

    def add(self, record: TurnRecord, job: int) -> None:
        """Add a turn of a job, which has a number."""
        first_s, end_s, tokens = (
            record.first_token_at_s,
            record.finished_at_s,
            record.output_tokens,
        )
        if record.error is not None or first_s is None or end_s is None or not tokens:
            return
        self._job.append(job)
        self._is_first.append(record.turn == 0 and record.program_id == record.job_id)
        self._ttft_s.append(first_s - record.sent_at_s)
        self._e2e_s.append(end_s - record.sent_at_s)
        self._output_tokens.append(tokens)

    def with_jcts(self, jct_s: Sequence[float], first_job: int, end_job: int) -> Times:
        """Return these JCTs, of which there is at least one, with the latencies of the turns of the
        jobs from `first_job` to `end_job` − 1."""
        job = np.asarray(self._job)
        inside = (job >= first_job) & (job < end_job)
        ttft_s, e2e_s = np.asarray(self._ttft_s)[inside], np.asarray(self._e2e_s)[inside]
        tokens = np.asarray(self._output_tokens)[inside]
        many = tokens > 1
        return Times(
            jct=summary(jct_s),
            ttft=_summary(ttft_s),
            first_ttft=_summary(ttft_s[np.asarray(self._is_first)[inside] == 1]),
            tpot=_summary((e2e_s - ttft_s)[many] / (tokens[many] - 1)),
            per_token=_summary(e2e_s / tokens),
        )


def _summary(times_s: NDArray[np.float64]) -> Summary | None:
    return summary(times_s) if len(times_s) else None
