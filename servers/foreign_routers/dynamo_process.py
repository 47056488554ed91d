"""Starts Dynamo's workers, router and frontend on free ports of 127.0.0.1, waits until they serve a
request, and stops them.

In: a deployment and the router's policy. Out: a `DynamoCluster`, and a log for each process. All
processes end when their parent does, even if that is killed (`servers.processes`), and the last one
to end removes the folder through which they find each other. The mocker reads step times as tables.
"""

from __future__ import annotations

import http.client
import json
import os
import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from servers.basics.clock import PS_PER_S
from servers.foreign_routers import dynamo
from servers.foreign_routers.dynamo import DynamoDeployment, Worker
from servers.processes.environments import Installation
from servers.processes.server import ServerProcess, last_error, read_end
from servers.processes.supervised import SupervisedProcess
from servers.profiles import Profile
from servers.vllm.models.tiny_model import TINY_CONFIG, write_model

PREFILL_POINTS, TOTAL_POINTS, MEAN_POINTS = 200, 100, 300
MS_PER_PS = 1e3 / PS_PER_S


def write_step_times(profile: Profile, path: Path, *, prefill_only: bool) -> None:
    longest = profile.max_model_len
    prefills = _grid(longest, PREFILL_POINTS)
    totals = _grid(profile.kv_blocks * profile.block_tokens, TOTAL_POINTS)
    means = _grid(longest, MEAN_POINTS)
    fixed_ps = 0 if prefill_only else profile.tokens_ps(1)
    prefill_ps = [profile.batch_ps([(int(tokens), 0)], []) - fixed_ps for tokens in prefills]
    decode_ps = [[_decode_ps(profile, total, mean) for mean in means] for total in totals]
    np.savez(
        path,
        prefill_isl=prefills,
        prefill_ttft_ms=MS_PER_PS * np.maximum(prefill_ps, 0),
        decode_active_kv_tokens=totals,
        decode_context_length=means,
        decode_itl=MS_PER_PS * np.array(decode_ps),
    )


def _grid(last: int, points: int) -> NDArray[np.float64]:
    """Return whole numbers from 1 to `last`, evenly spaced on a logarithmic scale."""
    return np.unique(np.geomspace(1, last, points).round())


def _decode_ps(profile: Profile, total: float, mean: float) -> float:
    """Return the time of a decode step, interpolated between whole numbers of turns."""
    turns, part = divmod(max(1.0, total / mean), 1.0)
    fewer, more = (
        profile.step_ps(count, count, round(total), 0) for count in (int(turns), int(turns) + 1)
    )
    return fewer + part * (more - fewer)


TRIAL_TIMEOUT_S = 10.0


class DynamoCluster(ServerProcess):
    def __init__(
        self,
        deployment: DynamoDeployment,
        policy: str,
        installation: Installation,
        folder: Path,
    ) -> None:
        super().__init__("Dynamo's frontend", folder / "frontend.log")
        self.deployment = deployment
        self.workers: dict[int, int] = {}
        """Index of each worker that generates answers, by its id in Dynamo; once healthy."""
        self._policy, self._python = policy, installation.python
        self._workers = [self._worker(name) for name in deployment.names()]

    def start(self) -> None:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self._shared = Path(tempfile.mkdtemp(prefix="turnstile-"))
        self.resources.callback(shutil.rmtree, self._shared, ignore_errors=True)
        self._write_shared()
        self.resources.callback(self._stop_processes)
        for each in self._workers:
            command = dynamo.worker_command(
                self._python, self.deployment, each, self._policy, self._shared
            )
            self._supervise(each.name, command, each.port)
        if self._policy == dynamo.THUNDERAGENT:
            command = dynamo.thunderagent_command(self._python, self.deployment, self._shared)
            self._supervise("router", command)
        command = dynamo.frontend_command(self._python, self.deployment, self._policy, self.port)
        self._supervise("frontend", command)

    def is_healthy(self) -> bool:
        """Return whether the frontend knows all workers and serves a request."""
        status, body = self.request("/health", timeout_s=2.0)
        found = dynamo.worker_ids(json.loads(body), self._workers) if status == 200 else {}
        first = self.deployment.prefill
        self.workers = {id: k - first for id, k in found.items() if k >= first}
        return len(found) == len(self._workers) and self._serves()

    def cause(self, log: Path) -> str:
        return last_error(read_end(log), dynamo.ERROR, dynamo.PREFIX)

    def _stop_processes(self) -> None:
        """End all processes at once, and wait until they and their descendants have ended."""
        with ThreadPoolExecutor(len(self.processes) or 1) as pool:
            list(pool.map(SupervisedProcess.stop, self.processes.values()))

    def _worker(self, name: str) -> Worker:
        is_prefill = name.startswith("prefill")
        return Worker(
            name,
            dynamo.PREFILL if is_prefill else dynamo.AGGREGATED,
            self.reserve_port(),
            self.reserve_port() if is_prefill else None,
        )

    def _write_shared(self) -> None:
        """Write what the processes read: a model (only its tokenizer and longest context
        matter), and step times."""
        profile = self.deployment.profile
        limits = {"max_position_embeddings": profile.max_model_len}
        config = {**TINY_CONFIG, **limits, "vocab_size": dynamo.VOCABULARY}
        write_model(self._shared / dynamo.MODEL, config)
        for worker in {each.is_prefill: each for each in self._workers}.values():
            path = self._shared / dynamo.step_times(worker)
            write_step_times(profile, path, prefill_only=worker.is_prefill)

    def _supervise(self, name: str, command: list[str], port: int | None = None) -> None:
        env = dynamo.environment(os.environ, self._shared, port)
        log = self.log.with_name(f"{name}.log")
        process = SupervisedProcess(command, env, log, self._shared)
        self.processes[f"Dynamo's {name}"] = process

    def _serves(self) -> bool:
        """Return whether a request of one token, outside all programs, is answered."""
        body = {"model": self.deployment.model, "prompt": [0], "max_tokens": 1}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=TRIAL_TIMEOUT_S)
        with closing(connection):
            headers = {"Content-Type": "application/json"}
            connection.request("POST", "/v1/completions", json.dumps(body), headers)
            response = connection.getresponse()
            response.read()
            return response.status == 200
