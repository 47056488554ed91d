"""`turnstile-vllm`, the plug-in as a package for any vLLM: what it contains, and how it is built.

tests/real/test_vllm_package.py runs it inside vLLM.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]
PLUGIN = ROOT / "plugins/turnstile-vllm"
BROUGHT_BY_VLLM = {"fastapi", "msgspec", "prometheus_client", "pydantic", "pydantic_core", "vllm"}


def build_script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("turnstile_vllm_build", PLUGIN / "setup.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def modules() -> dict[Path, str]:
    return dict(build_script().collect())


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the package."""
    folder = tmp_path_factory.mktemp("package")
    build_script().write(folder)
    return folder


def run(package: Path, cwd: Path, code: str, *options: str) -> str:
    env = {**os.environ, "PYTHONPATH": str(package)}
    return subprocess.run(
        [sys.executable, *options, "-c", code],
        cwd=cwd, env=env, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip


def test_it_imports_only_itself_the_standard_library_and_what_vllm_brings(
    modules: dict[Path, str],
) -> None:
    imported = set()
    for text in modules.values():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom) and not node.level:
                imported.add(str(node.module).partition(".")[0])
            elif isinstance(node, ast.Import):
                imported |= {name.name.partition(".")[0] for name in node.names}
    # compiled_core imports mypy_extensions for type checkers only.
    imported -= {*sys.stdlib_module_names, "mypy_extensions"}
    assert imported == {"turnstile_vllm", *BROUGHT_BY_VLLM}


def test_it_has_less_than_a_megabyte_and_nothing_of_virtual_time(modules: dict[Path, str]) -> None:
    assert sum(len(text.encode()) for text in modules.values()) < 1_000_000
    names = {path.as_posix() for path in modules}
    assert {"vllm/plugin/scheduler.py", "vllm/plugin/api_server.py"} <= names
    assert not {name.partition("/")[0] for name in names} & {"sim", "profiles", "processes"}
    assert not any(name.startswith("vllm/launch") for name in names)


def test_every_policy_loads_under_its_name_without_our_other_packages(
    package: Path, tmp_path: Path
) -> None:
    code = """
import sys
from turnstile_vllm.variants import ALL, variant
print(all(variant(name).policy.__module__.startswith("turnstile_vllm.") for name in ALL))
print({name.partition(".")[0] for name in sys.modules} & {"servers", "harness", "numpy", "pandas"})
"""
    assert run(package, tmp_path, code) == "True\nset()\n"


def test_vllm_loads_the_entry_point_without_the_rest(package: Path, tmp_path: Path) -> None:
    code = """
import sys
from turnstile_vllm import register
register()
print(*sorted(name for name in sys.modules if name.startswith("turnstile_vllm.")))
"""
    assert run(package, tmp_path, code).split() == [
        "turnstile_vllm.basics",
        "turnstile_vllm.basics.errors",
        "turnstile_vllm.identity",
        "turnstile_vllm.vllm",
        "turnstile_vllm.vllm.plugin",
        "turnstile_vllm.vllm.plugin.api_server",
    ]


def test_a_policy_that_was_written_for_turnstile_runs_unchanged(
    package: Path, tmp_path: Path
) -> None:
    """As in vLLM's front end, which only registers the plug-in. Our environment has `servers`, so
    the test runs without site-packages (`-S`)."""
    (tmp_path / "mine.py").write_text(
        "from servers.policies.base import Policy, pin\n\n"
        "class Mine(Policy):\n"
        "    name = 'mine'\n\n"
        "    def finished(self, request, now_s):\n"
        "        return pin(2.0)\n"
    )
    code = """
from turnstile_vllm import register
register()
from turnstile_vllm.policies.base import Policy
from turnstile_vllm.variants import variant
mine = variant("mine:Mine")
print(issubclass(mine.policy, Policy), mine.module_root.name, Policy.__module__)
import turnstile_vllm
print(turnstile_vllm.__spec__.name)
"""
    assert (
        run(package, tmp_path, code, "-S")
        == "True mine.py turnstile_vllm.policies.base\nturnstile_vllm\n"
    )


@pytest.mark.acceptance
def test_a_wheel_can_be_built_from_the_source_distribution_alone(
    modules: dict[Path, str], tmp_path: Path
) -> None:
    """The build runs on a copy, since it writes next to its sources."""
    copy = tmp_path / "plugins/turnstile-vllm"
    shutil.copytree(PLUGIN, copy, symlinks=False, ignore=shutil.ignore_patterns("*.egg-info"))
    (tmp_path / "servers").symlink_to(ROOT / "servers")
    subprocess.run(
        [sys.executable, "setup.py", "-q", "sdist", "--dist-dir", str(tmp_path)],
        cwd=copy, check=True, capture_output=True,
    )  # fmt: skip
    (archive,) = tmp_path.glob("*.tar.gz")
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation",
         "--no-index", "--no-compile", "--target", str(tmp_path / "site"), str(archive)],
        cwd=tmp_path, check=True, capture_output=True, text=True,
    )  # fmt: skip
    built = tmp_path / "site/turnstile_vllm"
    assert {path.relative_to(built) for path in built.rglob("*.py")} == set(modules)
    assert all((built / path).read_text() == text for path, text in modules.items())
    (metadata,) = (tmp_path / "site").glob("*.dist-info")
    assert "turnstile = turnstile_vllm:register" in (metadata / "entry_points.txt").read_text()
    assert sorted(each.name for each in (tmp_path / "site").iterdir()) == [
        "turnstile_vllm",
        metadata.name,
    ]
