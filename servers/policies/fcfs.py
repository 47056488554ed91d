"""Stock vLLM: first come, first served (Continuum v3, §6.1; execution note §10.2).

Preempted turns first, then by arrival of the turn; the turn admitted last is preempted; KV is
freed at the end of a turn and may still be hit through prefix caching.

Departs from vLLM 0.10: preempted turns resume by arrival, where vLLM puts the latest preempted
first.
"""

from __future__ import annotations

from servers.policies.base import Policy


class Fcfs(Policy):
    name = "fcfs"
    source = "Continuum v3, §6.1"
