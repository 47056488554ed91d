"""Synthesised workloads with published statistics.

In: the name of a recipe, the number of programs and a random generator. Out: programs.
"""
