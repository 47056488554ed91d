"""Computes what no schedule of the same jobs can beat: a lower bound on the mean JCT, and a rate.

In: the measured turns of a cell in virtual time with open-loop arrivals, and its machine. Out:
seconds, and jobs per second.

A step with T tokens of S turns, D of which decode contexts of C tokens in all, and with P
query-key pairs, takes f(T) + s S + c C + p P, and has at most B = `step_tokens` tokens and N =
`max_num_seqs` turns. The device holds K tokens of KV. A prompt of n tokens hits at most h, whole
blocks of its program's previous context and of other prompts. A turn with o output tokens takes
at least

    L = q + F(n − h) + p Σ_{i=h+1..n} i + Σ_{k=1..o−1} (f(≥1) + s + c (n + k))

with q, the time of a request outside the engine, f(≥T), the least f of a step with at least T
tokens, and F(m) = f(≥m) for a prompt that fits one step, else m times the best f(T) / T. Prices α
per prompt token, β per decode and κ per token of a decode's context that no other program shares
are feasible if, for all T ≤ B and D ≤ min(T, N) (without κ K for D = 0),

    α (T − D) + β D + κ K ≤ f(T)

A decode is charged β + s + c · context + κ · own context, a prompt token α + p · its position,
and a prompt s for each of its ⌈(n − h) / B⌉ steps; one decode per preemption is free. As all
contexts that a step decodes are on the device, these charges accrue at a rate of at most 1. So
does the share of K that a program's own tokens hold, in its steps and, unless computing them
again or reloading them is cheaper, in the gap before a turn. So does the work, `compute` of the
first plus 1 − `compute` of the second. No schedule finishes such jobs sooner on average than
SRPT, the shortest remaining processing time first (Schrage, 1968). After a cut in each job, the
least time of its turns counts instead of their work. Any prices, shares and cuts give a bound;
the largest is returned.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

import numpy as np
import pandas as pd

from reports.metrics import alone
from reports.metrics.alone import Floats, IdleMachine, LeastWork
from reports.metrics.jct import extremes
from reports.metrics.metric import NONE, PER_S, SECONDS, Facts, Group, Metric, Value, mean
from reports.run_folder.turns import Column, Turns, failed_turns
from servers.basics.clock import PS_PER_S
from servers.profiles import TableProfile

TOKEN_PRICES = (0.0, 0.5, 0.9, 1.0)
"""Prices as shares of the best time per token."""
MEMORY_PRICES = (0.0, 0.5, 1.0)
"""Reserves, as shares of the least fixed time of a step: what the contexts of decodes pay
together."""
COMPUTE = (1.0, 0.9, 0.75, 0.5, 0.25)
CUTS = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Cuts as shares of the least time of a root program."""


class Bound(NamedTuple):
    mean_jct_s: float
    """No schedule has a lower mean JCT with these arrivals."""
    jobs_per_s: float
    """Above this rate, such jobs need more work than any schedule can do."""


class Prices(NamedTuple):
    """Prices in seconds that a turn pays for the part of a step's time that depends only on its
    number of tokens. No batch pays more in total than its step takes."""

    prompt_token_s: float
    decode_s: float
    context_token_s: float
    """For each token of a decode's context that no other program shares."""


def lower_bound(turns: Turns, machine: IdleMachine, machines: int = 1) -> Bound:
    """Return the bounds for the jobs of these turns, all of which finished, on several equal
    machines, treated as one that is that many times as fast, whose bounds are no higher."""
    codes, names = pd.factorize(turns["job_id"])
    arrival_s, _ = extremes(codes, len(names), turns)
    order = np.lexsort((turns["turn"], turns["program_id"] != turns["job_id"], codes))
    turns, codes = {name: values[order] for name, values in turns.items()}, codes[order]
    root = turns["program_id"] == turns["job_id"]
    least_s = np.where(root, alone.least_turn_s(turns, machine) + turns["gap_s"], 0.0)
    total_s = np.bincount(codes, least_s, len(names))
    passed = _running_sum(least_s, codes) / total_s[codes]
    mean_s, most_work_s = 0.0, 0.0
    for work_s in _work_of_turns(turns, machine):
        most_work_s = max(most_work_s, float(work_s.sum()) / len(names))
        for cut in CUTS:
            before = (root & (passed <= cut)) if cut < 1 else np.ones(len(root), bool)
            worked_s = np.bincount(codes, np.where(before, work_s, 0.0), len(names)) / machines
            after_s = float(np.where(before, 0.0, least_s).sum()) / len(names)
            if _fifo_mean_s(arrival_s, worked_s) + after_s > mean_s:  # SRPT is at most that
                mean_s = max(mean_s, srpt_mean_s(arrival_s, worked_s) + after_s)
    return Bound(mean_s, machines / most_work_s)


def _running_sum(values: Floats, codes: Column) -> Floats:
    """Return cumulative sums within each code. Codes are sorted."""
    sums = np.cumsum(values)
    return np.asarray(sums - (sums - values)[np.searchsorted(codes, codes)])


def _work_of_turns(turns: Turns, machine: IdleMachine) -> Iterator[Floats]:
    """Yield the work of each turn for each of `COMPUTE`."""
    profile, work, shared = machine.profile, alone.work_of(turns, machine), _shared(turns)
    own_contexts = np.maximum(work.contexts - work.decodes * shared, 0.0)
    totals = [float(column.sum()) for column in (work.new, work.decodes, own_contexts)]
    prices = max(_prices(machine), key=lambda each: np.dot(each, totals))
    steps_ps = (work.decodes + np.ceil(work.new / machine.step_tokens)) * profile.sequence_ps
    steps_ps += work.contexts * profile.context_ps + alone.attention_ps(work, machine)
    if profile.window is not None:
        steps_ps += work.window_contexts(profile.window) * profile.window.context_ps
    computed_s = work.new * prices.prompt_token_s + work.decodes * prices.decode_s
    computed_s += own_contexts * prices.context_token_s + steps_ps / PS_PER_S
    yield computed_s
    if not np.isfinite(machine.kv_tokens):
        return
    own_cached = np.maximum(work.cached - shared, 0.0)
    running = own_contexts * machine.decode_step_s(work.prompt + 1)
    running = (running + own_cached * alone.prefill_s(work, machine)) / machine.kv_tokens
    for compute in COMPUTE[1:]:
        again_s = compute * prices.prompt_token_s
        gap_s = _gap_s(work, shared, turns["gap_s"], machine, compute, again_s)
        yield compute * computed_s + (1 - compute) * running + gap_s


def _shared(turns: Turns) -> Column:
    """Return for each turn the most tokens that a prompt of its program shares with others."""
    codes, names = pd.factorize(turns["program_id"])
    most = np.zeros(len(names))
    np.maximum.at(most, codes, turns["shared_tokens"])
    return most[codes]


def _prices(machine: IdleMachine) -> Iterator[Prices]:
    """Yield prices that no batch exceeds: the fixed time of a step with T tokens, D of which are
    decodes, is at least (T − D) · token_s + D · decode_s, and a reserve if D > 0. As the own
    contexts of the decodes fit on the device, they pay at most the reserve."""
    fixed_s = machine.fixed_s
    tokens = np.arange(1, len(fixed_s) + 1)
    extra_token_s = extra_decode_s = 0.0
    if isinstance(profile := machine.profile, TableProfile):
        extra_token_s = profile.prefill_ps / PS_PER_S / machine.step_tokens
        extra_decode_s = profile.decode_ps / PS_PER_S / machine.max_num_seqs
    for share, memory in product(TOKEN_PRICES, MEMORY_PRICES):
        token_s = share * machine.token_s
        reserve_s = memory * float(fixed_s.min())
        rest_s = fixed_s - reserve_s - token_s * tokens
        decodes = np.where(rest_s > 0, np.minimum(tokens, machine.max_num_seqs), 1)
        decode_s = token_s + float((rest_s / decodes).min())
        if decode_s >= 0:
            yield Prices(
                token_s + extra_token_s,
                decode_s + extra_decode_s,
                reserve_s / machine.kv_tokens,
            )


def _gap_s(
    work: LeastWork,
    shared: Column,
    gap_s: Column,
    machine: IdleMachine,
    compute: float,
    again_s: float,
) -> Floats:
    """Return the work for the cached tokens that no other program shares: each is held during the
    tool gap, computed again, or reloaded. `again_s` is the price of computing a token, in addition
    to its query-key pairs."""
    profile = machine.profile
    held_s = (1 - compute) * gap_s / machine.kv_tokens
    if machine.offload:
        held_s = np.minimum(held_s, compute * profile.load_token_ps / PS_PER_S)
    # A token has as many pairs as its position, so those up to `again` are computed again.
    pair_s = compute * profile.pair_ps / PS_PER_S
    most_pairs = (held_s - again_s) / pair_s if pair_s else np.where(held_s > again_s, np.inf, 0.0)
    start = np.minimum(shared, work.cached)
    again = np.clip(np.floor(most_pairs), start, work.cached)
    pairs = alone.triangle(again) - alone.triangle(start)
    return np.asarray((again - start) * again_s + pairs * pair_s + (work.cached - again) * held_s)


def _fifo_mean_s(arrival_s: Column, work_s: Column) -> float:
    """Return the mean time in system of jobs on one machine in order of arrival."""
    order = np.argsort(arrival_s, kind="stable")
    arrivals, ends = arrival_s[order], np.cumsum(work_s[order])
    ends += np.maximum.accumulate(arrivals - ends + work_s[order])
    return float((ends - arrivals).mean())


def srpt_mean_s(arrival_s: Column, work_s: Column) -> float:
    """Return the mean time in system of jobs on one machine with preemption under SRPT."""
    order = np.argsort(arrival_s, kind="stable")
    arrivals, works = arrival_s[order].tolist(), work_s[order].tolist()
    waiting: list[float] = []
    ends_s, now_s = 0.0, 0.0
    for at_s, work in zip([*arrivals, np.inf], [*works, 0.0], strict=True):
        while waiting and now_s + waiting[0] <= at_s:
            now_s += heapq.heappop(waiting)
            ends_s += now_s - arrivals[0]
        if waiting:
            heapq.heapreplace(waiting, waiting[0] - (at_s - now_s))
        now_s = at_s
        heapq.heappush(waiting, work)
    return (ends_s - float(np.sum(arrival_s - arrivals[0]))) / len(arrivals)


def _bounds(facts: Facts) -> dict[str, Value]:
    """Return NaN without a machine, if turns failed, and in a closed loop, where jobs arrive when
    others finish."""
    config, jct_s = facts.cell.config, facts.done["jct_s"]
    closed = config.jps is None and config.arrivals.startswith(("closed", "agents"))
    if facts.machine is None or closed or failed_turns(facts.turns).any() or not len(jct_s):
        return dict.fromkeys(BOUNDS.columns, math.nan)
    mean_s, jobs_per_s = lower_bound(facts.turns, facts.machine, facts.cell.config.replica_count)
    return dict(zip(BOUNDS.columns, (mean_s, mean(jct_s) / mean_s, jobs_per_s), strict=True))


BOUNDS = Group(
    _bounds,
    (
        Metric("jct_bound_s", SECONDS, pool="mean").means(
            "A mean JCT that no schedule of the measured jobs can beat.",
            "[Lower bound](../design/statistics.md#lower-bound); unknown for live servers,"
            " closed loops, and cells with a failed turn.",
        ),
        Metric("jct_over_bound", NONE, "lower", "÷ bound").means(
            "Mean JCT divided by a lower bound that no schedule of these jobs can beat."
        ),
        Metric("rate_bound_jobs_per_s", PER_S, pool="mean").means(
            "No schedule sustains a higher rate of jobs like the measured ones."
        ),
    ),
)
