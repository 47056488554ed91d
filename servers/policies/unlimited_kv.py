"""A reference: stock vLLM on a machine whose KV memory has no limit.

No KV is evicted, no turn is preempted and none waits for memory. Computing and the limits of a
batch remain. What it sustains beyond `fcfs` is what KV memory costs. It is not an upper bound: in
another order turns may wait less.

The policy decides as `fcfs`. The engine `sim` gives it `KV_BLOCKS` blocks, on a machine that is
otherwise the same.
"""

from __future__ import annotations

from typing import ClassVar

from servers.basics.compiled_core import mypyc_attr
from servers.policies.base import UNLIMITED_KV, Need
from servers.policies.fcfs import Fcfs

KV_BLOCKS = 10**11
"""More than any cell computes."""


@mypyc_attr(allow_interpreted_subclasses=True)
class UnlimitedKv(Fcfs):
    """A reference: stock vLLM (fcfs) on the same machine with unlimited KV memory."""

    name = "unlimited-kv"
    source = "a reference of ours"
    needs: ClassVar[tuple[Need, ...]] = (UNLIMITED_KV,)
    checked: ClassVar[str] = "a reference: there is no such machine"
