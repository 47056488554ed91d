"""The answer of a run in words and tables. In: points. Out: a headline, findings and caveats."""
