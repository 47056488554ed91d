"""Python imports this file first where it is on the path (the fixture `forked_vllm`).

In vLLM's server, the start method of processes is then fork, as it is vLLM's default where it does
not run on a CPU.
"""

import gc
import multiprocessing
import sys
from multiprocessing import resource_tracker

if "vllm.entrypoints.openai.api_server" in sys.orig_argv:
    # The objects that vLLM's imports make all stay; to look for garbage among them takes a second.
    gc.set_threshold(100_000)
    _fork = multiprocessing.get_context("fork")
    multiprocessing.get_context = lambda _method=None: _fork
    # As with new processes, this process has the one that removes shared memory. vLLM ends the
    # children of its other processes.
    resource_tracker.ensure_running()
