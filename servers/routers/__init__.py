"""Routers, one per file: which of several replicas serves a turn, or whether the turn waits."""
