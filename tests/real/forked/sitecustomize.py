"""Python imports this file first where it is on the path (the fixture `forked_vllm`).

In vLLM's server, the start method of processes is then fork, as it is vLLM's default where it does
not run on a CPU. Its processes sleep while they wait for each other, after a millisecond instead of
a second, since they share two cores with other tests. They look for a message every 20 ms then, as
vLLM loses the notification of some, and looks for those only every 5 s.
"""

import gc
import multiprocessing
import sys
from importlib.abc import MetaPathFinder
from importlib.util import find_spec
from multiprocessing import resource_tracker

MESSAGES = "vllm.distributed.device_communicators.shm_broadcast"
BUSY_LOOP_S = 0.001
SLEEP_MS = 20


class _SleepSooner(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != MESSAGES:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(name)
        load = spec.loader.exec_module

        def exec_module(module):
            load(module)
            condition = module.SpinCondition
            record_read, wait = condition.record_read, condition.wait

            def record_and_sleep_sooner(waiting):
                record_read(waiting)
                waiting.busy_loop_s = BUSY_LOOP_S

            def wait_briefly(waiting, timeout_ms=None):
                wait(waiting, SLEEP_MS if timeout_ms is None else min(timeout_ms, SLEEP_MS))

            condition.record_read, condition.wait = record_and_sleep_sooner, wait_briefly

        spec.loader.exec_module = exec_module
        return spec


if "vllm.entrypoints.openai.api_server" in sys.orig_argv:
    # The objects that vLLM's imports make all stay; to look for garbage among them takes a second.
    gc.set_threshold(100_000)
    _fork = multiprocessing.get_context("fork")
    multiprocessing.get_context = lambda _method=None: _fork
    # As with new processes, this process has the one that removes shared memory. vLLM ends the
    # children of its other processes.
    resource_tracker.ensure_running()
    sys.meta_path.insert(0, _SleepSooner())
