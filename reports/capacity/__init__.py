"""Finds the highest rate of jobs that a scheduler sustains (docs/design/statistics.md, "Capacity").

In: an SLO, and the outcomes of cells in steady state at some rates. Out: the capacity, or the rates
to run next. Everything here is a pure function of finished cells, so the search of a sweep and the
report of its run folder agree, and an interrupted search resumes where it stopped.
"""
