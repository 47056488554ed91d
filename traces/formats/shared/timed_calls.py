"""Converts LLM calls that were recorded with times and token counts to programs.

In: agents, each with its calls and its parent. Out: programs with forks, joins, tool gaps and kept
tokens. Times are in seconds, on one clock. `docs/reference/trace-formats.md` ("Recorded calls")
describes what is inferred.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, zip_longest

from traces.block_hashes import share_blocks
from traces.lenient import MAX_GAP_S, Repairs
from traces.program import Fork, Program, Provenance, SharedPrefix, Turn

TOLERANCE_S = 0.1
"""A call that starts at most this long before the end of another one does not overlap it, since
clocks are not exact."""

MAX_CHAINS = 50
"""Maximum number of concurrent calls of one agent that are compared with a new one."""

UNNAMED_TOOL = ("tool_use",)
"""The tools of a call that is assumed to call one, if names are not recorded."""


def estimated_api_s(prompt_tokens: int, output_tokens: int) -> float:
    """Return an estimate of the time that a request takes, fitted by least squares to the 1,891
    requests with an `api_time` of 43 of Weka's sessions."""
    return 1.27 + 0.0149 * output_tokens + 1.47e-5 * prompt_tokens


@dataclass(slots=True)
class TimedCall:
    prompt: int
    output: int
    start_s: float | None = None
    end_s: float | None = None
    end_known: bool = True
    """Whether the end was recorded; otherwise it is an estimate."""
    cached: int | None = None
    """Prompt tokens that were read from a cache, if that is recorded."""
    reasoning: bool = False
    """Whether the output contains reasoning, which the next prompt does not repeat."""
    tools: tuple[str, ...] = ()
    gap: tuple[float, Provenance] | None = None
    """The recorded time from the end of this call to the next one, if it is more accurate than the
    difference of their times."""
    hashes: Sequence[int | str] | None = None
    kept: int | None = None
    """Tokens of the previous context that the prompt repeats, if that is recorded."""


@dataclass(slots=True)
class TimedAgent:
    id: str
    calls: list[TimedCall]
    parent: str | None = None
    prefix: SharedPrefix | None = None
    joined_s: dict[int, float] = field(default_factory=dict)
    """The end of the last sub-agent that a call waits for, by the call's index."""


def estimate_ends(calls: Iterable[TimedCall], repairs: Repairs) -> None:
    """Estimate the end of calls that have only a start, at most until the next call starts."""
    ordered = sorted((c for c in calls if c.start_s is not None), key=lambda c: c.start_s or 0.0)
    for call, following in zip_longest(ordered, ordered[1:]):
        if call.end_s is None:
            repairs.add("a call without its end or duration: estimated, its tool gap is inferred")
            end_s = (call.start_s or 0.0) + estimated_api_s(call.prompt, call.output)
            call.end_s = min(end_s, following.start_s or end_s) if following else end_s
            call.end_known = False


def programs_of(
    agents: Iterable[TimedAgent], repairs: Repairs, unnamed_tool: bool = False
) -> tuple[list[Program], list[TimedAgent]]:
    """Return the programs of all agents, and the agent of each program. `unnamed_tool`: all calls
    but an agent's last are assumed to call a tool, since tools are not recorded."""
    ordered: dict[str, TimedAgent] = {}
    for agent in agents:
        for part in _without_overlaps(agent, repairs):
            ordered[part.id] = part
            for call in part.calls[:-1] if unnamed_tool else ():
                call.tools = call.tools or UNNAMED_TOOL
    forks = {id: _fork(agent, ordered, repairs) for id, agent in ordered.items()}
    programs = [
        Program(
            id,
            tuple(_turn(agent, i, repairs) for i in range(len(agent.calls))),
            agent.prefix,
            forks[id],
            None if forks[id] else agent.calls[0].start_s,
        )
        for id, agent in ordered.items()
    ]
    return programs, list(ordered.values())


def _without_overlaps(agent: TimedAgent, repairs: Repairs) -> list[TimedAgent]:
    """Split overlapping calls into agents without overlaps; the first agent gets the longest chain
    of calls. A call follows the longest prompt that it can continue."""
    if any(call.start_s is None for call in agent.calls):
        return [agent]
    calls = sorted(agent.calls, key=lambda call: call.start_s or 0.0)
    if calls != agent.calls:
        repairs.add("calls not in order of time: sorted")
    chains: list[list[TimedCall]] = []
    for call in calls:
        start_s = call.start_s or 0.0
        free = [c for c in chains[-MAX_CHAINS:] if _end_s(c[-1]) <= start_s + TOLERANCE_S]
        fitting = [chain for chain in free if chain[-1].prompt <= call.prompt] or free
        if fitting:
            max(fitting, key=lambda chain: chain[-1].prompt).append(call)
        else:
            chains.append([call])
    if len(chains) > 1:
        for _ in chains[1:]:
            repairs.add("calls of one agent that overlap: made a separate sub-agent")
        chains.sort(key=len, reverse=True)
    names = [agent.id, *(f"{agent.id}~{n}" for n in range(1, len(chains)))]
    parents = [agent.parent, *[agent.id] * (len(chains) - 1)]
    return [
        TimedAgent(name, chain, parent, agent.prefix)
        for name, chain, parent in zip(names, chains, parents, strict=True)
    ]


def _end_s(call: TimedCall) -> float:
    return call.end_s if call.end_s is not None else call.start_s or 0.0


def _fork(child: TimedAgent, agents: dict[str, TimedAgent], repairs: Repairs) -> Fork | None:
    """Return where a sub-agent starts: after the last turn of its parent that has ended by then."""
    if child.parent is None:
        return None
    parent, start_s = agents.get(child.parent), child.calls[0].start_s
    if parent is None or parent is child:
        repairs.add("a sub-agent whose parent is not in the file: made a separate program")
        return None
    ends_s = [_end_s(call) for call in parent.calls]
    earliest_s = list(accumulate(reversed(ends_s), min))[::-1]
    after = bisect_right(earliest_s, (start_s or 0.0) + TOLERANCE_S) - 1
    if start_s is None or after < 0:
        repairs.add("a sub-agent that starts before its parent's first turn has ended: made a "
                    "separate program")  # fmt: skip
        return None
    end_s, joined = max(map(_end_s, child.calls)), None
    if after + 1 < len(parent.calls):
        if end_s <= (parent.calls[after + 1].start_s or 0.0) + TOLERANCE_S:
            joined = after + 1
            parent.joined_s[joined] = max(end_s, parent.joined_s.get(joined, end_s))
        else:
            repairs.add("a sub-agent that runs in parallel with its parent, which does not wait")
    known = parent.calls[after].end_known
    delay_s = round(min(max(0.0, start_s - ends_s[after]), MAX_GAP_S), 3)
    provenance = Provenance.MEASURED if known else Provenance.INFERRED
    return Fork(child.parent, after, delay_s, joined, provenance)


def _turn(agent: TimedAgent, i: int, repairs: Repairs) -> Turn:
    call = agent.calls[i]
    gap_s, provenance = _gap(agent, i, repairs)
    return Turn(
        prompt_tokens=call.prompt,
        output_tokens=call.output,
        kept_tokens=_kept(agent.calls[i - 1], call, repairs) if i else 0,
        tools=call.tools,
        tool_gap_s=round(min(max(0.0, gap_s), MAX_GAP_S), 3),
        gap_provenance=provenance,
    )


def _gap(agent: TimedAgent, i: int, repairs: Repairs) -> tuple[float, Provenance]:
    call = agent.calls[i]
    if i + 1 == len(agent.calls):
        return 0.0, Provenance.UNSTATED
    joined_s = agent.joined_s.get(i + 1)
    if call.gap is not None and joined_s is None:
        return call.gap
    next_s = agent.calls[i + 1].start_s
    if next_s is None or call.end_s is None:
        repairs.add("a call without times: the gap after it is set to 0")
        return 0.0, Provenance.UNSTATED
    gap_s = next_s - max(call.end_s, joined_s or call.end_s)
    if gap_s < -TOLERANCE_S and call.end_known:
        repairs.add("a call sent before the previous response: gap set to 0")
    return gap_s, Provenance.MEASURED if call.end_known else Provenance.INFERRED


def _kept(before: TimedCall, call: TimedCall, repairs: Repairs) -> int:
    """Return the number of tokens of the previous call's context that a prompt repeats. A prompt
    that grows is assumed to repeat the previous one, as agents append, and the output if it is long
    enough and the output has no reasoning. One that shrinks repeats its cached tokens."""
    if before.hashes is not None and call.hashes is not None:
        return 0  # see `share_hashes`
    whole = before.prompt + before.output
    if call.kept is not None:
        most = min(whole, call.prompt - 1)
        if call.kept > most:
            repairs.add("more kept tokens than the previous context or this prompt has: lowered")
        return min(call.kept, most)
    cached = min(call.cached or 0, whole, call.prompt - 1)
    if call.prompt > whole and not before.reasoning:
        return whole
    if call.prompt > before.prompt:
        return max(before.prompt, cached)
    if call.cached is None:
        repairs.add("a prompt that does not grow: nothing of the previous one counts as kept")
    return cached


def share_hashes(
    programs: Sequence[Program], agents: Sequence[TimedAgent], block_tokens: int
) -> list[Program]:
    """Set the parts that prompts share, from the block hashes of their calls. A call without hashes
    keeps the tokens inferred from its length."""
    hashes_of = {agent.id: [call.hashes or () for call in agent.calls] for agent in agents}
    result = []
    for shared, program, agent in zip(
        share_blocks(programs, hashes_of, block_tokens), programs, agents, strict=True
    ):
        turns = [
            turn if call.hashes is not None else replace(turn, kept_tokens=inferred.kept_tokens)
            for turn, inferred, call in zip(shared.turns, program.turns, agent.calls, strict=True)
        ]
        result.append(replace(shared, turns=tuple(turns)))
    return result
