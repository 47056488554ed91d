"""Weka's agentic coding sessions (`kv-cache-tester/traces`): a document per job.

In: programs. Out: `{id, models, block_size, hash_id_scope, requests}`, in seconds from the start of
the job, with ids of full blocks of 64 tokens that are valid in one document. As in the published
files, `t` is the start of a request, but the end of a sub-agent, whose own requests count from its
start. A request has an (assumed) `api_time` only if the gap after it was measured, since readers
take it as a sign that the gap is measured.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import ceil
from operator import itemgetter

import orjson

from servers.basics.json_object import JsonObject
from traces.exports.contents import BlockIds, add_block_losses
from traces.exports.timeline import ESTIMATED, PLACED_BY_TIME, StartAndEnd, jobs, timeline
from traces.lenient import Repairs
from traces.program import Program, Provenance

FOLDER = True
BLOCK_TOKENS = 64
MODEL = "unnamed"
"""The format requires the name of a model, which programs do not have."""
NO_NAMES = "weka has no tool names, only whether a turn calls a tool"
NO_STARTS = "weka has no starts of sessions: the tool that reads them decides when each begins"
UNMEASURED = (
    "weka marks a gap as measured by an api_time: one that was not measured has none, and is read "
    "as inferred, by AIPerf together with the generation before it"
)
LOCAL = "weka's hash ids are valid in one file: jobs share no prefixes"
BY_TIME = f"{PLACED_BY_TIME.format('weka')}; AIPerf takes the end of a sub-agent for its start"
NESTED = (
    "weka's sub-agents have none of their own: these become sub-agents of the session, and a wait "
    "for one is part of a gap"
)


def write(programs: Sequence[Program], losses: Repairs) -> Iterator[bytes]:
    times = timeline(programs, Repairs())
    losses.add(ESTIMATED)
    by_job = jobs(programs)
    common = _common_prefixes(by_job.values())
    for members in by_job.values():
        _add_losses(members, common, losses)
        yield orjson.dumps(_SessionDocument(times, losses).document(members))


class _SessionDocument:
    """The document of one job."""

    def __init__(self, times: Mapping[str, Sequence[StartAndEnd]], losses: Repairs) -> None:
        self._losses = losses
        self._times = times
        self._blocks = BlockIds(BLOCK_TOKENS, partial=False)

    def document(self, members: Sequence[Program]) -> JsonObject:
        root, *others = members
        start_s = self._times[root.id][0].start_s
        entries = self._requests(root)
        entries += (self._sub_agent(program, root.id, start_s) for program in others)
        entries.sort(key=itemgetter("t"))
        return {
            "id": root.id, "models": [MODEL], "block_size": BLOCK_TOKENS, "hash_id_scope": "local",
            "tool_tokens": 0, "system_tokens": 0, "requests": entries,
        }  # fmt: skip

    def _requests(self, program: Program) -> list[JsonObject]:
        start_s = self._times[program.id][0].start_s
        blocks = list(self._blocks.of(program))
        add_block_losses(program, blocks, BLOCK_TOKENS, self._losses)
        return [self._request(program, number, start_s, ids) for number, ids in enumerate(blocks)]

    def _request(self, program: Program, number: int, start_s: float, ids: list[int]) -> JsonObject:
        turn = program.turns[number]
        before = program.turns[number - 1] if number else None
        time = self._times[program.id][number]
        measured = turn.gap_provenance == Provenance.MEASURED
        return {
            "t": round(time.start_s - start_s, 6),
            "type": "n",
            "model": MODEL,
            "in": turn.prompt_tokens,
            "out": turn.output_tokens,
            "hash_ids": ids,
            "input_types": ["tool_result" if before and before.tools else "text"],
            "output_types": ["tool_use" if turn.tools else "text"],
            "stop": "tool_use" if turn.tools else "end_turn",
            "api_time": round(time.end_s - time.start_s, 6) if measured else None,
            "think_time": before.tool_gap_s if before else None,
        }

    def _sub_agent(self, child: Program, root: str, root_start_s: float) -> JsonObject:
        times = self._times[child.id]
        start_s, end_s = times[0].start_s, times[-1].end_s
        duration_ms = ceil((end_s - start_s) * 1e3)
        return {
            "t": round(start_s - root_start_s + duration_ms / 1e3, 6),
            "type": "subagent",
            "agent_id": child.id.removeprefix(f"{root}/"),
            "subagent_type": "agent",
            "duration_ms": duration_ms,
            "total_tokens": sum(turn.context_tokens for turn in child.turns),
            "tool_use_count": sum(len(turn.tools) for turn in child.turns),
            "status": "completed",
            "models": [MODEL],
            "tool_tokens": 0,
            "system_tokens": 0,
            "requests": self._requests(child),
        }


def _common_prefixes(by_job: Iterable[Sequence[Program]]) -> set[str]:
    """Return the ids of the prefixes that several jobs share."""
    seen: Counter[str] = Counter()
    for members in by_job:
        seen.update({id for program in members for id in program.prefix_ids})
    return {id for id, count in seen.items() if count > 1}


def _add_losses(members: Sequence[Program], common: set[str], losses: Repairs) -> None:
    root = members[0]
    if root.recorded_start_s is not None:
        losses.add(NO_STARTS)
    for program in members:
        losses.add(LOCAL, not common.isdisjoint(program.prefix_ids))
        if program.fork is not None:
            losses.add(BY_TIME if program.fork.program_id == root.id else NESTED)
        losses.add(NO_NAMES, sum(bool(turn.tools) for turn in program.turns))
        gaps = (turn.gap_provenance for turn in program.turns[:-1])
        losses.add(UNMEASURED, sum(gap != Provenance.MEASURED for gap in gaps))
