"""The published experiments. In: a name. Out: sweeps to run, and claims to check on them.

Each experiment is defined by `files/NAME.toml`.
"""
