"""Any agent, by a command line: `--agent-command 'my-agent {task} --base-url {base_url}'`.

The line is split as a shell would, once and before anything is put in: a task is one word, whatever
stands in it, and no shell ever reads it.
"""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import orjson

PLACES = ("task", "base_url", "model", "workspace", "program_id", "folder")
_PLACE = re.compile(r"\{([a-z_]*)\}")
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib64")
"""Visible in every sandbox."""


@dataclass(frozen=True, slots=True)
class CommandAgent:
    words: tuple[str, ...]
    """With places in braces."""
    also_readable: tuple[Path, ...] = ()
    name: str = "command"
    ahead: bool = False

    def check(self) -> str:
        return shlex.join(self.words)

    def command(self, launch_file: Path) -> list[str]:
        launch = orjson.loads(launch_file.read_bytes())
        return [_PLACE.sub(lambda place: str(launch[place[1]]), word) for word in self.words]

    def readable(self) -> list[Path]:
        """Its program with the environment around it, and every file that the line names."""
        found = list(self.also_readable)
        program = Path(self.words[0])
        if not str(program.resolve()).startswith(SYSTEM) or not str(program).startswith(SYSTEM):
            found += _around(program)
        found += [Path(word).parent for word in self.words[1:] if Path(word).is_file()]
        return [path for path in found if not str(path).startswith(SYSTEM)]

    def env(self) -> Mapping[str, str]:
        return {}


def command_agent(line: str, also_readable: tuple[Path, ...] = ()) -> CommandAgent:
    """Raises a ValueError in one line for what cannot be run."""
    try:
        words = shlex.split(line)
    except ValueError as error:
        raise ValueError(f"--agent-command: {error}, in {line}") from None
    if not words:
        raise ValueError("--agent-command: is empty; give the command that runs your agent")
    for word in words:
        for place in _PLACE.findall(word):
            if place not in PLACES:
                known = ", ".join(f"{{{name}}}" for name in PLACES)
                raise ValueError(
                    f"--agent-command: {{{place}}} is no place of ours; there are {known}"
                )
    if not any("{task}" in word or "{folder}" in word for word in words):
        raise ValueError(
            "--agent-command: {task} is missing, so that every program would do the same"
        )
    program = shutil.which(words[0])
    if program is None:
        raise ValueError(f"--agent-command: {words[0]}: no such program")
    # Programs run in a folder of their own, so a file named from here keeps its place.
    rest = [str(Path(w).absolute()) if _is_file(w) else w for w in words[1:]]
    return CommandAgent((str(Path(program).absolute()), *rest), also_readable)


def _is_file(word: str) -> bool:
    return "{" not in word and Path(word).is_file()


def _around(program: Path) -> list[Path]:
    """The environment of a program in one (`…/bin/my-agent`), and of a venv the Python below."""
    home = program.parent.parent if program.parent.name == "bin" else program.parent
    real = program.resolve()
    below = real.parent.parent if real.parent.name == "bin" else real.parent
    found = [home, below]
    if (home / "pyvenv.cfg").is_file():
        python = (home / "bin" / "python").resolve()
        found.append(python.parent.parent)
    if home == Path(sys.prefix):
        found.append(Path(sys.base_prefix))
    return found
