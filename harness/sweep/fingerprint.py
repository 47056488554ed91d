"""Identify cells with equal results by their settings and hashes of the code that decides them.

The code is found from the modules that a cell runs: the definitions that these use, the definitions
that those use, and so on (`harness.sweep.definitions`). A sweep resumes, and its finished cells are
reused, after a change of anything else.
"""

from __future__ import annotations

import gc
import hashlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import orjson
from msgspec.structs import replace

from harness.installation import PACKAGES
from harness.load.workload import Workload
from harness.sweep.definitions import ON_IMPORT, Source, Use, read_source
from servers.records.cell import CellRecord
from traces.formats.registry import known_formats

if TYPE_CHECKING:
    from harness.load.agent_plan import AgentPlan

ROOT = Path(__file__).parents[2]
CELL = "harness.sweep.cell"
"""The module that runs a cell."""
SETTINGS = "harness.load.settings"
"""Not followed, since `cell.json` has the values that were chosen."""
NUMBERS = "reports.metrics", "reports.run_folder"
"""Not followed, since reports compute numbers again that other code computed."""
AGENTS = "harness.live_agents"
"""Not followed for programs that are replayed."""
INSTALLED = ("site-packages", "dist-packages")


Code = Mapping[tuple[str, str], str]
"""Hashes of definitions, by module and name."""


def code_sha256(*parts: object, agents: AgentPlan | None = None) -> str:
    return _sha256(cell_code(*parts, agents=agents))


def class_sha256(cls: type) -> str:
    return _sha256(class_code(cls))


def _sha256(code: Code) -> str:
    return hashlib.sha256(orjson.dumps(sorted(code.items()))).hexdigest()[:12]


def cell_code(*parts: object, agents: AgentPlan | None = None) -> Code:
    """Return the code that decides a cell, apart from its policy and its router: the code of
    `parts`, such as its engine and workload, and of the agents that it runs, if any."""
    if agents is not None:
        parts = (*parts, agents, agents.agent)
    modules = [CELL, *(type(part).__module__ for part in parts if part is not None)]
    modules += _format_modules(parts)
    skipped = (SETTINGS, *NUMBERS) if agents is not None else (SETTINGS, *NUMBERS, AGENTS)
    found = own_code if all(_top(module) in PACKAGES for module in modules) else _code
    return found(skipped, tuple(modules))


def _code(skipped: tuple[str, ...], modules: tuple[str, ...]) -> Code:
    return _Closure(skipped).code([Use(module) for module in modules])


own_code = cache(_code)
"""Our own code stays as this process has imported it, so the plans of an experiment share it."""


def _format_modules(parts: Sequence[object]) -> Iterator[str]:
    """Yield the modules of our trace formats, which are tried one after another, and the modules of
    installed formats that read the workload."""
    known = known_formats()
    yield from known.built_in.values()
    used = {name for part in parts if isinstance(part, Workload) for name in part.formats}
    yield from (entry.module for name, entry in known.installed().items() if name in used)


def class_code(cls: type) -> Code:
    """Return the code of a policy or router, of its base classes, and all that they use.

    Of a class of a third party, this is the package or module that defines it, and everything that
    it imports and that is not installed in `site-packages`."""
    bases = [Use(base.__module__, (base.__qualname__,)) for base in cls.__mro__]
    return _Closure().code(bases)


class _Closure:
    """The definitions that code uses, in any number of steps."""

    def __init__(self, skipped: tuple[str, ...] = ()) -> None:
        self._skipped = skipped
        self._folders: dict[str, list[Path]] = {package: [ROOT] for package in PACKAGES}
        """Folders of a top-level module; none if its code does not count."""
        self._sources: dict[str, Source | None] = {}
        self._added: set[str] = set()
        """Packages of third parties, which are added as a whole."""

    def code(self, roots: Sequence[Use]) -> Code:
        for use in roots:
            self._find(_top(use.module), counts_installed=True)
        found: dict[tuple[str, str], str] = {}
        uses, seen = [*roots], {*roots}
        with _no_collections():
            while uses:
                for use in self._follow(uses.pop(), found):
                    if use not in seen:
                        seen.add(use)
                        uses.append(use)
        return found

    def _follow(self, use: Use, found: dict[tuple[str, str], str]) -> Iterator[Use]:
        """Add the definitions that are used to `found`, and yield what they use."""
        module, names = use
        if module.startswith(self._skipped):
            return
        if (top := _top(module)) not in PACKAGES:
            if top not in self._added:
                self._added.add(top)
                for inner in self._modules_of(top):
                    yield from self._add(inner, found)
        elif (source := self._source(module)) is None:
            return
        elif not names:
            yield from self._add(module, found)
        elif names[0] in source.definitions:
            yield from self._add(module, found, (names[0], ON_IMPORT))
        elif names[0] in source.imports:
            imported = source.imports[names[0]]
            yield Use(imported.module, (*imported.names, *names[1:]))
        elif self._source(inner := f"{module}.{names[0]}"):
            yield Use(inner, names[1:])
        elif names[0].startswith("__"):  # such as the path of a module that another process runs
            yield Use(module)

    def _add(
        self, module: str, found: dict[tuple[str, str], str], names: Sequence[str] = ()
    ) -> Iterator[Use]:
        if (source := self._source(module)) is None:
            return
        for name in names or source.definitions:
            found[module, name] = source.definitions[name].sha256
            yield from source.definitions[name].uses
        if _top(module) not in PACKAGES:
            yield from source.imports.values()

    def _source(self, module: str) -> Source | None:
        if module not in self._sources:
            paths = [folder / module.replace(".", "/") for folder in self._find(_top(module))]
            files = [f for path in paths for f in (path / "__init__.py", Path(f"{path}.py"))]
            file = next((file for file in files if file.is_file()), None)
            self._sources[module] = (
                None
                if file is None
                else read_source(module, file.name == "__init__.py", file.read_bytes())
            )
        return self._sources[module]

    def _modules_of(self, top: str) -> Iterator[str]:
        """Yield all modules in the package of a third party, which may import them by any means."""
        yield top
        for folder in self._find(top):
            for file in (folder / top).rglob("*.py"):
                yield ".".join(file.relative_to(folder).with_suffix("").parts)

    def _find(self, top: str, *, counts_installed: bool = False) -> list[Path]:
        if top not in self._folders:
            self._folders[top] = [
                folder
                for folder in ([] if top in sys.stdlib_module_names else _folders(top))
                if counts_installed or not set(INSTALLED).intersection(folder.parts)
            ]
        return self._folders[top]


def _top(module: str) -> str:
    return module.partition(".")[0]


def _folders(top: str) -> list[Path]:
    try:
        spec = find_spec(top)
    except (ImportError, ValueError):  # a module without a specification, such as `__main__`
        return []
    if spec is None:
        return []
    found = spec.submodule_search_locations
    places = found if found is not None else [spec.origin] if spec.has_location else []
    return [Path(str(place)).absolute().parent for place in places]


@contextmanager
def _no_collections() -> Iterator[None]:
    """Collections of garbage take half the time of parsing, since they visit all trees."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def same_cell(a: CellRecord, b: CellRecord) -> bool:
    """Return whether two cells have the same turns: their version does not affect them."""
    return replace(a, turnstile_version=b.turnstile_version) == b
