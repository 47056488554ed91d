"""Starts Dynamo's workers, router and frontend on free ports of 127.0.0.1, waits until they serve a
request, and stops them.

In: a deployment and the router's policy. Out: a `DynamoCluster`, and a log for each process. All
processes end when their parent does, even if that is killed (`servers.processes`), and the last one
to end removes the folder through which they find each other.
"""

from __future__ import annotations

import http.client
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from typing import Self

from servers.basics.errors import RouterFailed
from servers.foreign_routers import dynamo
from servers.foreign_routers.dynamo import DynamoDeployment, Worker
from servers.foreign_routers.installation import RouterInstallation
from servers.foreign_routers.mocker_times import write_step_times
from servers.foreign_routers.process import MAX_STARTS, TAKEN, last_lines
from servers.processes.loopback import REQUEST_ERRORS, request
from servers.processes.port import Port
from servers.processes.supervised import SupervisedProcess
from servers.vllm.models.tiny_model import TINY_CONFIG, write_model

POLL_S = 0.1
TRIAL_TIMEOUT_S = 10.0


class DynamoCluster:
    """Running processes, and a context manager that stops them: `with launch_dynamo(…) as …:`."""

    def __init__(
        self,
        deployment: DynamoDeployment,
        policy: str,
        installation: RouterInstallation,
        folder: Path,
    ) -> None:
        self.deployment = deployment
        self.workers: dict[int, int] = {}
        """Index of each worker that generates answers, by its id in Dynamo; once healthy."""
        self._folder = folder
        self._ports: list[Port] = []
        self._processes: dict[str, SupervisedProcess] = {}
        self._frontend_port = self._port()
        self._workers = [self._worker(name) for name in deployment.names()]
        self.base_url = f"http://127.0.0.1:{self._frontend_port}"
        folder.mkdir(parents=True, exist_ok=True)
        self._shared = Path(tempfile.mkdtemp(prefix="turnstile-"))
        try:
            self._write_shared()
            self._start(installation.python, policy)
        except BaseException:
            self.stop()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def pids(self) -> dict[str, int]:
        """Process ids of the supervisors, each of which leads a process group, by name."""
        return {name: process.pid for name, process in self._processes.items()}

    def failure(self) -> RouterFailed | None:
        """Return why a process exited unexpectedly; None while all run and after `stop`."""
        for name, process in self._processes.items():
            if (what := process.exit_reason()) is not None:
                return self._failed(name, what)
        return None

    def wait_until_healthy(
        self, within_s: float, on_progress: Callable[[float], None] = lambda _: None
    ) -> None:
        """Wait until the frontend knows all workers and a request has been served. Raises
        RouterFailed."""
        started_s = time.monotonic()
        while True:
            if (failure := self.failure()) is not None:
                raise failure
            with suppress(*REQUEST_ERRORS, ValueError, LookupError, TypeError):
                status, body = request(self._frontend_port, "/health", timeout_s=2.0)
                found = dynamo.worker_ids(json.loads(body), self._workers) if status == 200 else {}
                if len(found) == len(self._workers) and self._serves():
                    first = self.deployment.prefill
                    self.workers = {id: k - first for id, k in found.items() if k >= first}
                    return
            waited_s = time.monotonic() - started_s
            if waited_s > within_s:
                raise self._failed("frontend", f"was not healthy after {within_s:g} s")
            on_progress(waited_s)
            time.sleep(POLL_S)

    def port_was_taken(self) -> bool:
        """Return whether a process failed because another one uses its port."""
        logs = map(self._log, self._processes)
        return any(TAKEN in line for log in logs for line in last_lines(log))

    def stop(self) -> None:
        """End all processes at once, and wait until they and their descendants have ended."""
        with ThreadPoolExecutor(len(self._processes) or 1) as pool:
            list(pool.map(SupervisedProcess.stop, self._processes.values()))
        shutil.rmtree(self._shared, ignore_errors=True)
        for port in self._ports:
            port.close()

    def _port(self) -> int:
        self._ports.append(Port())
        return self._ports[-1].number

    def _worker(self, name: str) -> Worker:
        is_prefill = name.startswith("prefill")
        return Worker(
            name,
            dynamo.PREFILL if is_prefill else dynamo.AGGREGATED,
            self._port(),
            self._port() if is_prefill else None,
        )

    def _write_shared(self) -> None:
        """Write what the processes read: a model of which only the tokenizer and the longest
        context matter, and step times."""
        profile = self.deployment.profile
        limits = {"max_position_embeddings": profile.max_model_len}
        config = {**TINY_CONFIG, **limits, "vocab_size": dynamo.VOCABULARY}
        write_model(self._shared / dynamo.MODEL, config)
        for worker in {each.is_prefill: each for each in self._workers}.values():
            path = self._shared / dynamo.step_times(worker)
            write_step_times(profile, path, prefill_only=worker.is_prefill)

    def _start(self, python: str, policy: str) -> None:
        for each in self._workers:
            command = dynamo.worker_command(python, self.deployment, each, policy, self._shared)
            self._supervise(each.name, command, each.port)
        if policy == dynamo.THUNDERAGENT:
            command = dynamo.thunderagent_command(python, self.deployment, self._shared)
            self._supervise("router", command)
        command = dynamo.frontend_command(python, self.deployment, policy, self._frontend_port)
        self._supervise("frontend", command)

    def _supervise(self, name: str, command: list[str], port: int | None = None) -> None:
        env = dynamo.environment(os.environ, self._shared, port)
        self._processes[name] = SupervisedProcess(command, env, self._log(name), self._shared)

    def _serves(self) -> bool:
        """Return whether a request of one token, outside all programs, is answered."""
        body = {"model": self.deployment.model, "prompt": [0], "max_tokens": 1}
        connection = http.client.HTTPConnection(
            "127.0.0.1", self._frontend_port, timeout=TRIAL_TIMEOUT_S
        )
        with closing(connection):
            headers = {"Content-Type": "application/json"}
            connection.request("POST", "/v1/completions", json.dumps(body), headers)
            response = connection.getresponse()
            response.read()
            return response.status == 200

    def _log(self, name: str) -> Path:
        return self._folder / f"{name}.log"

    def _failed(self, name: str, what: str) -> RouterFailed:
        log = self._log(name)
        cause = dynamo.failure_cause(last_lines(log))
        return RouterFailed(f"Dynamo's {name} {what}: {cause} (log: {log})")


def launch_dynamo(
    deployment: DynamoDeployment,
    policy: str,
    installation: RouterInstallation,
    folder: Path,
    *,
    ready_within_s: float,
    on_progress: Callable[[float], None] = lambda _: None,
) -> DynamoCluster:
    """Start all processes, and wait until they are healthy. Raises RouterFailed."""
    starts = MAX_STARTS
    while True:
        starts -= 1
        cluster = DynamoCluster(deployment, policy, installation, folder)
        try:
            cluster.wait_until_healthy(ready_within_s, on_progress)
        except RouterFailed:
            cluster.stop()
            if not starts or not cluster.port_was_taken():
                raise
        except BaseException:
            cluster.stop()
            raise
        else:
            return cluster
