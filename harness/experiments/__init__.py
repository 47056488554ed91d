"""The experiments of the sources. In: a name. Out: sweeps to run, and the claims to check on them.

`files/NAME.toml` describes each one.
"""
