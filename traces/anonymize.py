"""Removes from programs all that could name a person, a project or a file, or lists it.

In: programs. Out: programs with only lengths, times, well-known tool names and the prefixes that
prompts share; or a list of what a file still contains. Lengths and times remain, so anyone who has
the original can recognise it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from traces.block_hashes import with_prefix_ids
from traces.merge import MIN_UNIX_S
from traces.program import Program, SharedPrefix, Turn

_PROGRAMS = """
    apt apt-get awk base64 basename bash bazel bc bun bunx bzip2 cargo cat cd chmod
    chown clang cmake cmp comm conda cp curl cut date dd deno df diff dig dirname docker
    dotnet du echo egrep env exit expand export expr false fd fgrep file find flake8 fmt
    fold g++ gcc gem git go gofmt gradle grep gunzip gzip head helm hexdump hg hostname
    iconv id install java javac join jq kill less ln local ls lsof make man md5sum mkdir
    mktemp more mv mvn mypy nano ninja nl node nohup nox npm npx od openssl paste patch
    perl pgrep php pip pip3 pkill pnpm podman poetry popd printenv printf ps pushd pwd
    py.test pytest python python2 python3 read readlink realpath rename return rg rm
    rmdir rsync ruby ruff rustc scp sed seq set sh sha1sum sha256sum shuf sleep sort
    source split sqlite3 ssh stat strings sudo svn tac tail tar tee test time timeout
    touch tox tr tree true tsc type uname uniq unset unzip uv uvx vi vim wait wc wget
    which whoami xargs xxd yarn yes zcat zip zsh [ [[ . :
"""
_AGENT_TOOLS = """
    Agent AskUserQuestion Bash BashOutput Edit EnterPlanMode ExitPlanMode Glob Grep KillBash
    KillShell LS LSP ListMcpResourcesTool MultiEdit NotebookEdit NotebookRead Read
    ReadMcpResourceTool SlashCommand Skill Task TaskCreate TaskGet TaskList TaskOutput
    TaskStop TaskUpdate TodoRead TodoWrite ToolSearch WebFetch WebSearch Write
    exit_plan_mode apply_patch exec_command local_shell shell spawn_agent update_plan
    view_image wait_agent web_search write_stdin edit glob google_web_search list_directory
    read_file read_many_files replace run_shell_command save_memory search_file_content
    web_fetch request_user_input write_file write_todos browser browse_interactive condensation
    execute_bash
    execute_ipython_cell fetch fetch_url file_editor finish planning_file_editor
    request_condensation run run_ipython str_replace_based_edit_tool str_replace_editor
    submit task_tracker terminal think tool_use click_link edit_file find_file goto open
    scroll_down scroll_up search_dir search_file
"""
KNOWN_TOOLS = frozenset((_PROGRAMS + _AGENT_TOOLS).split())
"""Names that reveal nothing about their user: standard programs, and tools of agents."""


SOURCE = "anonymized"
_ID = re.compile(r"p\d+(/\d+)*", re.ASCII)
_PREFIX = re.compile(r"prefix-\d+", re.ASCII)
_TOOL = re.compile(r"tool-\d+", re.ASCII)


class RemainingContent(NamedTuple):
    """One kind of content of a trace."""

    content: str
    number: int
    identifies: bool
    """Whether it may name a person, a project or a file."""


class _Numbered:
    """Numbers names in the order of first use."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._names: dict[str, str] = {}

    def __call__(self, name: str) -> str:
        return self._names.setdefault(name, f"{self._prefix}{len(self._names) + 1}")


class Names:
    """Numbers programs and the tools that are not in `KNOWN_TOOLS`, in the order of first use.

    Ids become `p1`, and `p1/1` for its first sub-agent. Tools become `tool-1`, equal ones alike, so
    that policies that learn from tools decide as before.
    """

    def __init__(self) -> None:
        self._numbers = {"": _Numbered("p")}
        """Numbers sub-agents, by the new id of their parent followed by a slash."""
        self._tool = _Numbered("tool-")

    def numbered(self, programs: Sequence[Program]) -> list[Program]:
        """Return the programs of a file with numbers instead of names, and without sources."""
        ids = self.ids(programs)
        return [
            replace(
                p,
                id=ids[p.id],
                turns=tuple(replace(turn, tools=self.tools(turn)) for turn in p.turns),
                fork=p.fork and replace(p.fork, program_id=ids[p.fork.program_id]),
                source="",
            )
            for p in programs
        ]

    def ids(self, programs: Sequence[Program]) -> dict[str, str]:
        """Return the new ids by old id. A parent need not precede its sub-agents."""
        by_id = {program.id: program for program in programs}
        new: dict[str, str] = {}
        for program in programs:
            chain = [program]
            while (fork := chain[-1].fork) and fork.program_id not in new:
                chain.append(by_id[fork.program_id])
            for each in reversed(chain):
                parent = f"{new[each.fork.program_id]}/" if each.fork else ""
                new[each.id] = self._numbers.setdefault(parent, _Numbered(parent))(each.id)
        return new

    def tools(self, turn: Turn) -> tuple[str, ...]:
        return tuple(name if name in KNOWN_TOOLS else self._tool(name) for name in turn.tools)


def anonymized(programs: Sequence[Program]) -> list[Program]:
    """Return the programs without texts, commands, sources and names."""
    names, prefix = Names(), _Numbered("prefix-")
    for shared in (shared for p in programs for turn in p.turns for shared in turn.prefixes):
        prefix(shared.id)
    return [
        Program(
            id=p.id,
            turns=[replace(turn, command=None) for turn in with_prefix_ids(p.turns, prefix)],
            prefix=p.prefix and SharedPrefix(prefix(p.prefix.id), p.prefix.tokens),
            fork=p.fork,
            recorded_start_s=p.recorded_start_s,
            source=SOURCE,
            inferred_tokens=p.inferred_tokens,
        )
        for p in names.numbered(programs)
    ]


def findings(programs: Sequence[Program]) -> Iterator[RemainingContent]:
    """Yield the kinds of content that the programs of a file have besides lengths and times."""
    turns = [turn for program in programs for turn in program.turns]
    tools = {name for turn in turns for name in turn.tools}
    prefixes = {p.id for turn in turns for p in turn.prefixes}
    prefixes |= {program.prefix.id for program in programs if program.prefix}
    starts = [p.recorded_start_s for p in programs if p.recorded_start_s is not None]

    def others(names: set[str], known: Callable[[str], object]) -> int:
        return sum(not known(name) for name in names)

    ids = {program.id for program in programs}
    yield RemainingContent("messages of a program", sum(bool(p.messages) for p in programs), True)
    yield RemainingContent("commands", sum(turn.command is not None for turn in turns), True)
    yield RemainingContent("names of programs", others(ids, _ID.fullmatch), True)
    yield RemainingContent("names of shared prefixes", others(prefixes, _PREFIX.fullmatch), True)
    sources = {program.source for program in programs}
    yield RemainingContent("names of sources", len(sources - {"", SOURCE}), True)
    yield RemainingContent(
        "tools that are not well known",
        others(tools, lambda name: name in KNOWN_TOOLS or _TOOL.fullmatch(name)),
        True,
    )
    yield RemainingContent("well-known tools", len(tools & KNOWN_TOOLS), False)
    yield RemainingContent("dates", sum(start_s >= MIN_UNIX_S for start_s in starts), True)
    yield RemainingContent("starts in seconds after the first", len(starts), False)
