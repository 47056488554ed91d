"""Any agent, by a command line: `--agent-command 'my-agent {task} --base-url {base_url}'`.

The line is split as a shell would, once and before anything is put in: a task is one word, whatever
stands in it, and no shell ever reads it.
"""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import orjson

from servers.errors import InvalidInput
from traces.lenient import one_line

PLACES = ("task", "base_url", "model", "workspace", "program_id", "folder")
_PLACE = re.compile(r"\{([A-Za-z_-]+)\}")


@dataclass(frozen=True, slots=True)
class CommandAgent:
    words: tuple[str, ...]
    """With places in braces."""
    name: str = "command"
    ahead: bool = False

    def check(self) -> str:
        return shlex.join(self.words)

    def command(self, launch_file: Path) -> list[str]:
        launch = orjson.loads(launch_file.read_bytes())
        return [_PLACE.sub(lambda place: str(launch[place[1]]), word) for word in self.words]

    def readable(self) -> list[Path]:
        """Its program, the Python environment around it, and the files that the line names: what
        lies beside those only the user can open, since it may be a home."""
        found = [*_environment(Path(self.words[0]))]
        found += [Path(word) for word in self.words[1:] if Path(word).is_file()]
        return [path for path in found if not path.is_relative_to("/usr")]

    def env(self) -> Mapping[str, str]:
        return {}


def command_agent(line: str) -> CommandAgent:
    """Raises a ValueError in one line for what cannot be run."""
    try:
        words = shlex.split(line)
    except ValueError as error:
        raise InvalidInput(f"--agent-command: {error}, in {one_line(line)}") from None
    if not words:
        raise InvalidInput("--agent-command: is empty; give the command that runs your agent")
    for word in words:
        for place in _PLACE.findall(word):
            if place not in PLACES:
                known = ", ".join(f"{{{name}}}" for name in PLACES)
                raise InvalidInput(
                    f"--agent-command: {{{one_line(place)}}} is no place of ours; there are {known}"
                )
    if not any("{task}" in word or "{folder}" in word for word in words):
        raise InvalidInput(
            "--agent-command: {task} is missing, so that every program would do the same"
        )
    program = shutil.which(words[0])
    if program is None:
        why = "cannot be executed" if _is_file(words[0]) else "no such program"
        raise InvalidInput(f"--agent-command: {one_line(words[0])}: {why}")
    if Path(program).parent.name == "shims":
        raise InvalidInput(
            f"--agent-command: {program} is a shim, which asks for more than a sandbox shows; name "
            f"the program itself (pyenv which {words[0]})"
        )
    # Programs run in a folder of their own, so a file named from here keeps its place.
    rest = [str(Path(w).absolute()) if _is_file(w) else w for w in words[1:]]
    return CommandAgent((str(Path(program).absolute()), *rest))


def _is_file(word: str) -> bool:
    try:
        return "{" not in word and Path(word).is_file()
    except OSError:  # too long for a name
        return False


def _environment(program: Path) -> list[Path]:
    """A venv with its base, a Python's own folder, or the program's file alone."""
    home, real = program.parent.parent, program.resolve()
    if (home / "pyvenv.cfg").is_file():
        return [home, (home / "bin" / "python").resolve().parent.parent]
    if real.name.startswith("python"):
        return [real.parent.parent]
    return [program, real]
