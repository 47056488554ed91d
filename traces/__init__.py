"""Agent traces: files of many formats, or a recipe, in; a list of programs out."""

from traces.program import Fork, Program, Provenance, SharedPrefix, Turn

__all__ = ["Fork", "Program", "Provenance", "SharedPrefix", "Turn"]
