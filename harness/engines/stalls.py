"""Records stalls of the client machine, in which this process did not run.

In: the running event loop, which a heartbeat observes. Out: the times of stalls on the clock of the
loop. A client that is too slow is no stall, since it uses its CPU then.
"""

from __future__ import annotations

import asyncio
import time

BEAT_S = 0.05
STALL_S = 0.2
"""The least time without CPU that counts as a stall. Shorter ones are ordinary client lateness."""


async def record_stalls(stalls: list[tuple[float, float]]) -> None:
    """Append the beginning and the end of each stall until this is cancelled. The beginning is at
    most `BEAT_S` early."""
    now_s = asyncio.get_running_loop().time
    while True:
        began_s, used_s = now_s(), time.thread_time()
        await asyncio.sleep(BEAT_S)
        ended_s = now_s()
        if ended_s - began_s - BEAT_S - (time.thread_time() - used_s) >= STALL_S:
            stalls.append((began_s, ended_s))
