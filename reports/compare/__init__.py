"""Compares runs over time. In: two runs or a history. Out: a verdict, and a page of the trend."""
