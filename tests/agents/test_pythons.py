"""Scripts in the Python environments of agents."""

from __future__ import annotations

import pytest

from agents.pythons import prefixes
from servers.basics.errors import InvalidInput


@pytest.mark.parametrize("python", ["/nowhere/python", "/etc/passwd", "/bin/false"])
def test_a_python_that_cannot_run_a_script_is_named_with_its_option(python: str) -> None:
    with pytest.raises(InvalidInput, match=f"--agent-python {python}: .*; give the Python of"):
        prefixes(python)
