"""Agent traces: files of many formats, or a recipe, in; a list of programs out."""

from traces.lenient import TraceError
from traces.program import Fork, Message, Program, Provenance, SharedPrefix, Turn
from traces.read import Loaded, Note, packs, read_traces
from traces.synthesis.recipes import RECIPES
from traces.synthesis.synthesize import synthesize

__all__ = [
    "RECIPES",
    "Fork",
    "Loaded",
    "Message",
    "Note",
    "Program",
    "Provenance",
    "SharedPrefix",
    "TraceError",
    "Turn",
    "packs",
    "read_traces",
    "synthesize",
]
