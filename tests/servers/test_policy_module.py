"""A policy of an installed package in vLLM's environment."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from servers.basics.errors import InvalidInput
from servers.variants import variant
from servers.vllm.launch.policy_module import check_loads, link_modules, module_root

POLICY = """
from servers.policies.base import Policy

class Mine(Policy):
    name = "mine-outside"
"""


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, package: str, text: str) -> str:
    """Write a package that only this process can import; return its policy's dotted path."""
    (folder / package).mkdir(parents=True)
    (folder / package / "__init__.py").touch()
    (folder / package / "policies.py").write_text(text)
    monkeypatch.syspath_prepend(str(folder))
    return f"{package}.policies:Mine"


def test_only_the_policys_package_is_linked_for_vllm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = install(tmp_path / "site", monkeypatch, "outside_linked", POLICY)
    (tmp_path / "site/another.py").touch()
    links = link_modules(tmp_path / "links", module_root(policy))
    assert sorted(path.name for path in links.iterdir()) == ["outside_linked", "servers"]
    assert (links / "outside_linked/policies.py").is_file()
    check_loads(policy, sys.executable)


def test_a_built_in_policy_needs_no_link(tmp_path: Path) -> None:
    links = link_modules(tmp_path / "links", module_root("continuum(k=50)"))
    assert [path.name for path in links.iterdir()] == ["servers"]


def test_a_policy_that_vllms_environment_cannot_load_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site/only_here.py").touch()
    text = "import only_here\n" + POLICY
    policy = install(tmp_path / "site", monkeypatch, "outside_dependent", text)
    assert variant(policy).name == "mine-outside"
    with pytest.raises(InvalidInput) as raised:
        check_loads(policy, sys.executable)
    line = str(raised.value)
    assert "\n" not in line
    assert f"--policy {policy}: vLLM's Python ({sys.executable}) cannot load it: " in line
    assert "No module named 'only_here'" in line


def test_arguments_reach_the_policy_in_another_process() -> None:
    spec = variant("continuum(reclaim_when=pressure, k=7)+").policy_spec
    program = (
        "import sys; from servers.policies.base import Costs\n"
        "from servers.variants import make_policy, variant\n"
        "made = make_policy(variant(sys.argv[1]), Costs(prefill_s=float))\n"
        "print(made.model.k, made.reclaim_when)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, spec], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["7", "pressure"]
