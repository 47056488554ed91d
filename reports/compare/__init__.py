"""Compares two runs, or runs of several machines.

In: two runs. Out: a verdict, and a page. In: runs of several machines. Out: their capacities per
GPU and per dollar.
"""
