"""The cause of a failed server is found in its log."""

from __future__ import annotations

from pathlib import Path

import pytest

from servers.vllm.launch.failure_cause import failure_cause, log_lines

ENGINE_FAILED = """\
(EngineCore pid=7) INFO 11-21 00:41:02 [core.py:1] starting
(EngineCore pid=7) ERROR 11-21 00:41:02 [core.py:1510] Traceback (most recent call last):
(EngineCore pid=7) ERROR 11-21 00:41:02 [core.py:1510]   File "core.py", line 1, in run
(EngineCore pid=7) ERROR 11-21 00:41:02 [core.py:1510]     raise it
(EngineCore pid=7) ERROR 11-21 00:41:02 [core.py:1510] ValueError: max seq len (4096) is too long
(APIServer pid=6) Traceback (most recent call last):
(APIServer pid=6)   File "launcher.py", line 2, in start
(APIServer pid=6) RuntimeError: Engine core initialization failed. See root cause above.
"""
INVALID_MODEL = """\
Traceback (most recent call last):
  File "arg_utils.py", line 3
    raise
pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig
  Value error, the model is not supported
  For further information visit https://errors.pydantic.dev
"""
POLICY_FAILED = """\
(EngineCore pid=7) ERROR 11-21 00:41:02 [core.py:1510] Traceback (most recent call last):
(EngineCore pid=7) ERROR 11-21 00:41:02 [core.py:1510]   File "/usr/lib/python3.11/site-packages/vllm/core.py", line 1, in run
(EngineCore pid=7) ERROR 11-21 00:41:02 [core.py:1510]   File "/runs/x/plugin/my_policies.py", line 14, in finished
(EngineCore pid=7) ERROR 11-21 00:41:02 [core.py:1510] KeyError: 'a'
"""  # noqa: E501
BAD_FLAG = "usage: api_server.py [-h]\napi_server.py: error: unrecognized arguments: --no\n"
ENGINE_KILLED = """\
(APIServer pid=6) WARNING 11-21 00:41:01 [system_utils.py:255] errors like `OSError: [Errno 24]`
(APIServer pid=6) WARNING 11-21 00:41:02 [core_client.py:817] [shutdown] MPClient: engine core exited unexpectedly; starting cleanup
(APIServer pid=6) ERROR 11-21 00:41:02 [async_llm.py:906] Traceback (most recent call last):
(APIServer pid=6) ERROR 11-21 00:41:02 [async_llm.py:906]   File "async_llm.py", line 860
(APIServer pid=6) ERROR 11-21 00:41:02 [async_llm.py:906] vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above) for the root cause.
nanobind: leaked 4 instances!
"""  # noqa: E501
WORKER_FAILED = """\
(APIServer pid=6) WARNING 11-21 00:41:02 [core_client.py:817] [shutdown] MPClient: engine core exited unexpectedly; starting cleanup
(Worker pid=9) ERROR 11-21 00:41:02 [multiproc_executor.py:1063] Traceback (most recent call last):
(Worker pid=9) ERROR 11-21 00:41:02 [multiproc_executor.py:1063]   File "cpu.py", line 8
(Worker pid=9) ERROR 11-21 00:41:02 [multiproc_executor.py:1063] MemoryError: std::bad_alloc
(APIServer pid=6) ERROR 11-21 00:41:02 [async_llm.py:906] Traceback (most recent call last):
(APIServer pid=6) ERROR 11-21 00:41:02 [async_llm.py:906]   File "async_llm.py", line 860
(APIServer pid=6) ERROR 11-21 00:41:02 [async_llm.py:906] vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above) for the root cause.
"""  # noqa: E501
WORKER_GONE = """\
(EngineCore pid=7) ERROR 11-21 00:41:02 [multiproc_executor.py:315] Worker proc VllmWorker-0 died unexpectedly (exit code: None), shutting down executor.
"""  # noqa: E501
WORKER_KILLED = f"""{WORKER_GONE}\
(EngineCore pid=7) Traceback (most recent call last):
(EngineCore pid=7)   File "multiproc_executor.py", line 8
(EngineCore pid=7) RuntimeError: cancelled
"""
INTERLEAVED = f"""{WORKER_GONE}\
Process EngineCore:
Traceback (most recent call last):
  File "process.py", line 314, in _bootstrap
(APIServer pid=6) INFO 11-21 00:41:02 [core_client.py:770] [shutdown] MPClient: start timeout=0s
    self.run()
RuntimeError: cancelled
"""
CORE_FAILED_BEFORE_WORKER_GONE = f"""\
(EngineCore pid=7) ERROR 11-21 00:41:02 [core.py:1510] Traceback (most recent call last):
(EngineCore pid=7) ERROR 11-21 00:41:02 [core.py:1510]   File "core.py", line 1702
(EngineCore pid=7) ERROR 11-21 00:41:02 [core.py:1510] RuntimeError: Executor failed.
{WORKER_GONE}"""
CORE_LOST_ITS_QUEUE = f"""{WORKER_GONE}\
(EngineCore pid=7) ERROR 11-21 00:41:02 [core.py:1510] Traceback (most recent call last):
(EngineCore pid=7) ERROR 11-21 00:41:02 [core.py:1510]   File "multiproc_executor.py", line 395
(EngineCore pid=7) ERROR 11-21 00:41:02 [core.py:1510] AssertionError: collective_rpc should not be
"""
WORKER_GONE_THEN_TRACEBACK = f"""{WORKER_GONE}\
(Worker pid=9) ERROR 11-21 00:41:02 [multiproc_executor.py:1063] Traceback (most recent call last):
(Worker pid=9) ERROR 11-21 00:41:02 [multiproc_executor.py:1063]   File "cpu.py", line 8
(Worker pid=9) ERROR 11-21 00:41:02 [multiproc_executor.py:1063] MemoryError: std::bad_alloc
"""
PLUGIN_FAILED = """\
Traceback (most recent call last):
  File "plugin.py", line 3
servers.vllm.plugin.settings.InvalidInput: policy continum: there is none
  warnings.warn("shutting down")
"""


@pytest.mark.parametrize(
    ("log", "cause"),
    [
        (ENGINE_FAILED, "ValueError: max seq len (4096) is too long"),
        (ENGINE_KILLED, "engine core exited unexpectedly; starting cleanup"),
        (ENGINE_FAILED + WORKER_GONE, "ValueError: max seq len (4096) is too long"),
        (WORKER_KILLED, "Worker proc VllmWorker-0 died unexpectedly"),
        (INTERLEAVED, "Worker proc VllmWorker-0 died unexpectedly"),
        (CORE_FAILED_BEFORE_WORKER_GONE, "Worker proc VllmWorker-0 died unexpectedly"),
        (CORE_LOST_ITS_QUEUE, "Worker proc VllmWorker-0 died unexpectedly"),
        (WORKER_GONE_THEN_TRACEBACK, "MemoryError: std::bad_alloc"),
        (WORKER_FAILED, "MemoryError: std::bad_alloc"),
        (
            INVALID_MODEL,
            "1 validation error for ModelConfig Value error, the model is not supported",
        ),
        (POLICY_FAILED, "KeyError: 'a' at /runs/x/plugin/my_policies.py:14"),
        (BAD_FLAG, "api_server.py: error: unrecognized arguments: --no"),
        (
            PLUGIN_FAILED,
            "servers.vllm.plugin.settings.InvalidInput: policy continum: there is none",
        ),
        ("loading\n\n", "loading"),
        ("", "the log is empty"),
    ],
)
def test_the_cause_is_the_line_with_the_error(tmp_path: Path, log: str, cause: str) -> None:
    (tmp_path / "log").write_text(log)
    assert cause in failure_cause(tmp_path / "log")


def test_log_lines_are_returned_without_process_date_and_location(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("\n" + ENGINE_FAILED)
    assert log_lines(tmp_path / "log")[0] == "starting"
    assert log_lines(tmp_path / "nowhere") == []
