"""A closed loop of clients in virtual time, as benchmarks of serving engines send it.

In: a profile, limits, the number of clients, and the lengths of the requests. Out: the time to the
first token and the time per output token of each request. A client sends its next request when
the previous one has ended; prompts share no prefix. Lengths are tokens, times are seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from servers.basics.clock import PS_PER_S
from servers.policies.fcfs import Fcfs
from servers.profiles import Profile, costs
from servers.sim import Engine, Limits, Segment, Submission
from servers.sim import Sequence as Served


@dataclass(frozen=True, slots=True)
class Latencies:
    """Of each request, in the order in which they ended."""

    ttft_s: tuple[float, ...]
    """From sending a request to its first token."""
    tpot_s: tuple[float, ...]
    """From the first token to the last, over the tokens after the first; requests with a single
    token have none."""


def closed_loop(
    profile: Profile, limits: Limits, clients: int, requests: Sequence[tuple[int, int]]
) -> Latencies:
    """Serve `requests`, each with its prompt and output tokens, under stock vLLM's policy. All
    clients start at 0. Raises InvalidInput for a request that the KV memory cannot hold."""
    sent_ps: dict[Served, int] = {}
    ttft_s, tpot_s = [], []
    waiting = iter(requests)

    def send(prompt: int, output: int) -> None:
        submission = Submission(
            program_id=None,
            path=((Segment(0), (prompt + output) // profile.block_tokens),),
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
    for prompt, output in islice(waiting, clients):
        send(prompt, output)
    engine.run()
    return Latencies(tuple(ttft_s), tuple(tpot_s))
