"""Program-level FCFS: programs in order of their first arrival, no retention (v3, §6.4, Fig. 16).

Preempted turns come first, as in the original engine (v3, §4.3). Everything else is as in `fcfs`.
No departure from the source is known.
"""

from __future__ import annotations

from servers.basics.compiled_core import mypyc_attr
from servers.policies.base import Policy, Rank, Request
from servers.policies.program_order import first_programs_first


@mypyc_attr(allow_interpreted_subclasses=True)
class ProgramFcfs(Policy):
    """Programs in order of their first arrival; no KV is kept."""

    name = "program-fcfs"
    source = "Continuum v3, §6.4"

    def rank(self, request: Request, now_s: float) -> Rank:
        return first_programs_first(request)
