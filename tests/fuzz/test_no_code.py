"""Input is never executed: no pickle, eval, shell, YAML with objects, or archives. The only import
by name is that of a plug-in that the user names by its dotted path."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("harness", "agents", "traces", "servers", "reports", "plugins")
MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal",
           "code", "codeop", "xml.sax", "xml.dom", "tarfile", "zipfile"}  # fmt: skip
CALLS = {"eval", "exec", "compile", "__import__", "os.system", "os.popen", "yaml.load",
         "yaml.unsafe_load", "yaml.full_load", "pd.read_pickle", "pandas.read_pickle",
         "subprocess.getoutput", "subprocess.getstatusoutput", "asyncio.create_subprocess_shell",
         "tempfile.mktemp", "numpy.load", "np.load", "torch.load", "Markup",
         "importlib.import_module", "import_module"}  # fmt: skip
ALLOWED = {
    (
        "servers/basics/registry.py",
        "importlib.import_module",
    ): "a plug-in that the user chose",
    ("harness/cluster/node.py", "pickle"): "a cell from the driver, which may run any code here",
    ("harness/cluster/tasks.py", "pickle"): "writes that cell",
    ("harness/cli/main.py", "import_module"): "our own commands, from a table",
    ("harness/calibrate/operator_tables.py", "import_module"): "packages of a table",
    (
        "plugins/turnstile-vllm/turnstile_vllm/__init__.py",
        "import_module",
    ): "a module of the package itself",
    ("servers/vllm/virtual_time/overhead.py", "importlib.import_module"): "modules of vLLM",
    ("traces/stored.py", "zipfile"): "members are read up to a limit, and never extracted",
    ("reports/page/schedulers.py", "Markup"): "a constant link, which escapes what is put into it",
}


def files() -> list[Path]:
    return sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


def violations(source: str) -> Iterator[tuple[str, int]]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names if alias.name in MODULES)
        elif isinstance(node, ast.ImportFrom) and node.module in MODULES:
            yield node.module, node.lineno
        elif isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            if name in CALLS:
                yield name, node.lineno
            for keyword in node.keywords:
                if keyword.arg == "shell" and ast.unparse(keyword.value) != "False":
                    yield "shell=", node.lineno
                if keyword.arg == "allow_pickle":
                    yield "allow_pickle=", node.lineno


def test_no_input_is_executed_as_code() -> None:
    violating = [
        f"{name}, line {line}: {violation}"
        for path in files()
        for name in [path.relative_to(ROOT).as_posix()]
        for violation, line in violations(path.read_text())
        if (name, violation) not in ALLOWED
    ]
    assert not violating


@pytest.mark.parametrize(
    "source",
    ["import pickle", "from pickle import loads", "eval(x)", "subprocess.run(x, shell=True)",
     "yaml.load(x)", "np.load(x, allow_pickle=True)", "os.system(x)"],
)  # fmt: skip
def test_the_search_for_executed_input_finds_it(source: str) -> None:
    assert list(violations(source))


def test_templates_mark_only_our_own_assets_as_safe() -> None:
    """All other texts are escaped."""
    for path in (ROOT / "reports" / "templates").glob("*.j2"):
        for line in path.read_text().splitlines():
            if "safe" in line.replace("unsafe-inline", ""):
                assert "asset(" in line or "css | safe" in line, f"{path.name}: {line.strip()}"
