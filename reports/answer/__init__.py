"""The answer of a run as sentences and tables.

In: points. Out: a headline, findings, caveats, and the provenance of the numbers.
"""
