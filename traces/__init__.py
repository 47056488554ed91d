"""Agent traces: files of many formats, or a recipe, in; a list of programs out."""

from servers.errors import InvalidTrace
from traces.program import Fork, Message, Program, Provenance, SharedPrefix, Turn
from traces.read import Loaded, Note, packs, read_traces
from traces.synthesis.recipes import RECIPES
from traces.synthesis.synthesize import synthesize

__all__ = [
    "RECIPES",
    "Fork",
    "InvalidTrace",
    "Loaded",
    "Message",
    "Note",
    "Program",
    "Provenance",
    "SharedPrefix",
    "Turn",
    "packs",
    "read_traces",
    "synthesize",
]
