"""Writes the step times of a profile as the tables that Dynamo's mocker reads.

In: a `Profile`. Out: an .npz file with the time of a prefill by its new tokens, and that of a
decode step by the context tokens of its turns in all and on average, whose quotient is the number
of turns. The mocker interpolates, and adds the two in a step that has both.

What the tables cannot express: a prefill takes as long as that of a prompt without a cached part,
whose attention it does not pay for. The fixed time of a step is part of a decode, so that a step
with both has it once, and one without decodes does not have it. A worker for prefill only has no
decodes, so its prefills include it.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from servers.basics.clock import PS_PER_S
from servers.profiles import Profile

PREFILL_POINTS, TOTAL_POINTS, MEAN_POINTS = 200, 100, 300
MS_PER_PS = 1e3 / PS_PER_S


def write_step_times(profile: Profile, path: Path, *, prefill_only: bool) -> None:
    longest = profile.max_model_len
    prefills = _grid(longest, PREFILL_POINTS)
    totals = _grid(profile.kv_blocks * profile.block_tokens, TOTAL_POINTS)
    means = _grid(longest, MEAN_POINTS)
    fixed_ps = 0 if prefill_only else profile.tokens_ps(1)
    prefill_ps = [profile.batch_ps([(int(tokens), 0)], []) - fixed_ps for tokens in prefills]
    decode_ps = [[_decode_ps(profile, total, mean) for mean in means] for total in totals]
    np.savez(
        path,
        prefill_isl=prefills,
        prefill_ttft_ms=MS_PER_PS * np.maximum(prefill_ps, 0),
        decode_active_kv_tokens=totals,
        decode_context_length=means,
        decode_itl=MS_PER_PS * np.array(decode_ps),
    )


def _grid(last: int, points: int) -> NDArray[np.float64]:
    """Return whole numbers from 1 to `last`, evenly spaced on a logarithmic scale."""
    return np.unique(np.geomspace(1, last, points).round())


def _decode_ps(profile: Profile, total: float, mean: float) -> float:
    """Return the time of a decode step, interpolated between whole numbers of turns."""
    turns, part = divmod(max(1.0, total / mean), 1.0)
    fewer, more = (
        profile.step_ps(count, count, round(total), 0) for count in (int(turns), int(turns) + 1)
    )
    return fewer + part * (more - fewer)
