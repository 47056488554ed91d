"""Extracts the names of the tools that an answer calls, in order.

In: OpenAI tool calls, or an answer's text. Out: names; () if it calls none.

- OpenAI tool calls give their function names (chat completions, the Responses API's
  `function_call` items, and calls written into the text as `<tool_call>{"name": …}</tool_call>`).
- A fenced shell block gives the first word of each command, split on `&&`, `||`, `;`, `|`, `&` and
  newlines (Continuum v3, Appendix B). Quotes, here-documents and `$(…)` are not split.
- Terminal-Bench JSON gives the first words of its keystrokes.

Text before `</think>` is ignored. Standard library only, since vLLM loads this module.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

_FENCE = re.compile(r"[ \t]*```[ \t]*(\w*)[ \t]*")
_SHELLS = frozenset({"bash", "sh", "shell", "zsh", "mswea_bash_command"})
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*(\[[^\]]*\])?\+?=")
_REDIRECT = re.compile(r"\d*(>>|>\||>&|&>>|&>|<>|<&|<<<|>|<)")
_HEREDOC = re.compile(r"<<(-?)[ \t]*(['\"\\]?)([A-Za-z0-9_.+-]+)")
_LEADING = frozenset(["if", "then", "elif", "else", "do", "while", "until", "!", "{"])
"""Shell keywords that a command may follow."""
_NO_COMMAND = frozenset(["for", "select", "case", "function", "done", "fi", "esac", "}"])
_EDITORS = frozenset({"file_editor", "planning_file_editor", "str_replace_editor"})
_SUBCOMMANDS = _EDITORS | {"str_replace_based_edit_tool", "task_tracker"}
"""Tools whose `command` is a subcommand (`view`), not a shell command."""
_MAX_STARTS = 64
"""Maximum number of positions at which JSON is tried, so that the time is linear in the text."""


def tool_names(answer: str | Iterable[Any] | None) -> tuple[str, ...]:
    if not answer:
        return ()
    if not isinstance(answer, str):
        return tuple(name for call in answer if (name := _function_name(call)))
    text = answer.rpartition("</think>")[2]
    return tuple(_called_in_json(text) or _called_in_blocks(text))


def call_names(name: str, command: str) -> tuple[str, ...]:
    """Return the commands that a tool call runs in a shell, or else the tool's name."""
    names = () if name in _SUBCOMMANDS else command_names(command)
    return names or (name,)


def command_names(script: str) -> tuple[str, ...]:
    """Return the first word of each command of a shell script."""
    return tuple(name for part in _commands(script) if (name := _first_word(part)))


def _function_name(call: Any) -> str | None:
    inner = _get(call, "function") or call
    name = inner if isinstance(inner, str) else _get(inner, "name")
    return name if isinstance(name, str) and name else None


def _get(value: Any, key: str) -> Any:
    return value.get(key) if isinstance(value, Mapping) else getattr(value, key, None)


def _called_in_json(text: str) -> list[str]:
    names: list[str] = []
    decoder, at = json.JSONDecoder(), -1
    for _ in range(_MAX_STARTS):
        at = text.find("{", at + 1)
        if at < 0:
            break
        try:
            value, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            continue
        names += _called_by(value)
        at = end - 1
    return names


def _called_by(value: dict[str, Any]) -> Iterator[str]:
    if isinstance(value.get("commands"), list):
        for command in value["commands"]:
            keys = command.get("keystrokes") if isinstance(command, dict) else None
            if isinstance(keys, str):
                yield from command_names(keys)
    elif ("arguments" in value or "parameters" in value) and (name := _function_name(value)):
        yield name


def _called_in_blocks(text: str) -> Iterator[str]:
    for language, body in _blocks(text):
        if language in _SHELLS:
            yield from command_names(body)


def _blocks(text: str) -> Iterator[tuple[str, str]]:
    """Yield the language and the body of each closed fenced block."""
    language: str | None = None
    body: list[str] = []
    for line in text.splitlines():
        fence = _FENCE.fullmatch(line)
        if language is None:
            if fence:
                language, body = fence[1], []
        elif fence and not fence[1]:
            yield language, "\n".join(body)
            language = None
        else:
            body.append(line)


def _commands(script: str) -> Iterator[str]:
    """Split a script into simple commands, without here-documents and comments."""
    part: list[str] = []
    heredocs: list[str] = []
    at, end = 0, len(script)
    while at < end:
        char = script[at]
        if char == "\\":
            step = 2
            part.append("" if script[at : at + 2] == "\\\n" else script[at : at + 2])
        elif char in "'\"`" or script.startswith("$(", at):
            step = _quoted(script, at)
            part.append(script[at : at + step] if char in "'\"" else "$()")
        elif char == "#" and (not part or part[-1][-1:].isspace()):
            newline = script.find("\n", at)
            step = (newline if newline >= 0 else end) - at
        elif not script.startswith("<<<", at) and (heredoc := _HEREDOC.match(script, at)):
            step = heredoc.end() - at
            if heredoc[2] and heredoc[2] != "\\":
                step += 1
            heredocs.append(heredoc[3])
        elif redirect := _REDIRECT.match(script, at):
            step = redirect.end() - at
            part.append(f" {redirect[0]} ")
        elif char in "\n;|&()":
            yield "".join(part)
            part, step = [], 1
            if char == "\n" and heredocs:
                step += _skip_heredocs(script, at + 1, heredocs)
                heredocs = []
        else:
            step = 1
            part.append(char)
        at += step
    yield "".join(part)


def _quoted(script: str, at: int) -> int:
    """Return the length of the quoted string, or of the `$(…)`, that begins at `at`."""
    if script[at] == "$":
        depth, end = 0, at + 1
        while end < len(script):
            depth += {"(": 1, ")": -1}.get(script[end], 0)
            end += 1
            if depth == 0:
                break
        return end - at
    quote, end = script[at], at + 1
    while end < len(script) and script[end] != quote:
        end += 2 if script[end] == "\\" and quote != "'" else 1
    return min(end + 1, len(script)) - at


def _skip_heredocs(script: str, at: int, delimiters: list[str]) -> int:
    """Return the length of the here-documents that begin at `at`."""
    start = at
    for delimiter in delimiters:
        while at < len(script):
            newline = script.find("\n", at)
            newline = len(script) if newline < 0 else newline
            line, at = script[at:newline], newline + 1
            if line.strip() == delimiter:
                break
    return min(at, len(script)) - start


_WORD = re.compile(r"""(?:\\.|'[^']*'|"(?:\\.|[^"\\])*"|[^\s])+""", re.DOTALL)


def _first_word(command: str) -> str | None:
    redirected = False
    for match in _WORD.finditer(command):
        word = match[0]
        if redirected:
            redirected = False
        elif _REDIRECT.fullmatch(word):
            redirected = True
        elif word in _NO_COMMAND:
            return None
        elif word not in _LEADING and not _ASSIGNMENT.match(word):
            return re.sub(r"[\\'\"]", "", word) or None
    return None
