"""Stock vLLM: first come, first served (Continuum v3, §6.1; execution note §10.2).

Preempted turns first, then by arrival of the turn; the turn admitted last is preempted; KV is
freed at the end of a turn and may still be hit through prefix caching.

Preempted turns resume by arrival. vLLM resumes the latest preempted first, which is the same order,
because the victim is always the turn that was admitted last.
"""

from __future__ import annotations

from typing import ClassVar

from servers.basics.compiled_core import mypyc_attr
from servers.policies.base import Policy


@mypyc_attr(allow_interpreted_subclasses=True)
class Fcfs(Policy):
    """Stock vLLM: turns first come, first served; KV is freed at the end of a turn."""

    name = "fcfs"
    source = "Continuum v3, §6.1"
    checked: ClassVar[str] = "yes: each step against vLLM's scheduler, on 10,000 random workloads"
