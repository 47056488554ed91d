"""Trace formats that `bench traces convert --to` writes, for other tools.

In: programs. Out: lines or documents with lengths, times, names of tools and ids of blocks of equal
tokens; never texts or commands of a recording. Each format reports what it cannot express.
"""
