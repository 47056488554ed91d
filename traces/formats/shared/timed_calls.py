"""Converts LLM calls that were recorded with times and token counts to programs.

In: agents, each with its calls and its parent. Out: programs with forks, joins, tool gaps and kept
tokens. Times are in seconds, on one clock. `docs/reference/trace-formats.md` ("Recorded calls")
describes what is inferred.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, zip_longest

from traces.assumptions import Gap
from traces.block_hashes import share_blocks
from traces.formats.shared.balance import balance
from traces.formats.shared.calls import Call, kept_tokens, turn_of
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
class TimedAgent:
    """The calls of an agent, which follow each other unless `programs_of` separates them."""

    id: str
    calls: list[Call]
    parent: str | None = None
    prefix: SharedPrefix | None = None
    start_s: float | None = None
    """The recorded start, if it is not the first call's."""
    end_s: float | None = None
    """The recorded end, if it is not the last one of a call."""
    delay_provenance: Provenance | None = None
    """Of the time from its parent's call to its start, if it does not follow from that call."""
    joined_s: dict[int, float] = field(default_factory=dict)
    """The end of the last sub-agent that a call waits for, by the call's index."""
    _earliest_s: list[float] = field(default_factory=list)

    @property
    def earliest_ends_s(self) -> list[float]:
        """For each call, the earliest end of it and all later ones; these ascend."""
        if len(self._earliest_s) != len(self.calls):
            self._earliest_s = list(accumulate(map(_end_s, reversed(self.calls)), min))[::-1]
        return self._earliest_s


def estimate_ends(calls: Iterable[Call], repairs: Repairs) -> None:
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
    """Return the programs of all agents, and the agent of each program. Calls of an agent that
    overlap become several agents. `unnamed_tool`: all calls but an agent's last are assumed to call
    a tool, since tools are not recorded."""
    ordered: dict[str, TimedAgent] = {}
    for agent in agents:
        for part in _without_overlaps(agent, repairs):
            ordered[part.id] = part
            for call in part.calls[:-1] if unnamed_tool else ():
                call.tools = call.tools or UNNAMED_TOOL
    return make_programs(ordered, repairs), list(ordered.values())


def make_programs(
    agents: Mapping[str, TimedAgent],
    repairs: Repairs,
    tolerance_s: float = TOLERANCE_S,
    after_begun: bool = False,
) -> list[Program]:
    """Return the programs of agents, by id, whose calls follow each other. `after_begun`: a
    sub-agent that starts during a call of its parent is awaited by the call after that one."""
    forks = {
        id: _fork(agent, agents, tolerance_s, after_begun, repairs) for id, agent in agents.items()
    }
    return [
        Program(
            id,
            _turns(agent, tolerance_s, repairs),
            agent.prefix,
            forks[id],
            None if forks[id] else agent.calls[0].start_s,
        )
        for id, agent in agents.items()
    ]


def _without_overlaps(agent: TimedAgent, repairs: Repairs) -> list[TimedAgent]:
    """Split overlapping calls into agents without overlaps; the first agent gets the longest chain
    of calls. A call follows the longest prompt that it can continue."""
    if any(call.start_s is None for call in agent.calls):
        return [agent]
    calls = sorted(agent.calls, key=lambda call: call.start_s or 0.0)
    if calls != agent.calls:
        repairs.add("calls not in order of time: sorted")
    chains: list[list[Call]] = []
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


def _end_s(call: Call) -> float:
    return call.end_s if call.end_s is not None else call.start_s or 0.0


def _fork(
    child: TimedAgent,
    agents: Mapping[str, TimedAgent],
    tolerance_s: float,
    after_begun: bool,
    repairs: Repairs,
) -> Fork | None:
    """Return where a sub-agent starts: after the last turn of its parent that has ended by then."""
    if child.parent is None:
        return None
    parent, start_s = agents.get(child.parent), child.calls[0].start_s
    if parent is None or parent is child:
        repairs.add("a sub-agent whose parent is not in the file: made a separate program")
        return None
    start_s = start_s if child.start_s is None else child.start_s
    after = bisect_right(parent.earliest_ends_s, (start_s or 0.0) + tolerance_s) - 1
    if child.start_s is not None:  # recorded in its parent
        after = max(after, 0)
    if start_s is None or after < 0:
        repairs.add("a sub-agent or parallel call before its parent's first answer: separate")
        return None
    last_s = max(map(_end_s, child.calls))
    end_s, joined = last_s if child.end_s is None else child.end_s, None
    starts_s = [call.start_s or 0.0 for call in parent.calls[after + 1 : after + 3]]
    waiting = after + 1 + (after_begun and starts_s[:1] <= [start_s])
    if waiting < len(parent.calls):
        if end_s <= starts_s[waiting - after - 1] + tolerance_s:
            joined = waiting
            parent.joined_s[joined] = max(last_s, parent.joined_s.get(joined, last_s))
        else:
            repairs.add("a sub-agent that runs in parallel with its parent, which does not wait")
    call = parent.calls[after]
    delay_s = round(min(max(0.0, start_s - _end_s(call)), MAX_GAP_S), 3)
    return Fork(child.parent, after, delay_s, joined, child.delay_provenance or _provenance(call))


def _provenance(call: Call) -> Provenance:
    """Return the origin of a time after a call."""
    return Provenance.MEASURED if call.end_known else Provenance.INFERRED


def _turns(agent: TimedAgent, tolerance_s: float, repairs: Repairs) -> tuple[Turn, ...]:
    calls = agent.calls
    gaps = [_gap(agent, i, tolerance_s, repairs) for i in range(len(calls))]
    balanced = balance(calls, gaps, repairs, clock_error_s=2 * tolerance_s)
    kept = (_kept(calls, i, repairs) for i in range(len(calls)))
    return tuple(map(turn_of, calls, kept, balanced))


def _kept(calls: Sequence[Call], i: int, repairs: Repairs) -> int:
    # What calls with hashes keep is set by `share_hashes`.
    by_hashes = i == 0 or (calls[i].hashes is not None and calls[i - 1].hashes is not None)
    return 0 if by_hashes else kept_tokens(calls[i - 1], calls[i], repairs)


def _gap(agent: TimedAgent, i: int, tolerance_s: float, repairs: Repairs) -> Gap:
    call = agent.calls[i]
    if i + 1 == len(agent.calls):
        return 0.0, call.gap_provenance or Provenance.UNSTATED
    joined_s = agent.joined_s.get(i + 1)
    if call.gap is not None and joined_s is None:
        return call.gap
    next_s = agent.calls[i + 1].start_s
    if next_s is None or call.end_s is None:
        repairs.add("a call without times: the gap after it is set to 0")
        return 0.0, Provenance.UNSTATED
    gap_s = next_s - max(call.end_s, joined_s or call.end_s)
    if gap_s < -tolerance_s:
        repairs.add("a call sent before the previous response: gap set to 0")
    return gap_s, call.gap_provenance or _provenance(call)


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
        if any(call.hashes is None for call in agent.calls):
            pairs = zip(shared.turns, program.turns, agent.calls, strict=True)
            turns = tuple(
                turn if call.hashes is not None else replace(turn, kept_tokens=inferred.kept_tokens)
                for turn, inferred, call in pairs
            )
            shared = replace(shared, turns=turns)
        result.append(shared)
    return result
