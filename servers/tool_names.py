"""Extracts the names of the tools that an answer calls, in order.

In: OpenAI tool calls, or an answer's text. Out: names; () if it calls none.

- OpenAI tool calls give their function names (chat completions, the Responses API's
  `function_call` items, and calls written into the text as `<tool_call>{"name": …}</tool_call>`).
- The formats of models that are not JSON (`_FORMATS`, and lists of Python calls) give the names
  that vLLM's parsers give (tests/real/plugin/test_tool_names.py). Special tokens must not have been
  dropped from the text.
- A fenced shell block gives the first word of each command, split on `&&`, `||`, `;`, `|`, `&` and
  newlines (Continuum v3, Appendix B). Quotes, here-documents and `$(…)` are not split.
- Terminal-Bench JSON gives the first words of its keystrokes.

Text before `</think>` is ignored. Standard library only, since vLLM loads this module.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

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


UNKNOWN_TOOL = "unknown"
"""Stands for the tools of an answer that may call some, but in a format that is not known."""


class _Format(NamedTuple):
    call: re.Pattern[str]
    """The beginning of a call, with its name as the only group."""
    end: str
    """Follows the arguments, which may contain the beginning of a call; "" if nothing does."""


_NAME = r"([\w./-]{1,256})"
_FORMATS = tuple(
    _Format(re.compile(call), end)
    for call, end in (
        # Qwen3-Coder, Nemotron 3, Seed-OSS, Step-3.5, MiMo
        (rf"<function={_NAME}>", "</function>"),
        # MiniCPM5
        (rf"<function name=\"{_NAME}\"", "</function>"),
        # MiniMax M2, DeepSeek V3.2 to V4.1 (DSML), Step-3
        (rf"<(?:[\w]{{1,16}}:|｜DSML｜ ?)?invoke name=\"{_NAME}\"", "invoke>"),
        # GLM-4.5 to 4.7
        (rf"<tool_call>\s*{_NAME}\s*(?=<arg_key>|</tool_call>)", "</tool_call>"),
        # DeepSeek V3 and R1
        (
            rf"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{_NAME}\s",
            "<｜tool▁call▁end｜>",
        ),
        # DeepSeek V3.1
        (rf"<｜tool▁call▁begin｜>{_NAME}<｜tool▁sep｜>", "<｜tool▁call▁end｜>"),
        # Kimi K2
        (
            r"<\|tool_call_begin\|>\s*(?:functions\.)?([\w-]{1,256}):\d+",
            "<|tool_call_end|>",
        ),
        # Kimi K3
        (rf"<\|open\|>\s*call tool=\"{_NAME}\"", "<|close|>call<|sep|>"),
        # gpt-oss (harmony); an answer continues `<|start|>assistant`
        (
            r"(?:\A|<\|start\|>assistant|<\|channel\|>\w{1,16})\s*to=(?:functions\.)?" + _NAME,
            "<|call|>",
        ),
        # Mistral since v11
        (rf"\[TOOL_CALLS\]\s*{_NAME}\s*(?=\[CALL_ID\]|\[ARGS\]|{{)", ""),
        # Gemma
        (rf"(?:<start_function_call>|<\|tool_call>)call:{_NAME}{{", ""),
    )
)
_PYTHON_LIST = re.compile(r"^\[\s*[A-Za-z_][\w.]*\(", re.MULTILINE)
_MAX_PYTHON_CHARS = 1 << 16
_TOKEN = re.compile(r"<\|[\w ]{1,40}\|>")
_MARKER = re.compile(
    r"<[^<>\s]{0,32}(?:tool|function|action|plugin|invoke)s?[_▁|:=]|<invoke\s|\[TOOL", re.IGNORECASE
)
"""What the unknown format of a call probably begins with."""


def tools_of_answer(text: str, *, cut: bool = False) -> tuple[str, ...]:
    """Return the names of the called tools; `UNKNOWN_TOOL` if none is found in an answer that may
    call one, because it has the marker of an unknown format, or was `cut` before its end."""
    names = tool_names(text)
    if not names and (cut or _MARKER.search(_after_thinking(text))):
        return (UNKNOWN_TOOL,)
    return names


def tool_names(answer: str | Iterable[Any] | None) -> tuple[str, ...]:
    if not answer:
        return ()
    if not isinstance(answer, str):
        return tuple(name for call in answer if (name := _function_name(call)))
    text = _after_thinking(answer)
    return tuple(
        _called_in_format(text) or _called_in_json(text)[1] or _called_in_blocks(text)
    ) or tuple(_called_in_python(text))


def _after_thinking(answer: str) -> str:
    return answer.rpartition("</think>")[2].rpartition("[/THINK]")[2]


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


def _called_in_format(text: str) -> list[str]:
    """Return the names of calls in the format of `_FORMATS` that begins first, if that is before
    the first call in JSON: arguments of a call may contain text like another one."""
    first: re.Match[str] | None = None
    end, format = _called_in_json(text)[0], None
    for other in _FORMATS:
        found = other.call.search(text, 0, end + 1)
        if found is not None and (first is None or found.start() < first.start()):
            first, format = found, other
    names: list[str] = []
    while first is not None and format is not None:
        names.append(first[1])
        after = text.find(format.end, first.end()) if format.end else first.end()
        first = format.call.search(text, after) if after >= 0 else None
    return names


def _called_in_python(text: str) -> Iterator[str]:
    """Yield the names of `[f(a=1), g()]` (Llama 4, LFM2), or of one call per line (OLMo 3)."""
    plain = _TOKEN.sub("", text)
    lines, closed, _ = plain.partition("<function_calls>")[2].partition("</function_calls>")
    if closed:
        source = f"[{','.join(lines.strip().splitlines())}]"
    elif (start := _PYTHON_LIST.search(plain)) is not None:
        source = plain[start.start() : plain.rfind("]") + 1]
    else:
        return
    if len(source) > _MAX_PYTHON_CHARS:
        return
    try:
        calls = ast.parse(source, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    found = calls.elts if isinstance(calls, ast.List) else []
    if all(isinstance(call, ast.Call) and not call.args for call in found):
        yield from (ast.unparse(call.func) for call in found if isinstance(call, ast.Call))


def _called_in_json(text: str) -> tuple[int, list[str]]:
    """Return where the first call begins, or else the end of the text, and the names."""
    first, names = len(text), list[str]()
    decoder, at = json.JSONDecoder(), -1
    for _ in range(_MAX_STARTS):
        at = text.find("{", at + 1)
        if at < 0:
            break
        try:
            value, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            continue
        called = list(_called_by(value))
        if called and not names:
            first = at
        names += called
        at = end - 1
    return first, names


def _called_by(value: dict[str, Any]) -> Iterator[str]:
    if isinstance(value.get("commands"), list):
        for command in value["commands"]:
            keys = command.get("keystrokes") if isinstance(command, dict) else None
            if isinstance(keys, str):
                yield from command_names(keys)
    elif ("arguments" in value or "parameters" in value) and (name := _function_name(value)):
        yield name
    elif "parameters" in value and isinstance(name := value.get("tool_name"), str) and name:
        yield name  # Command A


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
