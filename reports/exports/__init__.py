"""Cells of a run folder in; files for other tools out (docs/exports.md)."""
