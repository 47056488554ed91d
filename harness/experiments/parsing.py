"""Counts the answers whose tool is recognised, as the execution note did (§3.2).

The note's five answers, for two jobs; Llama 3.1 gave them as they are. Qwen3 wrote a thinking text
first, which in eight of ten answers used all tokens before the bash block.
"""

from __future__ import annotations

from reports.experiment.judge import Finding
from reports.experiment.significance import Outcome
from servers.tool_names import tool_names

COMMANDS = ("ls", "cat main.py", "grep -r 'TODO' .", "git status", "pytest") * 2
THINKING = "<think>\nThe user wants me to run a command, so I need one ```bash block.\n"
COMPLETE = 2
"""Answers of Qwen3 that reached their bash block."""


def parsing() -> list[Finding]:
    blocks = [f"```bash\n{command}\n```" for command in COMMANDS]
    thought = [f"{THINKING}</think>\n{block}" for block in blocks]
    cut = [*thought[:COMPLETE], *[THINKING for _ in thought[COMPLETE:]]]
    return [
        _finding("bash blocks alone are parsed (Llama 3.1 8B)", blocks, 10, "10 of 10"),
        _finding("thinking that used up the tokens hides the block (Qwen3 8B)", cut, 2, "2 of 10"),
        _finding("thinking that ends before the block does not hide it", thought, 10, ""),
    ]


def _finding(says: str, answers: list[str], expected: int, published: str) -> Finding:
    names = [command.split()[0] for command in COMMANDS]
    parsed = sum(tool_names(answer) == (name,) for answer, name in zip(answers, names, strict=True))
    outcome = Outcome.HOLDS if parsed == expected else Outcome.FAILS
    return Finding(says, published, f"{parsed} of {len(answers)}", outcome)
