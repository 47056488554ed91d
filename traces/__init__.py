"""Agent traces: programs with their turns, tool gaps and shared prefixes.

In: trace files in any format of `traces.formats`, or the name of a recipe in `traces.synthesis`.
Out: valid programs, and notes on repairs and rejected files.
"""

from servers.basics.errors import InvalidTrace
from traces.files import packs
from traces.program import Fork, Message, Program, Provenance, SharedPrefix, Turn
from traces.read import Note, TraceSet, read_traces
from traces.synthesis.known import RECIPES
from traces.synthesis.synthesize import synthesize

__all__ = [
    "RECIPES",
    "Fork",
    "InvalidTrace",
    "Message",
    "Note",
    "Program",
    "Provenance",
    "SharedPrefix",
    "TraceSet",
    "Turn",
    "packs",
    "read_traces",
    "synthesize",
]
