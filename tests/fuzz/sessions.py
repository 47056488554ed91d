"""Sessions of several files, with sub-agents, copies and rewritten histories, as one document."""

from __future__ import annotations

import json

from tests.traces import claude_code, test_claude_code_agents
from tests.traces.formats import test_claude_code, test_codex
from tests.traces.formats.test_gemini_cli import HEAD, MESSAGES
from tests.traces.sample import json_lines
from traces.formats.shared.linked import MARKER


def _claude_code() -> bytes:
    first, *others = test_claude_code_agents.main(agentId="x1")
    agent = test_claude_code_agents.agent
    return json_lines(
        {MARKER: "s"},
        *(first, *agent(None), *others),
        {MARKER: "agent-x1"},
        *agent(),
        {MARKER: "resumed"},
        *(first, *others, claude_code.user("n", "b", 9000)),
        claude_code.answer("m", "n", 9005, "m9", new=400, stop=None),
    )


def _compacted() -> bytes:
    return json_lines(
        test_claude_code.ASKED,
        test_claude_code.CALLED,
        test_claude_code.ANSWERED,
        claude_code.line("system", "c", None, 10, subtype="compact_boundary"),
        claude_code.user("v", "c", 11, "summary", isCompactSummary=True),
        claude_code.answer("b", "v", 20, "m2", cached=60, new=300),
    )


def _codex() -> bytes:
    count, codex = test_codex.Counter(), test_codex
    source = {"subagent": {"thread_spawn": {"parent_thread_id": "a"}}}
    return json_lines(
        {MARKER: "1"},
        codex.meta("a"),
        *codex.history(codex.Counter(), 1, 9),
        codex.called(50, "w", "wait", ids=["b"]),
        codex.output(99, "w"),
        {MARKER: "2"},
        codex.meta("b", 50, forked_from_id="a", source=source),
        *codex.history(count, 50, 0),
        codex.line("compacted", 60),
        codex.said(70),
        count(70, 300, cached=200),
    )


SESSIONS = (_claude_code(), _compacted(), _codex())
DOCUMENT = json.dumps({**HEAD, "messages": MESSAGES}).encode()
