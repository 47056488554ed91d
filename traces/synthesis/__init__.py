"""Synthesised workloads. In: a recipe and a random generator. Out: programs."""
