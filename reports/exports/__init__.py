"""Cells of a run folder in; files for other tools out (docs/howto/exports.md)."""
