"""Compares virtual time with end-to-end measurements of GPUs.

In: the measurements in the package `aiconfigurator-core`. Out: tables, and the errors by GPU and
model that `servers.profiles.end_to_end` reads.
"""
