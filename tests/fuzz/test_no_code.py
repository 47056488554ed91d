"""Nothing that is read becomes code: no pickle, no eval, no shell, no YAML with objects, no
unpacking of archives. A policy by dotted path, the user's own wish, is the one import by name."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("harness", "agents", "traces", "servers", "reports")
MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal",
           "code", "codeop", "xml.sax", "xml.dom", "tarfile", "zipfile"}  # fmt: skip
CALLS = {"eval", "exec", "compile", "__import__", "os.system", "os.popen", "yaml.load",
         "yaml.unsafe_load", "yaml.full_load", "pd.read_pickle", "pandas.read_pickle",
         "subprocess.getoutput", "subprocess.getstatusoutput", "asyncio.create_subprocess_shell",
         "tempfile.mktemp", "numpy.load", "np.load", "torch.load", "Markup",
         "importlib.import_module", "import_module"}  # fmt: skip
MAY = {
    (
        "servers/registry.py",
        "importlib.import_module",
    ): "a plug-in that the user chose",
    ("harness/cli/main.py", "import_module"): "our own commands, from a table",
}


def files() -> list[Path]:
    return sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


def found_in(source: str) -> Iterator[tuple[str, int]]:
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


def test_no_input_becomes_code() -> None:
    found = [
        f"{name}, line {line}: {what}"
        for path in files()
        for name in [path.relative_to(ROOT).as_posix()]
        for what, line in found_in(path.read_text())
        if (name, what) not in MAY
    ]
    assert not found


@pytest.mark.parametrize(
    "source",
    ["import pickle", "from pickle import loads", "eval(x)", "subprocess.run(x, shell=True)",
     "yaml.load(x)", "np.load(x, allow_pickle=True)", "os.system(x)"],
)  # fmt: skip
def test_what_looks_for_it_finds_it(source: str) -> None:
    assert list(found_in(source))


def test_templates_say_where_text_is_markup() -> None:
    """`safe` only for our own styles and scripts."""
    for path in (ROOT / "reports" / "templates").glob("*.j2"):
        for line in path.read_text().splitlines():
            if "safe" in line.replace("unsafe-inline", ""):
                assert "asset(" in line or "css | safe" in line, f"{path.name}: {line.strip()}"
