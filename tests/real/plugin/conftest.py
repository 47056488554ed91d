"""tests/real/test_plugin.py runs these tests under vLLM's interpreter."""

from __future__ import annotations

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("vllm") else ["test_*.py"]
