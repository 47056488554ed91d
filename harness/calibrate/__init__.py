"""Measures live engines.

In: a server. Out: its step times and reload times (`bench profile`), whether it holds pins (`bench
doctor --pins`), and the sweeps that compare it with virtual time (`bench fidelity`).
"""
