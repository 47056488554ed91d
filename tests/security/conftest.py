"""The sandboxes that tests/agents has."""

from tests.agents.sandbox.conftest import boxed, ordinary, own, shared

__all__ = ["boxed", "ordinary", "own", "shared"]
