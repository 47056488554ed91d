"""Computes the least time of turns and jobs on the machine of a cell in virtual time.

In: the turns of a cell, and the step times, the KV memory and the limits of its machine. Out:
seconds per turn and per job that no schedule can beat. A job without sub-agents needs little more
if it runs alone. `lower_bound` has the formula.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pandas as pd
from msgspec import to_builtins

from reports.run_folder.read import CellRun
from reports.run_folder.turns import Column, Turns
from servers.basics.clock import PS_PER_S
from servers.basics.errors import InvalidRunFolder
from servers.profiles import Profile, TableProfile, WindowTimes, profile_of
from servers.profiles.layout import Layout
from servers.profiles.profile import CAPTURED
from servers.records.fields import MAX_VALUE

Floats = npt.NDArray[np.float64]

MOST_STEP_TOKENS, MOST_TURNS = 1 << 20, 1 << 13
"""Largest engine limits for which times are calculated; they determine the memory used."""
CONTEXTS = 128
"""Number of contexts for which decode steps are calculated; others are interpolated."""


@dataclass(frozen=True)
class IdleMachine:
    """A profile with the limits of its engine: at most `step_tokens` tokens and `max_num_seqs`
    turns per step."""

    profile: Profile
    step_tokens: int
    max_num_seqs: int
    offload: bool
    stages: int = 1
    """Of a pipeline: each token passes all of them, and the profile is that of one."""

    @cached_property
    def fixed_s(self) -> Floats:
        """The part of a step's time that depends only on its number of tokens, from 1 on."""
        return _fixed_s(self.profile, self.step_tokens)

    @cached_property
    def least_fixed_s(self) -> Floats:
        """The least such time of a step with at least that many tokens."""
        return np.asarray(np.minimum.accumulate(self.fixed_s[::-1])[::-1])

    @cached_property
    def token_s(self) -> float:
        """The least such time per token, in a batch of the best size."""
        return float((self.fixed_s / np.arange(1, self.step_tokens + 1)).min())

    @property
    def kv_tokens(self) -> float:
        """Tokens whose KV fits on the device; infinite if all layers have a window."""
        profile = self.profile
        groups = sum(window is None for window in profile.kv_groups)
        block_tokens = profile.block_tokens * profile.block_lengths[0]
        return profile.kv_blocks * block_tokens / groups if groups else np.inf

    def decode_step_s(self, context: Column) -> Floats:
        """Return the least time of a step in which a turn with this context decodes, excluding
        layers that have a window. It is concave in the context."""
        profile = self.profile
        turns_s, context_s = profile.sequence_ps / PS_PER_S, profile.context_ps / PS_PER_S
        if not isinstance(profile, TableProfile):
            return np.asarray(self.least_fixed_s[0] + turns_s + context * context_s)
        # Other turns of the step may lower its mean context.
        turns = np.arange(1, self.max_num_seqs + 1)
        others_s = self.least_fixed_s[: len(turns)] + turns * turns_s
        mean_s = profile.mean_context_ps / PS_PER_S
        grid = np.linspace(1, max(2.0, float(context.max(initial=2.0))), CONTEXTS)
        means = (grid[:, None] - turns + 1) / turns
        least_s = (others_s + means * mean_s).min(axis=1) + profile.decode_ps / PS_PER_S
        return np.asarray(np.interp(context, grid, least_s) + context * context_s)


@lru_cache(maxsize=8)
def _fixed_s(profile: Profile, step_tokens: int) -> Floats:
    return np.array([profile.tokens_ps(n) for n in range(1, step_tokens + 1)]) / PS_PER_S


def machine_of(cell: CellRun) -> IdleMachine | None:
    """Return the machine of a cell; None if the cell was measured, if its fields do not match a
    profile, if its limits are too large, or if its steps generate several tokens of a turn.

    Raises InvalidRunFolder for numbers that no machine has.
    """
    config = cell.config
    steps, turns = config.limits.step_tokens, config.limits.max_num_seqs
    if config.virtual_time is None or config.limits.speculate or not (steps and turns):
        return None
    if steps > MOST_STEP_TOKENS or turns > MOST_TURNS:
        return None
    try:
        profile = profile_of(to_builtins(config.profile))
    except (TypeError, ValueError):
        return None
    if turns > steps or not _plausible(profile):
        raise InvalidRunFolder(
            f"{cell.folder / 'cell.json'}: no machine has these limits and this profile"
        )
    stages = 1
    if config.layout == Layout.PP and config.gpus:
        stages = config.gpus // config.replica_count
    return IdleMachine(profile, steps, turns, bool(config.offload), stages)


def _plausible(profile: Profile) -> bool:
    if profile.graph_tokens > CAPTURED[-1]:
        return False
    numbers = [
        *(profile.base_ps, profile.weights_ps, profile.token_ps, profile.sequence_ps),
        *(profile.context_ps, profile.pair_ps, profile.load_token_ps),
        *(profile.request_ps, profile.request_token_ps),
    ]
    if isinstance(profile, TableProfile):
        numbers += [profile.decode_ps, profile.prefill_ps, profile.mean_context_ps]
        tokens = [knot[0] for knot in profile.knots]
        if tokens[:1] != [1] or any(b <= a for a, b in pairwise(tokens)):
            return False
        if profile.base_ps == 0 and min(ps for _, ps in profile.knots) == 0:
            return False
    lengths = (profile.kv_blocks, profile.block_tokens, *profile.block_lengths)
    positive = (*lengths, profile.tokens_ps(1))
    return min(numbers) >= 0 and min(positive) > 0 and max(positive) <= MAX_VALUE


@dataclass(frozen=True, slots=True)
class LeastWork:
    """The least that each turn must compute under any schedule, in tokens and query-key pairs."""

    cached: Column
    """Leading prompt tokens that may be cached: whole blocks of the previous context and of
    prefixes shared with other prompts."""
    prompt: Column
    decodes: Column
    """Output tokens after the first, less those that may be computed with a prompt (one after each
    preemption)."""

    @property
    def new(self) -> Column:
        return np.asarray(self.prompt - self.cached)

    @property
    def pairs(self) -> Column:
        """Query-key pairs of the new prompt tokens: each token with all tokens up to itself."""
        return np.asarray(triangle(self.prompt) - triangle(self.cached))

    @property
    def contexts(self) -> Column:
        """Sum of the contexts of the decodes, each with its new token."""
        return np.asarray(self.decodes * self.prompt + triangle(self.decodes))

    def window_contexts(self, window: WindowTimes) -> Column:
        """Sum of the tokens that the decodes read in layers with a window. Each token reads as
        many as it has pairs."""
        return _pairs(window, self.prompt, self.decodes)


def _pairs(window: WindowTimes, computed: Column, tokens: Column) -> Column:
    chunks = zip(computed.astype(int).tolist(), tokens.astype(int).tolist(), strict=True)
    return np.array([window.pairs(*chunk) for chunk in chunks], float)


def triangle(n: Column) -> Column:
    """Return 1 + 2 + … + n."""
    return np.asarray(n * (n + 1) / 2)


def work_of(turns: Turns, machine: IdleMachine) -> LeastWork:
    block_tokens = machine.profile.block_tokens
    prompt = np.maximum(turns["prompt_tokens"], 1.0)
    kept = np.nan_to_num(turns["kept_tokens"])
    repeated = np.minimum(np.maximum(kept, turns["shared_tokens"]), prompt - 1)
    decodes = turns["output_tokens"] - 1 - turns["preemptions"]
    return LeastWork(repeated // block_tokens * block_tokens, prompt, np.maximum(decodes, 0.0))


def prefill_s(work: LeastWork, machine: IdleMachine) -> Floats:
    """Return the least time of the steps that compute each turn's new prompt tokens."""
    profile, new = machine.profile, work.new
    chunks = np.ceil(new / machine.step_tokens)
    # One step if they fit; several steps take at least the best time per token.
    one_s = machine.least_fixed_s[np.minimum(new, machine.step_tokens).astype(int) - 1]
    least_s = float(machine.least_fixed_s[0])
    several_s = np.maximum(machine.token_s * new, np.maximum(chunks, 2.0) * least_s)
    fixed_s = np.where(chunks > 1, several_s, np.minimum(one_s, several_s))
    of_chunk_ps = profile.sequence_ps
    if isinstance(profile, TableProfile):
        of_chunk_ps += profile.prefill_ps
    return np.asarray(fixed_s + (chunks * of_chunk_ps + attention_ps(work, machine)) / PS_PER_S)


def attention_ps(work: LeastWork, machine: IdleMachine) -> Column:
    """Return the time of the query-key pairs of each turn's new prompt tokens."""
    profile = machine.profile
    pairs_ps: Column = work.pairs * profile.pair_ps
    if profile.window is None:
        return pairs_ps
    in_window = _pairs(profile.window, work.cached, work.new)
    return np.asarray(pairs_ps + in_window * profile.window.pair_ps)


def least_turn_s(turns: Turns, machine: IdleMachine) -> Floats:
    """Return the least time from sending each turn to its last token."""
    work, profile = work_of(turns, machine), machine.profile
    request_s = (profile.request_ps + work.prompt * profile.request_token_ps) / PS_PER_S
    first_s = prefill_s(work, machine)
    # The last chunk passes the other stages too. Of several chunks, it may have one token.
    last_s = np.where(work.new > machine.step_tokens, machine.least_fixed_s[0], first_s)
    first_s = first_s + (machine.stages - 1) * last_s
    return np.asarray(request_s + first_s + least_decode_s(work, machine))


def least_decode_s(work: LeastWork, machine: IdleMachine) -> Floats:
    """Return the least time from the first to the last token of each turn."""
    profile = machine.profile
    first_s = machine.decode_step_s(work.prompt + 1)
    last_s = machine.decode_step_s(work.prompt + work.decodes)
    decode_s = work.decodes * (first_s + last_s) / 2  # at most the sum: steps are concave
    if profile.window is not None:
        read = work.window_contexts(profile.window)
        decode_s = decode_s + read * profile.window.context_ps / PS_PER_S
    return np.asarray(decode_s * machine.stages)


def least_job_s(turns: Turns, codes: Column, jobs: int, machine: IdleMachine) -> Floats:
    """Return the least JCT of each job: the turns and tool gaps of its longest program. `codes` is
    the index of each turn's job. The start times of sub-agents are not considered."""
    least_s = least_turn_s(turns, machine) + turns["gap_s"]
    of_program, _ = pd.factorize(turns["program_id"])
    of_program_s = np.bincount(of_program, least_s)
    found = np.zeros(jobs)
    np.maximum.at(found, codes, of_program_s[of_program])
    return found
