"""Sessions of Claude Code with their sub-agents (`~/.claude/projects/…/SESSION.jsonl`).

In: lines `{type, uuid, parentUuid, timestamp, isSidechain, agentId, message{id, content, usage},
toolUseResult}`. The lines of sub-agents are in the session's file or in files `agent-ID.jsonl`.
Out: the program of the session and one for each sub-agent. `docs/reference/trace-formats.md` has
the rules and repairs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from servers.basics.errors import TraceRejected
from servers.basics.json_object import JsonObject
from servers.basics.text import identifier
from traces.formats.about import PERMISSION, About
from traces.formats.claude_code_lines import IFLOW, AgentLines
from traces.formats.shared.launches import Launches
from traces.formats.shared.linked import START_BYTES, DocumentFile, first_lines, split, stem
from traces.formats.shared.sessions import Sent, make_programs
from traces.lenient import Repairs
from traces.program import Program

ABOUT = About(
    name="claude-code",
    order=2,
    keys=(("sessionId", "uuid", "parentUuid", "type"),),
    holds="sessions of Claude Code",
    tool_times=PERMISSION,
    sub_agents=True,
    accuracy="outputs that were cut off, from their text: 8% median error, 30% in nine of ten",
)

AGENT, AGENT_FILE = "agent ", "agent-"
MAX_KINDS = 5
_SESSION = re.compile(rb'"sessionId"\s*:\s*"([^"\\]+)"')
_CALL = re.compile(
    rb'"requestId"\s*:\s*"([^"\\]+)"|"message"\s*:\s*\{[^{}\[]*?"id"\s*:\s*"([^"\\]+)"'
    rb'|"id"\s*:\s*"(msg_[^"\\]+)"'
)
_LINE = re.compile(rb'"uuid"\s*:\s*"([^"\\]+)"')


def sniff(first_bytes: bytes) -> bool:
    lines = list(first_lines(first_bytes))
    return any(map(_is_line, lines)) and not any(map(is_of_iflow, lines))


def is_of_iflow(line: JsonObject) -> bool:
    return _is_line(line) and identifier(line.get("sessionId")).startswith(IFLOW)


def _is_line(line: JsonObject) -> bool:
    kind = line.get("type")
    if kind == "summary":
        return "leafUuid" in line
    if kind == "file-history-snapshot":
        return "messageId" in line
    return isinstance(kind, str) and ("sessionId" in line or {"parentUuid", "uuid"} <= line.keys())


def is_sub_agent(path: Path) -> bool:
    return path.name.startswith(AGENT_FILE)


def sub_agents(path: Path) -> Sequence[Path]:
    own_folder = path.parent / stem(path) / "subagents"
    return [*path.parent.glob(f"{AGENT_FILE}*"), *own_folder.rglob(f"{AGENT_FILE}*")]


def links(data: bytes, path: Path) -> set[str]:
    """Return the ids of sessions and calls, and the session's file without its suffix, which names
    the folder of its sub-agents."""
    calls = {b"".join(groups) for groups in _CALL.findall(data)}
    # Without them, the first line tells which session a copy is of.
    ids = {*_SESSION.findall(data), *(calls or _LINE.findall(data, 0, START_BYTES)[:1])}
    found = {id.decode("utf-8", "replace") for id in ids}
    if is_sub_agent(path):
        folders = [folder for folder in path.parents if folder.name == "subagents"]
        return found | {str(folder.parent) for folder in folders[:1]}
    return found | {str(path.parent / stem(path))}


def load(data: bytes, name: str, repairs: Repairs) -> list[Program]:
    session = _SessionAgents(repairs)
    # A session ends before the one that resumes it.
    parts = sorted(split(data, name), key=lambda part: part.last_timestamp)
    for part in sorted(parts, key=lambda part: part.name.startswith(AGENT_FILE)):
        session.add(part)
    return session.programs()


class _SessionAgents:
    """The agents of a session, and of the sessions that resumed it."""

    def __init__(self, repairs: Repairs) -> None:
        self.repairs = repairs
        self.agents: dict[str, AgentLines] = {}
        """Sessions by file number, and sub-agents by id."""
        self.sessions: dict[str, str] = {}
        """Names of sessions, by their keys in `agents`."""
        self.parts = 0
        self.read_calls: dict[str, str] = {}
        self.request_ids: dict[str, str] = {}
        self.roots: dict[str, str] = {}
        """For each line of a sub-agent without an id, the first line of its chain."""
        self.kinds: dict[str, None] = {}

    def add(self, part: DocumentFile) -> None:
        self.parts += 1
        for line in part.lines(self.repairs):
            self.kinds[identifier(line.get("type"))] = None
            if isinstance(line.get("uuid"), str):
                self._agent_of(part, line).add(line)

    def _agent_of(self, part: DocumentFile, line: JsonObject) -> AgentLines:
        key = f"session {self.parts}"
        if part.name.startswith(AGENT_FILE) or line.get("isSidechain") is True:
            named = part.name[len(AGENT_FILE) :] if part.name.startswith(AGENT_FILE) else ""
            key = f"{AGENT}{identifier(line.get('agentId')) or named or self._root(line)}"
        else:
            self.sessions[key] = identifier(part.name) or "session"
        if key not in self.agents:
            session = identifier(line.get("sessionId"))
            known = self.read_calls, self.request_ids
            self.agents[key] = AgentLines(key, session, *known, self.repairs)
        return self.agents[key]

    def _root(self, line: JsonObject) -> str:
        uuid, parent = identifier(line.get("uuid")), identifier(line.get("parentUuid"))
        self.roots[uuid] = self.roots.get(parent, parent or uuid)
        return self.roots[uuid]

    def programs(self) -> list[Program]:
        for agent in self.agents.values():
            agent.finish()
        if not any(agent.thread.calls for agent in self.agents.values()):
            raise TraceRejected(self._why_empty())
        started_by = self._started_by()
        parents = {key: self._parent(key, started_by) for key in self.agents}
        self._name(parents)
        for key, agent in self.agents.items():
            started, parent = started_by.get(key, []), parents[key]
            kind = started[0].kind if started else ""
            if agent.system and (kind or key in self.sessions):
                agent.thread.prefix_of = ("claude-code", kind, *agent.system)
            above = self.agents[parent].thread if parent is not None else None
            agent.thread.launched_by(started, above, self.repairs)
        sessions_first = sorted(self.agents, key=lambda key: key not in self.sessions)
        return make_programs([self.agents[key].thread for key in sessions_first], self.repairs)

    def _why_empty(self) -> str:
        if "assistant" in self.kinds:
            return "no answer with token counts, or only copies of those in another file"
        kinds = ", ".join(filter(None, list(self.kinds)[:MAX_KINDS])) or "none"
        return f"no conversation: the types of its lines are {kinds}"

    def _started_by(self) -> dict[str, list[Sent]]:
        """Return the tool calls that started each sub-agent and its further runs: the calls whose
        results have its id, or else a call with its first message as the prompt."""
        sent = (s for agent in self.agents.values() for s in agent.sent.values())
        ids = {key: key.removeprefix(AGENT) for key in self.agents if key not in self.sessions}
        launches = Launches(sent, frozenset(ids.values()))
        found = {k: launches.of(k, [id], self.agents[k].first_prompt) for k, id in ids.items()}
        return {key: sent for key, sent in found.items() if sent}

    def _parent(self, key: str, started_by: Mapping[str, list[Sent]]) -> str | None:
        """Return the agent that started a sub-agent, or else its session."""
        if key in self.sessions:
            return None
        if key in started_by:
            return started_by[key][0].thread
        session = self.agents[key].session
        with_calls = [k for k in self.sessions if self.agents[k].thread.calls]
        named = (k for k in with_calls if session in (self.sessions[k], self.agents[k].session))
        return next(named, next(iter(with_calls), None))

    def _name(self, parents: Mapping[str, str | None]) -> None:
        """Set the ids of all agents. A sub-agent's id begins with its session's id."""
        numbers = {key: n for n, key in enumerate(dict.fromkeys(self.roots.values()), 1)}
        used: set[str] = set()
        for key, agent in self.agents.items():
            id = self.sessions.get(key, "")
            if not id:
                own = key.removeprefix(AGENT)
                own = f"{AGENT_FILE}{numbers.get(own, own)}"
                top = key
                for _ in self.agents:  # no chain is longer, unless it is a cycle
                    above = parents[top]
                    if above is None:
                        break
                    top = above
                id = f"{self.sessions[top]}/{own}" if top in self.sessions else own
            while id in used:
                id = f"{id}'"
            used.add(id)
            agent.thread.id = id
