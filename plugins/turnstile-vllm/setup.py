"""Builds the package from `servers`: the modules that the plug-in imports, under its own name.

In a checkout, the sources are in `servers`. A source distribution has the package itself, so
that it can be built anywhere.
"""

from __future__ import annotations

import ast
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

HERE = Path(__file__).resolve().parent
CHECKOUT = HERE.parents[1]
ROOT, PACKAGE = "servers", "turnstile_vllm"
FIRST = HERE / PACKAGE / "__init__.py"
PATH = re.compile(rf"({ROOT}(?:\.\w+)+)(?::\w+)?")
"""Texts with the path of a module or class, which registries load by name."""
RENAMED = re.compile(rf"(?<![\w.]){ROOT}(?=\.\w| import )")
"""The name of the package in imports and paths."""


def collect(checkout: Path = CHECKOUT) -> dict[Path, str]:
    """Return the text of each module of the package, by its path in it. Empty where there is no
    checkout."""
    found: dict[str, Path] = {}
    modules = list(_imports(FIRST)) if (checkout / ROOT).is_dir() else []
    while modules:
        name = modules.pop()
        file = _file(name, checkout)
        if name in found or file is None:
            continue
        found[name] = file
        modules += [name.rpartition(".")[0], *_imports(file)]
    found.pop(ROOT, None)
    texts = {file.relative_to(checkout / ROOT): file.read_text() for file in found.values()}
    if texts:
        texts[Path("__init__.py")] = FIRST.read_text()
    return {path: RENAMED.sub(PACKAGE, text) for path, text in texts.items()}


def _imports(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{each.name}" for each in node.names)]
        elif isinstance(node, ast.Import):
            names = [each.name for each in node.names]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names = [path[1]] if (path := PATH.fullmatch(node.value)) else []
        else:
            continue
        yield from (name for name in names if name.partition(".")[0] == ROOT)


def _file(module: str, checkout: Path) -> Path | None:
    path = checkout / module.replace(".", "/")
    files = path.with_suffix(".py"), path / "__init__.py"
    return next(filter(Path.is_file, files), None)


def write(folder: Path) -> None:
    for path, text in collect().items():
        file = folder / PACKAGE / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.unlink(missing_ok=True)  # may be a hard link to a file of the checkout
        file.write_text(text)


class BuildPackage(build_py):
    def run(self) -> None:
        shutil.rmtree(Path(self.build_lib) / PACKAGE, ignore_errors=True)
        super().run()
        write(Path(self.build_lib))


class BuildSources(sdist):
    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        super().make_release_tree(base_dir, files)
        write(Path(base_dir))


if __name__ == "__main__":
    setup(cmdclass={"build_py": BuildPackage, "sdist": BuildSources})
