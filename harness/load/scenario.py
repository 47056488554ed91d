"""Published load scenarios: AgentX, by which vendors compare servers for agents.

In: the jobs of a seed. Out: jobs in the state that their agents have at the beginning. The first
job of each agent begins in its middle, at a time t* of its recorded course: turns before t* are
history. The last one of each program is sent as warm-up, with its whole prompt and one token of
output, and so are the requests of the scenario's warm-up after t*. Further jobs begin with their
first turn. Each job has prompts of its own, also if it repeats a session, as with AIPerf's
`first_turn_prefix` marker.
Source: AIPerf, `common/scenario/inferencex_agentx_mvp.py` and `timing/trajectory_source.py`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from msgspec import structs

from harness.load.arrivals import rng_for
from harness.load.horizon import parse_horizon
from harness.load.settings import Agents, Prompts, SweepSettings
from harness.load.stream import DrawnJobs, Members
from harness.load.workload import Workload
from servers.basics.errors import InvalidInput
from servers.basics.nearest import did_you_mean
from servers.records.settings import ScenarioRecord
from traces import Program
from traces.cut import parents_first
from traces.merge import renamed
from traces.program import Fork, Turn

ANSWER_S_PER_TOKEN = 0.02
"""Recorded time of an answer per token, which programs do not have: the ratio of the sums in Weka's
sessions is 0.0197. It decides which turn is sent at t*, and no length or gap."""
SCENARIOS = {
    each.name: each
    for each in (
        ScenarioRecord(
            name="agentx", window_s=3600, start=(0.25, 0.75), warm_up_requests=10, job_idle_s=300
        ),
        ScenarioRecord(
            name="inferencex-agentx-mvp", window_s=1800, start=(0.0, 1.0), warm_up_requests=0
        ),
    )
}


def chosen_scenario(settings: SweepSettings) -> ScenarioRecord | None:
    """Return the rules of `--scenario`, with the window of `--horizon` if it is given; None without
    a scenario. Raises InvalidInput for options that contradict the rules."""
    load = settings.load
    if (name := load.scenario) is None:
        return None
    if name not in SCENARIOS:
        hint = did_you_mean(name, SCENARIOS, f"use {' or '.join(SCENARIOS)}")
        raise InvalidInput(f"--scenario {name}: unknown{hint}")
    _refuse_other_loads(settings, name)
    if load.agents is None:
        raise InvalidInput(f"--scenario {name}: give the --agents at work, such as --agents 8,16")
    rules = SCENARIOS[name]
    if load.horizon is None:
        return rules
    horizon = parse_horizon(load.horizon, None)
    if horizon is None or horizon.jobs is not None:
        raise InvalidInput(
            f"--horizon {load.horizon}: --scenario {name} has a window of time; give one such as "
            "15min"
        )
    return structs.replace(rules, window_s=horizon.seconds)


def _refuse_other_loads(settings: SweepSettings, name: str) -> None:
    """Raise InvalidInput for options that contradict the rules of a scenario."""
    load = settings.load
    for given, option, rule in (
        (load.arrivals, f"--arrivals {load.arrivals}", "keeps a number of --agents at work"),
        (settings.jps, f"--jps {settings.jps}", "has a number of --agents and no rate"),
        (load.once, "--once", "measures a window of time"),
        (load.burst, f"--burst {load.burst}", "begins with a warm-up"),
        (settings.slo, f"--slo '{settings.slo}'", "measures given numbers of --agents"),
        (settings.api_price, f"--api-price {settings.api_price}", "has no jobs to price"),
        (load.background, f"--background {load.background}", "has no other requests"),
        (settings.agents != Agents(), settings.agents.flag, "replays recorded sessions"),
        (
            settings.server.prompts is Prompts.TEXT,
            "--prompts text",
            "gives each job prompts of its own",
        ),
    ):
        if given:
            raise InvalidInput(f"{option}: --scenario {name} {rule}; remove one of them")


def refuse_single_requests(scenario: ScenarioRecord, workload: Workload) -> None:
    """Raise InvalidInput for a workload without sessions."""
    if workload.fresh is None and workload.turns == len(workload.programs):
        raise InvalidInput(
            f"--scenario {scenario.name}: {workload.name} has single requests and no sessions; "
            "give traces of agents"
        )


class ScenarioJob(NamedTuple):
    """A job as an agent runs it."""

    members: Members
    warm_turns: Mapping[str, int]
    """Number of leading turns of each program that are warm-up; none of programs left out here."""
    left_out: int
    """Number of earlier jobs that were drawn and left out, because they do not fit."""


@dataclass(frozen=True, slots=True)
class ScenarioJobs:
    """The jobs of one cell. Each iteration yields the same ones, without end."""

    drawn: DrawnJobs
    agents: int
    scenario: ScenarioRecord

    def __iter__(self) -> Iterator[ScenarioJob]:
        rng = rng_for(self.drawn.seed, "scenario")
        for index, members, left_out in self.drawn.fitting():
            members = _with_own_prompts(members, index)
            warm_turns: dict[str, int] = {}
            if index < self.agents:
                share = float(rng.uniform(*self.scenario.start))
                members, warm_turns = resumed(members, share, self.scenario.warm_up_requests)
            yield ScenarioJob(members, warm_turns, left_out)


def _with_own_prompts(members: Members, index: int) -> Members:
    """Return the job with prompts that share nothing with another job; its programs still share
    what they have in common."""

    def own(id: str) -> str:
        return f"{id}@{index}"

    return tuple(renamed(program, str, own) for program in members)


def resumed(
    members: Members, share: float, warm_up_requests: int
) -> tuple[Members, dict[str, int]]:
    """Return the rest of a job from t* on, and the number of warm-up turns by program.

    t* is at `share` of the time from the job's first request to its last one. At least the last
    turn of the root is after the warm-up, so a short job has fewer warm-up requests.
    """
    starts_s = sent_at_s(members)
    root, sent_s = members[0], sorted(at_s for times in starts_s.values() for at_s in times)
    at_s = min(sent_s[0] + share * (sent_s[-1] - sent_s[0]), starts_s[root.id][-1])
    following = {id: bisect_left(times, at_s) for id, times in starts_s.items()}
    kept = _not_ended(members, following)
    first = {id: max(following[id] - 1, 0) for id in kept}
    warm = {id: following[id] - first[id] for id in kept}
    further = sorted(
        (sent, id)
        for id in kept
        for sent in starts_s[id][following[id] :]
        if sent < starts_s[root.id][-1]
    )
    for _, id in further[:warm_up_requests]:
        warm[id] += 1
    forks = [program.fork for program in kept.values() if program.fork is not None]
    joins = {(fork.program_id, fork.joined_before_turn) for fork in forks}
    rest = []
    for program in kept.values():
        fork, begin = program.fork, first[program.id]
        next_s = starts_s[program.id][following[program.id]] - at_s
        turns = _warmed(tuple(program.turns)[begin:], warm[program.id])
        if fork is not None:
            delay_s = 0.0 if warm[program.id] else next_s
            fork = _rebased(fork, first[fork.program_id], delay_s)
        joined = (program.id, following[program.id])
        if not warm_up_requests and warm[program.id] and joined not in joins:
            turns = (replace(turns[0], tool_gap_s=next_s), *turns[1:])
        rest.append(replace(program, turns=turns, fork=fork, messages=(), prompt_messages=()))
    return tuple(rest), warm


def _not_ended(members: Members, following: Mapping[str, int]) -> dict[str, Program]:
    """Return the root, and the sub-agents that have turns left and whose parent is returned.
    `following`: the first turn of each program from t* on."""
    kept: dict[str, Program] = {}
    for program in parents_first(members):
        has_ended = following[program.id] == len(program.turns)
        if program.fork is None or (not has_ended and program.fork.program_id in kept):
            kept[program.id] = program
    return kept


def _warmed(turns: tuple[Turn, ...], warm: int) -> tuple[Turn, ...]:
    """Return turns that begin with turns of one output token and no gap between them. The
    first prompt hits nothing, and the next ones hit prompts, and no answers that were not given."""
    result = []
    for index, turn in enumerate(turns):
        kept = turn.kept_tokens if index else 0
        if 0 < index <= warm:
            kept = min(kept, turns[index - 1].prompt_tokens + 1)
        turn = replace(turn, kept_tokens=kept)
        if index < warm:
            turn = replace(turn, output_tokens=1)
        if index < warm - 1:
            turn = replace(turn, tool_gap_s=0.0)
        result.append(turn)
    return tuple(result)


def _rebased(fork: Fork, parent_begins: int, delay_s: float) -> Fork:
    """Return where a sub-agent starts in a parent without its first turns. One that had started, or
    that a turn before them starts, begins after the first turn that is left."""
    after, joined = fork.after_turn - parent_begins, fork.joined_before_turn
    return replace(
        fork,
        after_turn=max(after, 0),
        delay_s=fork.delay_s if after > 0 else delay_s,
        joined_before_turn=None if joined is None else joined - parent_begins,
    )


def sent_at_s(members: Members) -> dict[str, list[float]]:
    """Return when each turn of each program was sent in the recording, in seconds."""
    children: dict[tuple[str, int], list[Program]] = defaultdict(list)
    for program in members:
        if program.fork is not None:
            children[program.fork.program_id, program.fork.after_turn].append(program)
    sent: dict[str, list[float]] = {}

    def follow(program: Program, begin_s: float) -> float:
        """Add a program and its sub-agents; return when its last answer ended."""
        times = sent[program.id] = []
        end_s, gap_s, joined_s = begin_s, 0.0, defaultdict[int, float](float)
        for index, turn in enumerate(program.turns):
            times.append(max(end_s, joined_s[index]) + gap_s)
            end_s, gap_s = times[-1] + turn.output_tokens * ANSWER_S_PER_TOKEN, turn.tool_gap_s
            for child in children[program.id, index]:
                fork = child.fork
                child_end_s = follow(child, end_s + (fork.delay_s if fork else 0.0))
                if fork is not None and fork.joined_before_turn is not None:
                    before = fork.joined_before_turn
                    joined_s[before] = max(joined_s[before], child_end_s)
        return end_s

    follow(members[0], 0.0)
    return sent
