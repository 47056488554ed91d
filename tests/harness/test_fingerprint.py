"""The hash of a cell changes if code that decides it changes, and not with texts or other code.

Changes are made to a copy of the sources.
"""

from __future__ import annotations

import re
import shutil
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import CodeType

import pytest
from small import small_plan

from harness.engines.base import ENGINES
from harness.installation import PACKAGES
from harness.load.arrivals import parse_arrivals
from harness.sweep import fingerprint
from harness.sweep.cell import Work, run_cell
from harness.sweep.definitions import ON_IMPORT, Use, read_source
from harness.sweep.fingerprint import (
    NUMBERS,
    cell_code,
    class_code,
    class_sha256,
    code_sha256,
)
from harness.sweep.plan import SweepPlan
from servers.routing import ROUTERS
from servers.variants import POLICIES

SOURCES = Path(__file__).parents[2]


@pytest.fixture
def copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a copy of the sources, of which the hashes are computed."""
    unchanged()  # before ROOT is replaced
    for package in PACKAGES:
        shutil.copytree(
            SOURCES / package,
            tmp_path / package,
            ignore=lambda _, names: [n for n in names if "." in n and not n.endswith(".py")],
        )
    monkeypatch.setattr(fingerprint, "ROOT", tmp_path)
    return tmp_path


def change(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text, old
    file.write_text(text.replace(old, new, 1))


def of_sim() -> str:
    plan = small_plan()
    fingerprint.own_code.cache_clear()
    return code_sha256(plan.engine, plan.workload, plan.arrivals)


def of_engine(name: str) -> str:
    """Return the hash of cells of an engine that is not started."""
    module = ENGINES.built_in[name].partition(":")[0]
    fingerprint.own_code.cache_clear()
    return code_sha256(type("Engine", (), {"__module__": module})(), small_plan().workload)


@cache
def unchanged() -> tuple[str, str, dict[str, str]]:
    """Return the hashes of the sources as they are; a copy has the same."""
    return of_sim(), of_engine("vllm"), of_policies()


def of_policies() -> dict[str, str]:
    return {name: class_sha256(POLICIES.load(name)) for name in POLICIES.built_in}


def changed_policies(before: dict[str, str]) -> set[str]:
    return {name for name, digest in of_policies().items() if digest != before[name]}


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("servers/sim/scheduler.py", '"""', '"""Another first line.\n'),
        ("servers/sim/scheduler.py", "\nclass Scheduler", "\n# A comment.\n\n\nclass Scheduler"),
        ("servers/basics/errors.py", '"""', '"""Another first line.\n'),
        ("traces/exports/otel.py", "json", "yaml"),
        ("traces/formats/mooncake.py", "requests of a service", "requests to a service"),
        ("harness/cli/main.py", "Exit codes", "Codes"),
        ("harness/load/settings.py", "Run folder. Default", "The run folder. Default"),
        ("reports/answer/report.py", "report.html", "page.html"),
        ("harness/sweep/cell.py", "jobs would be in the system", "jobs would be there"),
        ("harness/load/arrivals.py", "no programs to run:", "nothing to run:"),
        ("servers/records/turns.py", "from __future__", "from  __future__"),
        ("servers/policies/fcfs.py", "@mypyc", "UNUSED = 1\n\n\n@mypyc"),
        ("harness/gateway/proxy.py", "import", "import math\nimport"),
    ],
)
def test_texts_and_other_code_decide_no_cell(copy: Path, file: str, old: str, new: str) -> None:
    change(copy / file, old, new)
    assert (of_sim(), of_engine("vllm"), of_policies()) == unchanged()


def test_all_docstrings_and_comments_can_change(copy: Path) -> None:
    before = of_sim(), of_engine("vllm"), of_engine("sglang"), of_policies()
    for file in copy.rglob("*.py"):
        text = re.sub(r'^( *)"""(?=[A-Z])', r'\1"""Note. ', file.read_text(), flags=re.MULTILINE)
        file.write_text("# A comment\n" + text)
    assert (of_sim(), of_engine("vllm"), of_engine("sglang"), of_policies()) == before


@pytest.mark.parametrize(
    ("file", "old", "new", "of_others"),
    [
        ("servers/sim/scheduler.py", " > ", " >= ", False),
        ("servers/sim/kv.py", " + 1", " + 2", False),
        ("servers/policies/runner.py", " is not None", " is None", True),
        ("harness/sweep/cell.py", "IDLE_JOBS = 200", "IDLE_JOBS = 201", True),
        ("traces/formats/mooncake.py", " < ", " <= ", True),
        ("harness/replay/live.py", " is None", " is not None", None),
        ("servers/vllm/plugin/scheduler.py", " is None", " is not None", None),
    ],
)
def test_a_changed_decision_decides_the_cells_of_all_engines_that_make_it(
    copy: Path, file: str, old: str, new: str, of_others: bool | None
) -> None:
    sim, vllm, policies = unchanged()
    change(copy / file, old, new)
    assert (of_sim() != sim) is (of_others is not None)
    if of_others is not False:
        assert of_engine("vllm") != vllm
    assert of_policies() == policies


@pytest.mark.parametrize(("format", "counts"), [("bfcl", True), ("weka", False)])
def test_a_changed_format_of_a_package_decides_the_cells_whose_traces_it_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: str, counts: bool
) -> None:
    plan = small_plan()
    workload = replace(plan.workload, formats=(format,))
    source = SOURCES / "plugins/turnstile-formats/turnstile_formats"
    shutil.copytree(source, tmp_path / "turnstile_formats")
    monkeypatch.setattr(fingerprint, "_folders", lambda _: [tmp_path])
    before = code_sha256(plan.engine, workload)
    change(tmp_path / "turnstile_formats/bfcl.py", "FIELDS = {", 'FIELDS = {"x", ')
    assert (code_sha256(plan.engine, workload) != before) is counts


@pytest.mark.parametrize("name", ["continuum", "infercept", "las"])
def test_a_changed_policy_decides_only_the_cells_of_that_policy(copy: Path, name: str) -> None:
    code, _, before = unchanged()
    module, _, _ = POLICIES.built_in[name].partition(":")
    change(copy / f"{module.replace('.', '/')}.py", "    name = ", "    k = 1\n    name = ")
    assert name in changed_policies(before)
    assert changed_policies(before) <= {name, "continuum-v1", "continuum-preview", "agentix"}
    assert of_sim() == code


def test_what_all_policies_derive_from_decides_the_cells_of_all(copy: Path) -> None:
    _, _, before = unchanged()
    change(copy / "servers/policies/base.py", "class Policy", "class Policy: ...\n\n\nclass Policy")
    assert changed_policies(before) == set(POLICIES.built_in)


def test_a_changed_router_decides_only_the_cells_behind_it(copy: Path) -> None:
    before = {name: class_sha256(ROUTERS.load(name)) for name in ROUTERS.built_in}
    change(copy / "servers/routers/power_of_two.py", "    name = ", "    k = 1\n    name = ")
    after = {name: class_sha256(ROUTERS.load(name)) for name in ROUTERS.built_in}
    assert [name for name in before if before[name] != after[name]] == ["power-of-two"]


NAMES_OF_CELLS = {"Cell", "SweepPlan", "cell_name", "ladder_of", "slug"}
"""What runs only to name the folder of a cell, which does not decide its result."""


def definition_of(code: CodeType) -> tuple[str, str] | None:
    """Return the module and name of the definition of ours that contains some code."""
    file, name = Path(code.co_filename), code.co_qualname.partition(".")[0]
    if not file.is_relative_to(SOURCES) or name.startswith("<"):
        return None
    parts = file.relative_to(SOURCES).with_suffix("").parts
    return (".".join(parts), name) if parts[0] in PACKAGES else None


@pytest.mark.parametrize(
    ("policies", "arrivals", "steady"),
    [
        ("continuum,turnstile+,clairvoyant", "poisson", False),
        ("fcfs", "poisson", True),
        ("fcfs", "agents:1", True),
    ],
)
def test_all_code_that_a_cell_runs_decides_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policies: str, arrivals: str, steady: bool
) -> None:
    plan = replace(
        small_plan(policies, (2.0 if arrivals.startswith("agents") else 0.1,)),
        steady=steady,
        arrivals=parse_arrivals(arrivals),
        arrivals_text=arrivals,
    )
    code = set(cell_code(plan.engine, plan.workload, plan.arrivals))
    code.update(*(class_code(variant.policy) for variant in plan.variants))
    records = {cell.name: plan.cell_record(cell) for cell in plan.cells()}
    monkeypatch.setattr(SweepPlan, "cell_record", lambda _, cell: records[cell.name])
    ran: set[CodeType] = set()
    sys.setprofile(lambda frame, *_: ran.add(frame.f_code))
    try:
        for cell in plan.cells():
            run_cell(Work(plan, tmp_path), cell, lambda *_: None)
    finally:
        sys.setprofile(None)
    every = {found for each in ran if (found := definition_of(each))}
    ours = {found for found in every if not found[0].startswith(NUMBERS)}
    assert len(ours) > 90
    assert len(every) > len(ours)
    assert {name for _, name in ours - code} <= NAMES_OF_CELLS


CODE = """
from logging import getLogger
from servers.basics.errors import InvalidInput
LOGGER = getLogger(__name__)
@cache
def f(x):
    if x == "a b":
        raise InvalidInput(f"{x} is not valid", "code")
    LOGGER.info("got %s", x)
    return g(x, key="a b")
"""


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        ("x is not valid", "x is invalid", True),
        ("{x} is not valid", "{x!r} of {g(x)} is not valid", True),
        ('f"{x} is not valid"', '"it is not valid"', True),
        ('"code"', '"other"', False),
        ('"got %s"', '"got now %s"', True),
        ('x == "a b"', 'x == "a c"', False),
        ('key="a b"', 'key="a c"', False),
        ("x == ", "x != ", False),
        ("    return g", "    # note\n\n    return   g", True),
        ("def f(x):", 'def f(x: int) -> "str":\n    """Return it."""', True),
        ("def f(x):", "def f(y):", False),
        ("@cache", "@lru_cache", False),
        ("InvalidInput(", "ValueError(", False),
    ],
)
def test_a_definition_counts_without_comments_annotations_and_messages(
    old: str, new: str, same: bool
) -> None:
    def definition(text: str) -> str:
        return read_source("m", False, text.encode()).definitions["f"].sha256

    assert (definition(CODE) == definition(CODE.replace(old, new))) is same


def test_types_of_fields_count_where_they_are_checked() -> None:
    def names(text: str) -> str:
        return read_source("m", False, text.encode()).definitions["A"].sha256

    assert names("class A(Struct):\n    x: int = 1") != names("class A(Struct):\n    x: str = 1")
    help_text = "class A(Struct):\n    x: Annotated[int, Option('{}')] = 1"
    assert names(help_text.format("One help.")) == names(help_text.format("Another help."))
    dataclass = "@dataclass\nclass A:\n    x: {} = 1"
    assert names(dataclass.format("int")) == names(dataclass.format("str"))


def test_imports_lead_to_what_they_name() -> None:
    text = """
import a.b
import c.d as e
from .f import g as h
from typing import T
if TYPE_CHECKING:
    from i import J
def k(x: T) -> J:
    from l import m
    return a.b.n(e.o, h, "servers.p.q:R", "x")
def unused(): ...
TABLE = Registry(built_in={"s": "servers.t:U"})
"""
    found = read_source("servers.m", False, text.encode())
    assert found.definitions["k"].uses == {
        Use("a", ("b", "n")),
        Use("c.d", ("o",)),
        Use("servers.f", ("g",)),
        Use("l", ("m",)),
        Use("servers", ("p", "q", "R")),
    }
    assert Use("servers", ("t", "U")) not in found.definitions["TABLE"].uses
    assert set(found.definitions) == {ON_IMPORT, "k", "unused", "TABLE"}
