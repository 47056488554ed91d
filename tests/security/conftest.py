"""The sandbox fixtures of tests/agents."""

from tests.agents.sandbox.conftest import boxed, ordinary, own, shared

__all__ = ["boxed", "ordinary", "own", "shared"]
