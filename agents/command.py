"""Runs any agent by its command line: `--agent-command 'my-agent {task} --base-url {base_url}'`.

The line is split into words like in a shell, before placeholders are replaced. So a task is always
one word, and no shell interprets it.
"""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import orjson

from servers.basics.errors import InvalidInput
from servers.basics.text import one_line

PLACEHOLDERS = ("task", "base_url", "model", "workspace", "program_id", "folder")
_PLACEHOLDER = re.compile(r"\{([A-Za-z_-]+)\}")


@dataclass(frozen=True, slots=True)
class CommandAgent:
    words: tuple[str, ...]
    """The command line, with placeholders in braces."""
    name: str = "command"
    boots_early: bool = False

    def check(self) -> str:
        return shlex.join(self.words)

    def command(self, launch_file: Path) -> list[str]:
        launch = orjson.loads(launch_file.read_bytes())
        return [_PLACEHOLDER.sub(lambda match: str(launch[match[1]]), word) for word in self.words]

    def readable(self) -> list[Path]:
        """Return the program, its Python environment, and the files on the command line.

        Other files may be private, so the user has to name them (--agent-reads).
        """
        files = [Path(word) for word in self.words[1:] if Path(word).is_file()]
        paths = [*_environment(Path(self.words[0])), *files]
        return [path for path in paths if not path.is_relative_to("/usr")]

    def env(self) -> Mapping[str, str]:
        return {}


def command_agent(line: str) -> CommandAgent:
    """Raises InvalidInput if the line cannot be run."""
    try:
        words = shlex.split(line)
    except ValueError as error:
        raise InvalidInput(f"--agent-command: {error}, in {one_line(line)}") from None
    if not words:
        raise InvalidInput("--agent-command is empty; give the command that runs your agent")
    for word in words:
        for name in _PLACEHOLDER.findall(word):
            if name not in PLACEHOLDERS:
                known = ", ".join(f"{{{placeholder}}}" for placeholder in PLACEHOLDERS)
                raise InvalidInput(
                    f"--agent-command: {{{one_line(name)}}} is not a placeholder; use {known}"
                )
    if not any("{task}" in word or "{folder}" in word for word in words):
        raise InvalidInput(
            "--agent-command: {task} is missing; add it, or else all programs would be identical"
        )
    program = shutil.which(words[0])
    if program is None:
        reason = "not executable" if _is_file(words[0]) else "no such program"
        raise InvalidInput(f"--agent-command: {one_line(words[0])}: {reason}")
    if Path(program).parent.name == "shims":
        raise InvalidInput(
            f"--agent-command: {program} is a shim, which needs files outside the sandbox; give "
            f"the program itself (pyenv which {words[0]})"
        )
    # Programs run in another folder, so relative paths are made absolute.
    rest = [str(Path(w).absolute()) if _is_file(w) else w for w in words[1:]]
    return CommandAgent((str(Path(program).absolute()), *rest))


def _is_file(word: str) -> bool:
    try:
        return "{" not in word and Path(word).is_file()
    except OSError:  # the word is too long for a file name
        return False


def _environment(program: Path) -> list[Path]:
    """Return a program's virtual environment and base, a Python's folder, or only the program."""
    home, real = program.parent.parent, program.resolve()
    if (home / "pyvenv.cfg").is_file():
        return [home, (home / "bin" / "python").resolve().parent.parent]
    if real.name.startswith("python"):
        return [real.parent.parent]
    return [program, real]
