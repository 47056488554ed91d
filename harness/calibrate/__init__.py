"""Measures a live engine. In: a server. Out: step times, reload times, pins, fidelity runs."""
