"""A closed loop of clients in virtual time, compared with manual calculations.

Each step of the toy profile takes one second, whatever it computes.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from servers.basics.errors import InvalidInput
from servers.sim import Limits
from tests.sim.worlds import profile
from tools.silicon.predictions import Latencies, closed_loop

S = 1_000_000_000_000
"""Picoseconds per second."""
SECOND_PER_STEP = profile(
    100, base_ps=S, weights_ps=0, token_ps=0, context_ps=0, pair_ps=0, request_ps=0
)


def test_a_client_sends_its_next_request_when_the_previous_one_has_ended() -> None:
    # Both first requests are computed in one step and end after steps 1, 2 and 3; so do the next.
    found = closed_loop(SECOND_PER_STEP, Limits(2, 8), 2, [(4, 3)] * 4)
    assert found == Latencies(ttft_s=(1.0,) * 4, tpot_s=(1.0,) * 4)


def test_a_request_waits_for_the_prompts_before_it() -> None:
    # A step computes 4 tokens. A: prompt in step 1, ends at 3. B: one token less per step that A
    # decodes in, 3 in step 2 and 1 in step 3, ends at 5. C, sent at 3: steps 4 and 5, ends at 7.
    found = closed_loop(SECOND_PER_STEP, Limits(2, 4), 2, [(4, 3)] * 3)
    assert found == Latencies(ttft_s=(1.0, 3.0, 2.0), tpot_s=(1.0, 1.0, 1.0))


def test_the_time_of_a_request_outside_the_engine_counts_for_the_first_token() -> None:
    slow = replace(SECOND_PER_STEP, request_ps=S // 2)
    assert closed_loop(slow, Limits(1, 8), 1, [(4, 3)] * 2).ttft_s == (1.5, 1.5)


def test_a_prompt_stalls_the_decodes_of_the_other_clients() -> None:
    # A prompt of 4 tokens has 10 pairs, each of a second. Step 1 computes both prompts in 21 s. B
    # ends after step 2, at 22 s, and C's prompt makes step 3 of A 11 s long.
    pairs = replace(SECOND_PER_STEP, pair_ps=S)
    found = closed_loop(pairs, Limits(2, 8), 2, [(4, 3), (4, 2), (4, 1)])
    b, a, c = found.ttft_s
    assert (a, b, c) == (21.0, 21.0, 11.0)
    assert found.tpot_s == (1.0, (33 - 21) / 2)


def test_a_request_with_one_token_has_no_time_per_output_token() -> None:
    assert closed_loop(SECOND_PER_STEP, Limits(1, 8), 1, [(4, 1)]) == Latencies((1.0,), ())


def test_prompts_share_no_prefix() -> None:
    # A hit of the same prompt would leave one block of 16 tokens to compute instead of three.
    per_token = replace(SECOND_PER_STEP, base_ps=0, token_ps=S)
    assert closed_loop(per_token, Limits(1, 64), 1, [(48, 1)] * 2).ttft_s == (48.0, 48.0)


def test_a_request_beyond_the_kv_memory_is_refused() -> None:
    small = replace(SECOND_PER_STEP, kv_blocks=1)
    with pytest.raises(InvalidInput, match="does not fit the 16 tokens"):
        closed_loop(small, Limits(1, 64), 1, [(16, 1)])


def test_repeated_prompts_are_hits_but_for_their_last_block() -> None:
    # The third request has the prompt of the first, of 48 tokens, whose first two blocks are hits.
    per_token = replace(SECOND_PER_STEP, base_ps=0, token_ps=S)
    found = closed_loop(per_token, Limits(1, 64), 1, [(48, 1)] * 3, prompts=2)
    assert found.ttft_s == (48.0, 48.0, 16.0)


def test_requests_of_the_warm_up_are_not_counted_but_their_prompts_are_hits() -> None:
    # The warm-up computes the first of two prompts. Then come the second, and the first again.
    per_token = replace(SECOND_PER_STEP, base_ps=0, token_ps=S)
    found = closed_loop(per_token, Limits(1, 64), 1, [(48, 1)] * 2, prompts=2, warm_up=[(48, 1)])
    assert found.ttft_s == (48.0, 16.0)
