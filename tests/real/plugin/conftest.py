"""These run under vLLM's interpreter: tests/real/test_plugin.py sees to it."""

from __future__ import annotations

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("vllm") else ["test_*.py"]
