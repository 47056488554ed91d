"""Makes external policies importable in vLLM's environment.

vLLM's environment may lack the package that contains a policy. A folder on vLLM's path therefore
has a link to the policy's top-level module, and one to `servers`. A policy that cannot be loaded
there because it imports other packages is refused before anything starts.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from servers.basics.errors import InvalidInput
from servers.processes.environments import last_line
from servers.variants import variant

SERVERS = Path(__file__).resolve().parents[2]
LOAD_TIMEOUT_S = 60.0
LOAD = """
import sys
from servers.basics.errors import InvalidInput
from servers.variants import variant
try:
    variant(sys.argv[1])
except InvalidInput as error:
    sys.exit(str(error))
"""


def module_root(policy: str | None) -> Path | None:
    """Return the file or folder of an external policy's top-level module; None for other policies
    and for one in the working directory, which is on vLLM's path."""
    root = None if policy is None else variant(policy).module_root
    return None if root is None or root.parent == Path.cwd() else root


def link_modules(folder: Path, policy_module: Path | None) -> Path:
    """Make a folder of links to `servers` and to the module, without other modules: both may be in
    a site-packages folder whose other packages vLLM must not import."""
    folder.mkdir(exist_ok=True)
    for module in filter(None, (SERVERS, policy_module)):
        link = folder / module.name
        link.unlink(missing_ok=True)
        link.symlink_to(module)
    return folder


@cache
def check_loads(policy: str, python: str) -> None:
    """Raise InvalidInput if an external policy cannot be loaded by `python`, vLLM's interpreter."""
    if variant(policy).module_root is None:
        return
    with tempfile.TemporaryDirectory(prefix="turnstile-") as folder:
        path = [str(link_modules(Path(folder), module_root(policy))), os.environ.get("PYTHONPATH")]
        try:
            process = subprocess.run(  # noqa: S603
                [python, "-c", LOAD, policy],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path))},
                capture_output=True,
                text=True,
                timeout=LOAD_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise InvalidInput(
                f"--policy {policy}: vLLM's Python ({python}) did not load it within "
                f"{LOAD_TIMEOUT_S:g} s"
            ) from None
    if process.returncode:
        why = last_line(process)
        raise InvalidInput(
            f"--policy {policy}: vLLM's Python ({python}) cannot load it: {why}; a policy may "
            "import the standard library and servers.policies"
        )
