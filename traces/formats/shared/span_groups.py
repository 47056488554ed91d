"""Groups model calls by the agent that made them.

In: a `SpanTree`. Out: a group for each session, and one for each sub-agent. The *scope* of a call
is the nearest agent or tool span around it. The calls of a scope belong to a sub-agent if the scope
is below another scope, below a tool, or within the time of a tool of another agent in the same
trace (some instrumentations put agents below the workflow). All other calls of a session, which may
have several traces, form one group.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field

from servers.basics.text import identifier
from traces.formats.shared.calls import unique_id
from traces.formats.shared.spans import Span, SpanKind, SpanTree, cut_cycles

WITHIN_S = 0.005
"""A sub-agent may end this much later than its tool, if the tool is not its ancestor."""
MAX_COMPARED = 100
"""Number of tools before a sub-agent's start among which its own tool is sought by time."""


@dataclass(slots=True)
class AgentSpans:
    """The calls of one agent, in order of time, and its tools."""

    id: str
    parent: AgentSpans | None = None
    calls: list[Span] = field(default_factory=list)
    tools: list[Span] = field(default_factory=list)


def groups(tree: SpanTree, name: str) -> list[AgentSpans]:
    """Return the groups with calls, parents first. `name` is the id of a session that has none."""
    grouping = _Grouping(tree, name)
    for call in tree.calls:
        scope = grouping.scope(call)
        call.name = call.name or (scope.name if scope and scope.kind is SpanKind.AGENT else "")
        grouping.group(call, scope).calls.append(call)
    for span in tree.spans:
        if span.kind is SpanKind.TOOL:
            grouping.group(span, grouping.owner(span)).tools.append(span)
    return [group for group in grouping.groups.values() if group.calls]


class _Grouping:
    def __init__(self, tree: SpanTree, name: str) -> None:
        self.tree, self.name = tree, name
        self.groups: dict[object, AgentSpans] = {}
        self.ids: dict[str, int] = {}
        scopes = [scope for call in tree.calls if (scope := self.scope(call)) is not None]
        self.scopes = {id(scope): scope for scope in scopes}
        self.tools: dict[str, list[Span]] = {}
        for span in tree.spans:
            if span.kind is SpanKind.TOOL:
                self.tools.setdefault(span.trace, []).append(span)
        self.sessions = self._sessions_by_trace()
        self.outer: dict[int, Span | None] = {}
        """Scope of the parent of each sub-agent's scope; None is the session."""
        for key, scope in self.scopes.items():
            is_sub_agent, outer = self._outer(scope)
            if is_sub_agent:
                self.outer[key] = outer
        # A scope that contains itself belongs to the session.
        inner = [scope for key, scope in self.scopes.items() if key in self.outer]
        cut_cycles(inner, lambda s: self.outer.get(id(s)), lambda _, s: self.outer.pop(id(s)))

    def scope(self, call: Span) -> Span | None:
        kinds = (SpanKind.AGENT, SpanKind.TOOL)
        return next((span for span in self.tree.ancestors(call) if span.kind in kinds), None)

    def owner(self, tool: Span) -> Span | None:
        """Return the scope of the agent that called a tool."""
        return next((a for a in self.tree.ancestors(tool) if id(a) in self.scopes), None)

    def _outer(self, scope: Span) -> tuple[bool, Span | None]:
        """Return whether a scope is a sub-agent's, and the scope of its parent."""
        below_tool = scope.kind is SpanKind.TOOL
        for ancestor in self.tree.ancestors(scope):
            if id(ancestor) in self.scopes:
                return True, ancestor
            below_tool |= ancestor.kind is SpanKind.TOOL
        if below_tool:
            return True, None
        tools = self.tools.get(scope.trace, [])
        last = bisect_right(tools, scope.start_s, key=lambda tool: tool.start_s)
        for tool in reversed(tools[max(0, last - MAX_COMPARED) : last]):
            contains = scope.end_s <= tool.end_s + WITHIN_S
            if contains and scope not in self.tree.ancestors(tool):
                return True, self.owner(tool)
        return False, None

    def group(self, span: Span, scope: Span | None) -> AgentSpans:
        """Return the group of a call or tool in this scope."""
        if scope is None or id(scope) not in self.outer:
            session = self._session(span)
            key: object = ("session", session)
            if key not in self.groups:
                self.groups[key] = AgentSpans(unique_id(identifier(session) or self.name, self.ids))
            return self.groups[key]
        if id(scope) not in self.groups:
            outer = self.outer[id(scope)]
            parent = self.group(outer or span, outer)
            name = identifier(scope.name)[:60] or "agent"
            wanted = identifier(f"{parent.id}/{name}")
            self.groups[id(scope)] = AgentSpans(unique_id(wanted, self.ids), parent)
        return self.groups[id(scope)]

    def _session(self, span: Span) -> str:
        for candidate in (span, *self.tree.ancestors(span)):
            if candidate.session:
                return candidate.session
        return self.sessions.get(span.trace) or span.trace or self.name

    def _sessions_by_trace(self) -> dict[str, str]:
        """Return the session of each trace that has exactly one."""
        found: dict[str, set[str]] = {}
        for span in self.tree.spans:
            if span.session:
                found.setdefault(span.trace, set()).add(span.session)
        return {trace: ids.pop() for trace, ids in found.items() if len(ids) == 1}
