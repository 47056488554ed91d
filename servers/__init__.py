"""Engines: scheduling policies, profiles, the virtual-time engine, and vLLM with its plug-in.

In: turns of programs, a policy, and a machine's profile or a vLLM server. Out: scheduled and
finished turns, and engine events.
"""

from servers.basics.compiled_core import use_offered_core

use_offered_core()
