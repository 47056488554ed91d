"""Trace formats of single projects and data sets, one module each."""
