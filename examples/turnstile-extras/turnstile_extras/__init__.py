"""A policy and a trace format for Turnstile. `pyproject.toml` registers both as entry points."""
