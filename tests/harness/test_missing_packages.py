"""Commands that need an optional package name it, and how to get it, in one line."""

from __future__ import annotations

import sys

import pytest

from tests.harness.in_process import bench

SILICON = "needs aiconfigurator-core; pip install 'turnstile-bench[silicon]'"


@pytest.mark.usefixtures("run")
@pytest.mark.parametrize(
    ("package", "command", "message"),
    [
        (
            "pyarrow",
            "export run --format parquet",
            "--format parquet: needs pyarrow; pip install pyarrow, or use --format csv",
        ),
        (
            "aiconfigurator_core",
            "profile --from aiconfigurator --hardware h100 --model llama-3.1-8b",
            f"--from: {SILICON}",
        ),
        (
            "aisimulate_core",
            "profile --from aisimulate --hardware h100 --model llama-3.1-8b",
            "--from: needs aisimulate; pip install 'aisimulate>=0.13,<0.14'",
        ),
        (
            "ray",
            "sweep --once --programs 2 --cluster ray",
            "--cluster: needs Ray; pip install 'turnstile-bench[ray]'",
        ),
        (
            "tokenizers",
            "traces inspect swe-bench --tokenizer t.json",
            "--tokenizer t.json: needs tokenizers; pip install 'turnstile-bench[tokenizers]'",
        ),
    ],
)
def test_without_the_package_one_line_says_what_to_install(
    package: str, command: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = [name for name in sys.modules if name.partition(".")[0] == package]
    for name in (package, *loaded):
        monkeypatch.setitem(sys.modules, name, None)  # an import then raises ModuleNotFoundError
    assert bench(*command.split()) == (2, "", f"bench: {message}\n")
