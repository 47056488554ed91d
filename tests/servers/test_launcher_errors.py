"""Errors of the launcher, with an executable in place of vLLM that fails in chosen ways."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest

from servers.admission import Admission
from servers.basics.errors import InvalidInput, ServerFailed, Unavailable, check_flags
from servers.processes import supervised
from servers.profiles.kv_cache_dtype import KvCacheDtype
from servers.profiles.layout import Layout
from servers.vllm.launch.command_line import REFUSED_FLAGS, ServerConfig, check_layout, flags
from servers.vllm.launch.find_vllm import VllmInstallation, find_vllm
from servers.vllm.launch.offload_tier import OffloadTier
from servers.vllm.launch.server import VllmServer, launch
from servers.vllm.models.model_folder import resolve_model
from servers.vllm.plugin.cost_curve import CostCurve
from tests.processes import wait_until_none
from tests.servers.substitute_vllm import living, substitute_vllm

NO_RELOADS = CostCurve(base_s=0.0, linear_s=1.0, quadratic_s=0.0)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("TURNSTILE_VLLM_PYTHON", raising=False)
    monkeypatch.setattr(supervised, "GRACE_S", 0.3)
    yield
    assert living(tmp_path) == []


def start(tmp_path: Path, how: str, port: int | None = None) -> VllmServer:
    python = substitute_vllm(tmp_path, how)
    return launch(ServerConfig(), tmp_path / "run", port=port, python=python, ready_within_s=60)


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
            probe.listen()
        except OSError:
            return False
        return True


def test_a_healthy_server_describes_itself_and_leaves_no_process(tmp_path: Path) -> None:
    with start(tmp_path, "healthy") as server:
        info = server.info
        assert (info.model, info.version, info.policy) == ("tiny", "0.32.0", None)
        assert (info.kv_blocks, info.block_size, info.max_model_len) == (500, 32, 4096)
        assert info.device.startswith("cpu, ")
        assert server.failure() is None
        assert os.getpgid(server.pid) == server.pid != os.getpgid(0)
        assert json.loads((tmp_path / "run/server.json").read_text())["kv_blocks"] == 500
        port = int(server.base_url.rpartition(":")[2])
        assert not is_free(port)
    assert is_free(port)
    assert server.failure() is None
    server.stop()


def test_a_server_that_starts_again_in_a_folder_keeps_no_events_of_the_last_one(
    tmp_path: Path,
) -> None:
    events = tmp_path / "run/engine.jsonl"
    events.parent.mkdir()
    events.write_text('{"t":0.5,"event":"pinned"}\n')
    with pytest.raises(ServerFailed):
        start(tmp_path, "exits")
    assert not events.exists()


def test_a_server_that_dies_at_start_is_reported_with_the_reason_and_its_log(
    tmp_path: Path,
) -> None:
    with pytest.raises(ServerFailed) as caught:
        start(tmp_path, "exits")
    cause = "ValueError: the KV cache is too small"
    log = f"(log: {tmp_path / 'run/server.log'})"
    assert str(caught.value) == f"vLLM exited with code 1: {cause} {log}"
    assert caught.value.tail[-3:] == ["starting", cause, "nothing to add"]


@pytest.mark.parametrize("how", ["hangs", "unhealthy"])
def test_a_server_that_never_becomes_healthy_is_stopped_after_the_timeout_which_progress_reports(
    tmp_path: Path, how: str
) -> None:
    progress: list[tuple[float, str]] = []
    begun_s = time.monotonic()
    with pytest.raises(ServerFailed, match=r"was not healthy after 4 s: ") as caught:
        launch(
            ServerConfig(),
            tmp_path / "run",
            python=substitute_vllm(tmp_path, how),
            ready_within_s=4,
            on_progress=lambda elapsed_s, line: progress.append((elapsed_s, line)),
        )
    assert time.monotonic() - begun_s > 4
    assert progress[-1][1] in ("starting", "")  # A busy machine takes seconds to start Python.
    assert progress[-1][1] in str(caught.value)


def test_a_stubborn_server_and_its_children_are_killed(tmp_path: Path) -> None:
    server = start(tmp_path, "stubborn")
    assert len(living(tmp_path)) == 3  # supervisor, server, daemon
    server.stop()
    assert living(tmp_path) == []
    assert "still running 0.3 s after SIGTERM: killed" in server.log.read_text()


def test_a_server_that_dies_while_running_is_a_failure_and_leaves_no_child(tmp_path: Path) -> None:
    with start(tmp_path, "dies") as server:
        server.wait(60)
        failure = server.failure()
        assert living(tmp_path) == []
    assert failure is not None
    assert str(failure).startswith("vLLM exited with code 3: starting")


def test_a_killed_supervisor_is_a_failure_and_stop_cleans_up(tmp_path: Path) -> None:
    with start(tmp_path, "healthy") as server:
        os.kill(server.pid, signal.SIGKILL)
        server.wait(60)
        assert "were ended by signal 9" in str(server.failure())
    wait_until_none(partial(living, tmp_path))


LAUNCH_AND_SLEEP = """
import os, time
from pathlib import Path
from servers.processes import supervised
from servers.vllm.launch import server as launcher
supervised.GRACE_S = 0.3
run, python = Path(os.environ["RUN"]), os.environ["VLLM_PYTHON"]
server = launcher.launch(launcher.ServerConfig(), run, python=python, ready_within_s=60)
print(server.base_url.rpartition(":")[2], flush=True)
fork = os.fork() if os.environ["FORKS"] == "yes" else None
if fork:
    print(fork, flush=True)
time.sleep(300)
"""


@pytest.mark.parametrize("how", ["healthy", "stubborn"])
def test_the_server_ends_when_its_parent_is_killed(tmp_path: Path, how: str) -> None:
    with bench(tmp_path, how, forks="no") as parent:
        assert parent.stdout is not None
        port = int(parent.stdout.readline())
        assert not is_free(port)
        parent.kill()
        wait_until_none(partial(living, tmp_path))
        assert is_free(port)


def test_the_server_ends_when_its_parent_is_killed_even_if_a_fork_keeps_the_pipe_open(
    tmp_path: Path,
) -> None:
    with bench(tmp_path, "healthy", forks="yes") as parent:
        assert parent.stdout is not None
        port, fork = int(parent.stdout.readline()), int(parent.stdout.readline())
        parent.kill()
        try:
            wait_until_none(partial(living, tmp_path))
        finally:
            with suppress(ProcessLookupError):
                os.kill(fork, signal.SIGKILL)
        assert is_free(port)


def bench(tmp_path: Path, how: str, forks: str) -> subprocess.Popen[str]:
    settings = {
        "RUN": str(tmp_path / "run"),
        "VLLM_PYTHON": substitute_vllm(tmp_path, how),
        "FORKS": forks,
    }
    return subprocess.Popen(
        [sys.executable, "-c", LAUNCH_AND_SLEEP],
        env={**os.environ, **settings},
        stdout=subprocess.PIPE,
        text=True,
    )


def test_a_taken_port_is_reported_before_anything_starts(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(
            Unavailable, match=rf"--port {port}: Address already in use; omit --port"
        ):
            start(tmp_path, "healthy", port=port)
    assert not (tmp_path / "run/server.log").exists()


def test_an_automatic_port_that_is_taken_in_the_meantime_is_replaced(tmp_path: Path) -> None:
    with start(tmp_path, "robbed") as server:
        assert server.info.model == "tiny"
    assert (tmp_path / "robbed").exists()


def test_a_given_port_that_is_taken_in_the_meantime_is_an_error(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(ServerFailed, match="Address already in use"):
        start(tmp_path, "robbed", port=port)


@pytest.mark.parametrize(
    ("version", "message"),
    [(None, "has no vLLM; get it with: "), ("0.23.1", "has vLLM 0.23.1, but Turnstile needs 0.24")],
)
def test_a_missing_or_old_vllm_is_refused_with_the_command_to_install_it(
    tmp_path: Path, version: str | None, message: str
) -> None:
    with pytest.raises(Unavailable, match=message) as caught:
        find_vllm(substitute_vllm(tmp_path, "healthy", version))
    assert "get it with: " in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("python", ["/nowhere/python", "/etc/passwd", "/bin/true", "/bin/false"])
def test_an_unusable_python_is_named(python: str) -> None:
    with pytest.raises(Unavailable, match=f"--vllm-python {python}"):
        find_vllm(python)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (ServerConfig(policy="nonsense"), "no policy is called 'nonsense'"),
        (ServerConfig(policy="fcfs,continuum"), "a server runs one policy"),
        (
            ServerConfig(policy="fcfs", offload=OffloadTier("lmcache", 1.0)),
            "has no LMCache; get it with",
        ),
        (
            ServerConfig(policy="fcfs", offload=OffloadTier("native", 1.0), costs=NO_RELOADS),
            "have no reload cost; add reload_s_per_token",
        ),
        (ServerConfig(policy="clairvoyant"), "knows the trace's future"),
        (ServerConfig(policy="unlimited-kv"), "unlimited KV memory, so it runs in virtual time"),
        (ServerConfig(policy="fcfs", hardware="h100"), "no profile has tiny"),
        (ServerConfig(policy="fcfs", model="org/model"), "use --costs FILE"),
        (ServerConfig(kv_blocks=1), "--kv-blocks 1: vLLM reserves one"),
        (
            ServerConfig(flags=("--no-scheduler-reserve-full-isl",)),
            "--no-scheduler-reserve-full-isl: use --admission first-chunk instead",
        ),
        (ServerConfig(weights="real"), "--weights real: use one of auto, dummy, random"),
        (ServerConfig(model="llama-3.1-8b", weights="random"), "only tiny has them"),
    ],
)
def test_unsupported_options_are_reported_before_anything_starts(
    tmp_path: Path, config: ServerConfig, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        launch(
            config, tmp_path / "run", python=substitute_vllm(tmp_path, "healthy"), ready_within_s=60
        )
    assert not (tmp_path / "run/server.log").exists()


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--max-num-batched-tokens", "--max-num-batched-tokens: use --step-tokens instead"),
        ("--max_num_seqs", "--max_num_seqs: use --max-num-seqs before the -- instead"),
        ("--max-num-active-seqs=9", "--max-num-active-seqs: use --max-num-seqs before the --"),
        ("--prefill-schedule-interval", "it delays prefills only on data-parallel ranks of one"),
        ("--num-gpu-blocks-override=9", "--num-gpu-blocks-override: use --kv-blocks instead"),
        ("--max-model-l=64", "--max-model-l (--max-model-len): use --max-model-len before"),
        ("--kv-cache-dtype", "--kv-cache-dtype: use --kv-cache-dtype before the -- instead"),
        ("--block-size", "--block-size: Turnstile counts in blocks of 32 tokens on a CPU"),
        ("-tp=2", "-tp: use --gpus instead"),
        ("--tensor", "--tensor (--tensor-parallel-size): use --gpus instead"),
        ("--no-enable-prefix-caching", "--no-enable-prefix-caching: the plug-in needs prefix"),
        ("--scheduler-cls", "--scheduler-cls: use --policy or --policies instead"),
        ("--config", "--config: its flags would not be checked; give them one by one"),
        ("--port", "--port: a free port is chosen; with bench serve use --port before the --"),
    ],
)
def test_a_flag_of_vllm_that_an_option_of_ours_sets_is_refused_with_that_option(
    flag: str, message: str
) -> None:
    with pytest.raises(InvalidInput, match=re.escape(message)):
        check_flags(("--seed", "1", flag, "2"), REFUSED_FLAGS)


def test_flags_without_an_option_of_ours_pass_and_so_do_values() -> None:
    check_flags(
        (
            *("--gpu-memory-utilization", "0.8", "--enable-prefix-caching", "--seed", "-1"),
            *("--hf-overrides.model_type", "port", "--max-log-len", "9", "--config-format", "hf"),
        ),
        REFUSED_FLAGS,
    )


def test_first_chunk_admission_is_a_flag_of_vllm_and_the_default_needs_none(tmp_path: Path) -> None:
    flag, python = "--no-scheduler-reserve-full-isl", substitute_vllm(tmp_path, "healthy")
    for admission in Admission:
        config, folder = ServerConfig(admission=admission), tmp_path / admission
        with launch(config, folder, python=python, ready_within_s=60):
            flags = json.loads((folder / "server.json").read_text())["flags"]
        assert (flag in flags) == (admission == Admission.FIRST_CHUNK)


def test_headroom_is_flags_of_vllm_which_may_lack_them() -> None:
    model = resolve_model("tiny", "dummy")
    vllm = VllmInstallation("python", "0.32.0", True, None, True)
    tuned = ServerConfig(long_prefill=512, long_prefill_adaptive=True, watermark=0.05)
    expected = (
        "--long-prefill-token-threshold 512 --long-prefill-token-threshold-adaptive "
        "--watermark 0.05"
    )
    assert expected in " ".join(flags(tuned, vllm, model, 1))
    assert "watermark" not in " ".join(flags(ServerConfig(), vllm, model, 1))
    old = replace(vllm, version="0.28.0", lacks=("long_prefill_adaptive", "watermark"))
    flags(replace(tuned, long_prefill_adaptive=False, watermark=0.0), old, model, 1)
    message = "^--long-prefill-adaptive: vLLM 0.28.0 does not have it; remove it, or use vLLM 0.32$"
    with pytest.raises(InvalidInput, match=message):
        flags(tuned, old, model, 1)


def test_the_format_of_the_kv_cache_is_passed_to_vllm_unless_it_is_the_default(
    tmp_path: Path,
) -> None:
    python = substitute_vllm(tmp_path, "healthy")
    for dtype, expected in ((KvCacheDtype.AUTO, ()), (KvCacheDtype.FP8, ("fp8",))):
        config, folder = ServerConfig(kv_cache_dtype=dtype), tmp_path / dtype
        with launch(config, folder, python=python, ready_within_s=60):
            flags = json.loads((folder / "server.json").read_text())["flags"]
        given = tuple(after for flag, after in pairwise(flags) if flag == "--kv-cache-dtype")
        assert given == expected


def test_gpus_are_the_stages_of_a_pipeline_with_its_layout() -> None:
    vllm = VllmInstallation("python", "0.32.0", False, None, True)
    model = resolve_model("tiny", "dummy")
    config = ServerConfig(gpus=4, layout=Layout.PP, costs=NO_RELOADS)
    given = flags(config, vllm, model, 8000)
    assert ("--pipeline-parallel-size", "4") in pairwise(given)
    assert "--tensor-parallel-size" not in given


@pytest.mark.parametrize(
    ("layout", "gpus", "cpu", "reason"),
    [
        (Layout.DP_ATTN, 4, False, "--layout dp-attn: modelled in virtual time only"),
        (Layout.PP, None, False, "--layout pp: 1 GPU is no pipeline; use --gpus 2 or more"),
        (Layout.PP, 2, True, "--layout pp: a CPU is no pipeline"),
    ],
)
def test_a_layout_that_vllm_is_not_started_with_is_refused(
    layout: Layout, gpus: int | None, cpu: bool, reason: str
) -> None:
    vllm = VllmInstallation("python", "0.32.0", cpu, None, True)
    with pytest.raises(InvalidInput, match=reason):
        check_layout(ServerConfig(gpus=gpus, layout=layout), vllm)


def test_first_chunk_admission_is_refused_for_a_vllm_that_lacks_it(tmp_path: Path) -> None:
    python = substitute_vllm(tmp_path, "healthy", "0.99.0")
    config = ServerConfig(admission=Admission.FIRST_CHUNK)
    lacks = r"vLLM 0\.99\.0 .* --no-scheduler-reserve-full-isl; .* --admission whole-prompt"
    with pytest.raises(InvalidInput, match=rf"^--admission first-chunk: {lacks}"):
        launch(config, tmp_path / "run", python=python, ready_within_s=60)


def test_an_unknown_model_is_reported_with_the_known_names(tmp_path: Path) -> None:
    python = substitute_vllm(tmp_path, "healthy")
    with pytest.raises(InvalidInput, match=r"not a known name \(tiny, llama"):
        launch(
            ServerConfig(model="/no/model"),
            tmp_path,
            python=python,
            ready_within_s=60,
        )
    with pytest.raises(InvalidInput, match=r"has no config.json"):
        launch(
            ServerConfig(model=str(tmp_path)),
            tmp_path,
            python=python,
            ready_within_s=60,
        )
    with pytest.raises(InvalidInput):
        launch(
            ServerConfig(policy="all"),
            tmp_path,
            python=python,
            ready_within_s=60,
        )
